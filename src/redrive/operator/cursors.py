"""Where a page ended that is in the order of an instant: as a text that people and programs hand back."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from redrive.core.task import TaskId
from redrive.errors import UsageError

T = TypeVar("T")

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


def encode_cursor(said: Any) -> str:
    """JSON as a cursor carries it."""
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


def decode_cursor(text: str, read: Callable[[Any], T]) -> T:
    """What `read` makes of the JSON in a cursor; `UsageError` for any text that it cannot take, or that was not written here."""
    try:
        return read(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
    except (ValueError, TypeError, AssertionError, OverflowError, RecursionError):
        raise no_cursor() from None


def no_cursor() -> UsageError:
    """What is said of a text that is not a cursor of ours."""
    return UsageError("the cursor is not one that we gave out: begin again without it")


def write_cursor(position: Position) -> str:
    """The position as a text."""
    at = position.at
    if isinstance(at, datetime):
        at = EARLIEST if at.replace(tzinfo=None) == datetime.min else at.isoformat()
    return encode_cursor([at, str(position.id)])


def read_cursor(text: str, read_id: Callable[[str], TaskId]) -> Position:
    """The position that a text stands for; `UsageError` for any text that was not written here."""
    at, id_ = decode_cursor(text, _place)
    return Position(at, read_id(id_))


def _place(said: Any) -> tuple[Any, str]:
    at, id_ = said
    if isinstance(at, str) and at != EARLIEST:
        at = datetime.fromisoformat(at)
        assert at.tzinfo is not None
        at = at.astimezone(UTC)
    assert isinstance(id_, str)
    return float(at) if isinstance(at, int) else at, id_
