"""What a command said, in this process or in one of its own."""

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tests.forks import Process

PATIENCE_SECONDS = 300
"""How long anything may take on a busy machine before a test says that it does not happen."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)


class Started:
    """A command in a process of its own, with what it has said so far."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        """All of stdout and stderr."""
        return self._log.read_text()

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Come back when the process has said this so often."""
        until(lambda: self.said.count(text) >= times, lambda: f"{text!r} ×{times} was not said, but:\n{self.said}")

    def end(self, signal: int) -> int:
        """Send a signal, and the exit code."""
        self.process.send_signal(signal)
        return self.process.wait(PATIENCE_SECONDS)


def until(holds: Callable[[], bool], why: Callable[[], str] = lambda: "", *, every: float = 0.02) -> None:
    """Come back when it holds; what runs in other processes gives no other sign. To ask by a command costs, so ask that seldom."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < ends, why()
        time.sleep(every)


async def execute(url: str, *statements: str) -> None:
    """Run statements with a plain driver."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        return
    session = await asyncpg.connect(url)
    for statement in statements:
        await session.execute(statement)
    await session.close()
