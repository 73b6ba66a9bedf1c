"""Where a page ended that is in the order of an instant: as a text that people and programs hand back."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redrive.core.task import TaskId
from redrive.errors import UsageError

EARLIEST = "earliest"
"""PostgreSQL's -infinity has no place in a calendar."""


@dataclass(frozen=True, slots=True)
class Position:
    """Between two rows: the instant and the id of the one before. By id alone there is no instant."""

    at: Any
    id: TaskId

    def check(self, type_: type) -> None:
        """A position between tasks of another filter may have an instant of another kind, or none."""
        if not isinstance(self.at, type_) and not (self.at == EARLIEST and type_ is datetime):
            raise UsageError("the cursor belongs to another filter: begin again without it")


def write_cursor(position: Position) -> str:
    """The position as a text."""
    at = position.at
    if isinstance(at, datetime):
        at = EARLIEST if at.replace(tzinfo=None) == datetime.min else at.isoformat()
    said = json.dumps([at, str(position.id)])
    return base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")


def read_cursor(text: str, read_id: Callable[[str], TaskId]) -> Position:
    """The position that a text stands for; `UsageError` for any text that was not written here."""
    try:
        at, id_ = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if isinstance(at, str) and at != EARLIEST:
            at = datetime.fromisoformat(at)
            assert at.tzinfo is not None
            at = at.astimezone(UTC)
        at = float(at) if isinstance(at, int) else at
        assert isinstance(id_, str)
    except (ValueError, TypeError, AssertionError, OverflowError, RecursionError):
        raise UsageError("the cursor is not one of ours: begin again without it") from None
    return Position(at, read_id(id_))
