"""Starting worker processes and ending them again: only those that were started here, each by its pid."""

import json
import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests import forks
from tests.forks import ROOT

from . import evidence

APP = "tests.faults.apps:app"
STOP_SECONDS = 150
"""However busy the machine is: a graceful stop that takes longer is a fault."""


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

    def __init__(
        self, ground: Ground, name: str, *, lease: float = 2, concurrency: int = 20, grace: float = 1, app: str = APP
    ) -> None:
        self._log = ground.folder / f"{name}.log"
        given = options(lease=lease, concurrency=concurrency, grace=grace)
        self._process = forks.run("worker", app, *given, folder=ROOT, log=self._log, environment=ground.environment)
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

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """End it gracefully, when it has begun: before, a signal just ends it. Its exit code."""
        ends = time.monotonic() + timeout
        while "working on" not in self.log and self.exit_code is None and time.monotonic() < ends:
            time.sleep(0.01)
        self.signal(signal.SIGTERM)
        return self._process.wait(timeout)

    def kill(self) -> int:
        """SIGKILL; its exit code, -9 unless it ended before."""
        self._process.kill()
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
