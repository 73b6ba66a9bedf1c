"""Starting worker processes and ending them again: only those that were started here, each by its pid."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import evidence

ROOT = Path(__file__).parents[2]
APP = "tests.faults.apps:app"


class Ground:
    """What the processes of one test share: a database, a folder for logs, a file for evidence."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.evidence = folder / "evidence.jsonl"
        self.environment = os.environ | {
            "DATABASE_URL": url,
            evidence.VARIABLE: str(self.evidence),
            "LOG_LEVEL": "info",
            "LOG_FORMAT": "json",
            "PYTHONPATH": str(ROOT),
        }

    def starts(self, key: str | None = None) -> list[evidence.Line]:
        """The runs that have begun, of all tasks or of one."""
        return [line for line in evidence.read(self.evidence) if line.what == "start" and key in (None, line.key)]

    def logs(self) -> dict[str, str]:
        """All that all processes have said."""
        return {file.name: file.read_text() for file in sorted(self.folder.glob("*.log"))}


def events(log: str, name: str) -> list[dict[str, Any]]:
    """The log lines with this event."""
    lines = (json.loads(line) for line in log.splitlines() if line.startswith("{") and line.endswith("}"))
    return [line for line in lines if line["event"] == name]


def options(*, lease: float, concurrency: int, grace: float) -> list[str]:
    """The options of `redrive worker`."""
    return ["--lease", f"{lease}s", "--concurrency", str(concurrency), "--grace", f"{grace}s"]


class WorkerProcess:
    """A `redrive worker` of its own."""

    def __init__(self, ground: Ground, name: str, *, lease: float = 2, concurrency: int = 20, grace: float = 1) -> None:
        self._log = ground.folder / f"{name}.log"
        given = options(lease=lease, concurrency=concurrency, grace=grace)
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "redrive", "worker", APP, *given],
                cwd=ROOT, env=ground.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still lives."""
        self._process.send_signal(number)

    def stop(self, timeout: float = 60) -> int:
        """End it gracefully; its exit code."""
        self.signal(signal.SIGTERM)
        return self._process.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


class Zygote:
    """The other end of `zygote.py`."""

    def __init__(self, ground: Ground, *, lease: float, concurrency: int, grace: float = 5) -> None:
        given = options(lease=lease, concurrency=concurrency, grace=grace)
        with (ground.folder / "zygote.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.zygote", str(ground.folder), *given],
                cwd=ROOT, env=ground.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def start(self) -> int:
        """A new worker's pid."""
        return self._ask("start")

    def kill(self, pid: int) -> int:
        """SIGKILL a worker; its exit code, -9 unless it ended before."""
        return self._ask(f"kill {pid}")

    def stop(self, pid: int) -> int:
        """SIGTERM a worker; its exit code."""
        return self._ask(f"stop {pid}")

    def lives(self, pid: int) -> bool:
        """Whether a worker has not ended by itself; if it has, it is reaped."""
        return self._ask(f"look {pid}") == 1

    def _ask(self, command: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the zygote died of {command!r}: see zygote.log"
        return int(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=60)  # the end of its input ends it and its workers
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers die with it
            self._process.communicate()
