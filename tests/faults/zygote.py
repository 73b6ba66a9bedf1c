"""A process that imports everything once and forks `redrive worker` on command: no half second of imports for each.

It reads one command a line and answers each with one line:

    start           fork a worker; its pid
    kill PID        SIGKILL the worker and wait for its end; its exit code
    stop PID        SIGTERM the worker and wait for its end; its exit code
    look PID        whether the worker still lives, 1 or 0; if not, it is reaped

At the end of its input it kills what is left. It has no threads and no event loop, so that a fork copies none.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

from redrive import cli

from . import apps

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve commands until the input ends."""
    folder, *options = sys.argv[1:]
    workers: set[int] = set()
    for line in sys.stdin:
        command, *given = line.split()
        if command == "start":
            answer = os.fork()
            if answer == 0:
                be_worker(Path(folder), options)
            workers.add(answer)
        else:
            pid = int(given[0])
            assert pid in workers, f"{pid} is no worker of this zygote"
            if command == "look":
                answer = int(os.waitpid(pid, os.WNOHANG)[0] == 0)
            else:
                answer = end(pid, signal.SIGKILL if command == "kill" else signal.SIGTERM)
            if command != "look" or not answer:
                workers.discard(pid)
        print(answer, flush=True)
    for pid in workers:
        end(pid, signal.SIGKILL)


def end(pid: int, number: signal.Signals) -> int:
    """Send the signal and reap; a worker is only ever reaped here, so its pid cannot be somebody else's by now."""
    os.kill(pid, number)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def be_worker(folder: Path, options: list[str]) -> None:
    """What a forked child does with the rest of its life."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(folder / f"worker-{os.getpid()}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["redrive", "worker", f"{apps.__name__}:app", *options]
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
