"""What handlers leave on record: one line per event, appended in one write, so it is there even if the process dies next."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redrive import Context, Task

VARIABLE = "REDRIVE_FAULTS_EVIDENCE"
"""The environment variable that names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Something that a handler did."""

    what: str
    """`start`, and then at most one of `end`, `failed`, `cancelled`."""
    key: str
    task: str
    claim: str
    attempt: int
    pid: int
    at: float


def write(what: str, task: Task, context: Context) -> None:
    """Append a line. A single O_APPEND write of this size is whole or absent, whoever else writes and whatever dies."""
    line = {
        "what": what, "key": task.key, "task": str(task.id), "claim": str(context.claim.claim_id),
        "attempt": context.attempt, "pid": os.getpid(), "at": time.time(),
    }  # fmt: skip
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def on_record(task: Task, context: Context) -> Iterator[None]:
    """Record the start of a run and how it ended, if it lives to see the end."""
    write("start", task, context)
    try:
        yield
    except Exception:
        write("failed", task, context)
        raise
    except BaseException:
        write("cancelled", task, context)
        raise
    write("end", task, context)


def read(file: Path) -> list[Line]:
    """All lines so far."""
    if not file.exists():
        return []
    return [Line(**json.loads(line)) for line in file.read_text().splitlines()]
