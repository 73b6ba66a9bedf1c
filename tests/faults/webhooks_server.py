"""The inbox that the servers of these tests serve, and a process that forks such servers: no second of imports for each.

As a program it reads one command a line and answers each with one line, as `zygote` does:

    start PORT      fork a server on this port; its pid
    kill PID        SIGKILL the server and wait for its end; its exit code
    stop PID        SIGTERM the server and wait for its end; its exit code

At the end of its input it kills what is left.
"""

import asyncio
import ctypes
import importlib
import os
import signal
import sys
from pathlib import Path

from redrive import Context, Redrive, Task, TransientError, seconds
from redrive.systems.webhooks import Webhooks, WebhookSettings

from . import evidence
from .zygote import PR_SET_PDEATHSIG, end

app = Redrive(os.environ["DATABASE_URL"])
webhooks = Webhooks(
    app,
    WebhookSettings(
        _env_file=None, worker_count=20, max_attempts=1000, queue_maxsize=100_000,
        retry_base_delay=seconds(0.05), retry_max_delay=seconds(0.1),
    ),
    sources=(),
)  # fmt: skip


@webhooks.handler("work")
async def work(task: Task, context: Context) -> None:
    """Take `ms`, and fail the first `fails` tries."""
    with evidence.on_record(task, context):
        await asyncio.sleep(task.payload["ms"] / 1000)
        if context.attempt <= task.payload["fails"]:
            raise TransientError("not yet")


@webhooks.handler("later")
async def later(task: Task, context: Context) -> None:
    """Ask for patience once."""
    with evidence.on_record(task, context):
        if context.attempt == 1:
            raise TransientError("come back", retry_after=seconds(task.payload["seconds"]))


def main() -> None:
    """Serve commands until the input ends."""
    # What every server needs is imported here, once.
    importlib.import_module("uvicorn")
    importlib.import_module("redrive.web.app")
    servers: set[int] = set()
    for line in sys.stdin:
        command, number = line.split()
        if command == "start":
            answer = os.fork()
            if answer == 0:
                be_server(Path(sys.argv[1]), number)
            servers.add(answer)
        else:
            assert int(number) in servers, f"{number} is no server of this process"
            servers.discard(int(number))
            answer = end(int(number), signal.SIGKILL if command == "kill" else signal.SIGTERM)
        print(answer, flush=True)
    for pid in servers:
        end(pid, signal.SIGKILL)


def be_server(folder: Path, port: str) -> None:
    """What a forked child does with the rest of its life."""
    from redrive import cli

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(folder / f"server-{os.getpid()}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["redrive", "serve", "--app", "tests.faults.webhooks_server:app", "--port", port]
        cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
