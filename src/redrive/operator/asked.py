"""A filter as people write it: in a query, in a form, in the options of a command. One reader, one set of sentences."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from redrive.core.durations import parse_duration
from redrive.core.states import State
from redrive.core.task import KEY_CHARS_MAX, KIND_CHARS_MAX, TaskId
from redrive.errors import UsageError
from redrive.ports import Filter

TEXT_CHARS_MAX = 500
CAUSE_CHARS_MAX = 64


def read_filter(
    *,
    state: State | str | None = None,
    kind: str | None = None,
    key: str | None = None,
    error: str | None = None,
    cause: str | None = None,
    older_than: timedelta | str | None = None,
    until: datetime | str | None = None,
    text: str | None = None,
    ids: Sequence[TaskId] | None = None,
) -> Filter:
    """The filter that was written; what is empty asks nothing. `UsageError` says what cannot be read."""
    return Filter(
        state=_state(state) if state else None,
        kind=_text("kind", kind, KIND_CHARS_MAX),
        key=_text("key", key, KEY_CHARS_MAX),
        error=_text("error", error, TEXT_CHARS_MAX),
        cause=_text("cause", cause, CAUSE_CHARS_MAX),
        older_than=_span(older_than),
        until=read_instant("until", until) if until else None,
        text=_text("text", text, TEXT_CHARS_MAX),
        ids=ids,
    )


def _state(given: State | str) -> State:
    try:
        return State(given)
    except ValueError:
        raise UsageError(f"there is no state {given!r:.80}: choose from {', '.join(State)}") from None


def _text(name: str, given: str | None, chars_max: int) -> str | None:
    if given is not None and len(given) > chars_max:
        raise UsageError(f"{name} is at most {chars_max} characters long, not {len(given):,}")
    return given or None


def _span(given: timedelta | str | None) -> timedelta | None:
    if isinstance(given, timedelta):
        return given
    return parse_duration(given) if given else None


def read_instant(name: str, given: datetime | str) -> datetime:
    """An instant as people write it; without an offset it is in UTC."""
    try:
        instant = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise UsageError(f"{name} is an instant such as 2026-01-31T09:00:00Z, not {given!r:.80}") from None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant
