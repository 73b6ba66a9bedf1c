"""Tasks that an operation brought back and that failed again: of the same cause as before, or of a new one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from redrive.core.cause import cause_of
from redrive.core.failure import redact
from redrive.core.task import Attempt
from redrive.operator.operations import SetTask


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAgain:
    """One task that failed again, and what of."""

    task_id: str
    step: int | None
    ended_at: datetime | None
    error: str = ""
    """As it may be shown."""
    at: str | None = None
    """The line of the user's code, where one is known."""
    same: bool | None = None
    """Whether it was of the same cause as before; None where the history does not tell."""


def failed_again(task: SetTask, tries: Sequence[Attempt]) -> FailedAgain:
    """What became of a task: its failed tries, the newest first, fall into those before its release and those after."""
    released = task.released_at
    after = next((one for one in tries if released is not None and one.ended_at >= released), None)
    before = next((one for one in tries if released is not None and one.ended_at < released), None)
    same = None if after is None or before is None else _cause(after) == _cause(before)
    return FailedAgain(
        task_id=task.task_id, step=task.step, ended_at=task.ended_at, same=same,
        error="" if after is None else redact(after.error or ""), at=None if after is None else _line(after),
    )  # fmt: skip


def split_words(found: Sequence[FailedAgain], total: int) -> str:
    """`3 of the same cause, 1 of a new one`, of all that failed again or of the last ones that were looked at."""
    same, new = sum(one.same is True for one in found), sum(one.same is False for one in found)
    parts = [f"{same:,} of the same cause"] if same else []
    if new:
        parts.append(f"{new:,} of a new one" if new == 1 or same else f"{new:,} of new ones")
    if unknown := len(found) - same - new:
        parts.append(f"of {unknown:,} the history does not tell")
    said = ", ".join(parts)
    return said if len(found) >= total else f"of the last {len(found):,}: {said}"


def _line(one: Attempt) -> str | None:
    return (one.explanation or {}).get("at")


def _cause(one: Attempt) -> str:
    return cause_of(redact(one.error or ""), at=_line(one)).id
