"""`python -m redrive …` in a process of its own, without the second that imports take: forked from one that has made them.

`run(…)` is what `subprocess.Popen` would be for a test: the same program with the same arguments, folder and environment.
Only what is imported before is there already. Tests of imports, and of what a user has installed, start Python themselves.

As a program this file is the process that forks. It reads one command a line, JSON, and answers each with one number:

    {"module": …, "arguments": […], "folder": …, "environment": {…}, "log": …}      fork; the new pid
    {"look": PID}                                                                  its exit code, or null while it lives

A child is reaped by a look alone, so until then its pid is nobody else's. At the end of its input all end.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMPORTED = ("redrive.cli", "redrive.web.app", "redrive.wiring", "redrive.ledgers.sqlite.database",
            "redrive.ledgers.postgres.database", "redrive.systems.commands", "redrive.systems.relay.system", "uvicorn",
            "uvicorn.protocols.http.httptools_impl", "aio_pika", "httpx",
            "redrive.ledgers.aws.ledger", "tests.faults.aws_session")  # fmt: skip
LOOK_SECONDS = 0.01
PR_SET_PDEATHSIG = 1


class Process:
    """A process that was forked: as much of `subprocess.Popen` as the tests use."""

    def __init__(self, server: "_Server", pid: int, module: str) -> None:
        self._server = server
        self._module = module
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it lives."""
        if self.returncode is None:
            self.returncode = self._server.ask({"look": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(self._module, timeout)
            time.sleep(LOOK_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str, folder: Path, log: Path, environment: Mapping[str, str] | None = None, module: str = "redrive"
) -> Process:
    """Start `python -m module arguments`; what it says goes to the end of the log."""
    server = _server()
    log.touch()
    given = {
        "module": module,
        "arguments": arguments,
        "folder": str(folder),
        "environment": dict(os.environ if environment is None else environment),
        "log": str(log),
    }
    pid = server.ask(given)
    assert pid is not None
    return Process(server, pid, module)


class _Server:
    """The process that forks, of this run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, command: dict[str, Any]) -> int | None:
        """One command, one answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        assert answer, "the process that forks has ended"
        return json.loads(answer)  # type: ignore[no-any-return]

    def end(self) -> None:
        """End it, and all that it has forked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


_started: list[_Server] = []


def _server() -> _Server:
    if not _started:
        _started.append(_Server())
    return _started[0]


def end() -> None:
    """At the end of a run."""
    while _started:
        _started.pop().end()


# --- the process that forks -----------------------------------------------------------------------------------------


def serve() -> None:
    """Fork on command until the input ends. No threads and no event loop, so that a fork copies none."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        command = json.loads(line)
        if "look" in command:
            answer = look(command["look"])
        else:
            answer = os.fork()
            if answer == 0:
                be_process(command)
        os.write(1, json.dumps(answer).encode() + b"\n")


def look(pid: int) -> int | None:
    """The exit code of a child that has ended."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def be_process(given: dict[str, Any]) -> None:
    """What a forked child does with the rest of its life."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    code = 1
    try:
        os.chdir(given["folder"])
        os.environ.clear()
        os.environ.update(given["environment"])
        sys.path[:] = [given["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(":")), *sys.path[1:]]
        sys.argv = [given["module"], *given["arguments"]]
        log = os.open(given["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for file, at in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(file, at)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
        runpy.run_module(given["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
