"""A first `LedgerTable` for a table that somebody names, from the names that such tables usually have."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Enum, Select, column, inspect, select, table

from redrive.core.table import Counts, LedgerTable, Words
from redrive.errors import TableError

_NAMES: dict[str, tuple[str, ...]] = {
    "key": ("idempotency_key", "message_id", "event_id", "key", "uuid", "id"),
    "id": ("id", "uuid"),
    "kind": ("kind", "event_type", "command_type", "job_type", "type"),
    "payload": ("payload", "data", "body", "args"),
    "status": ("status", "state"),
    "due": ("next_retry_at", "retry_after", "next_attempt_at", "due_at", "run_at", "available_at"),
    "first_due": ("scheduled_at", "scheduled_for", "send_at"),
    "count": ("retry_count", "retry_attempts", "attempts", "attempt_count", "failures", "tries", "retries"),
    "count_max": ("max_retries", "max_attempts", "failures_max"),
    "last_error": ("last_error", "error_message", "error"),
    "claimed_at": ("claimed_at", "started_at", "locked_at"),
    "done_at": ("applied_at", "completed_at", "processed_at", "delivered_at", "done_at"),
    "created_at": ("created_at", "inserted_at"),
    "updated_at": ("updated_at", "modified_at"),
    "deadline": ("expires_at", "deadline_at", "deadline"),
}
_WORDS: dict[str, tuple[str, ...]] = {
    "waiting": ("pending", "waiting", "queued", "new", "scheduled", "received", "available", "ready"),
    "claimed": ("processing", "claimed", "running", "in_progress", "executing", "started"),
    "done": ("completed", "complete", "done", "applied", "succeeded", "success", "delivered", "processed", "sent"),
    "dead": ("dead", "failed", "error", "discarded"),
    "cancelled": ("cancelled", "canceled"),
}
STATUSES_SHOWN_MAX = 20


def guess(connection: Connection, name: str, schema: str | None = None) -> LedgerTable:
    """The most likely mapping; what is not found keeps its default name and will be reported as missing."""
    inspector = inspect(connection)
    if not inspector.has_table(name, schema=schema):
        raise TableError(name, ["there is no such table"], [])
    there = [found["name"] for found in inspector.get_columns(name, schema=schema)]
    roles = {role: chosen for role, names in _NAMES.items() if (chosen := _first(names, there)) is not None}
    id_ = roles.pop("id", None)
    key = roles.pop("key", id_ or "id")
    count = roles.get("count", "failures")
    counts = Counts.RETRIES if "retr" in count else Counts.FAILURES
    statuses = _statuses(connection, name, schema, roles["status"]) if "status" in roles else []
    words = {role: chosen for role, names in _WORDS.items() if (chosen := _first(names, statuses)) is not None}
    return LedgerTable(
        name, schema=schema, key=key, id=id_ if id_ != key else None, words=Words(**words), counts=counts, **roles
    )


def as_code(guessed: LedgerTable) -> str:
    """The mapping as Python that can be pasted."""
    default = LedgerTable(guessed.name)
    shown = [f'    "{guessed.name}",']
    for name in LedgerTable.__dataclass_fields__:
        value = getattr(guessed, name)
        if name in ("name", "_") or value == getattr(default, name):
            continue
        if isinstance(value, Words):
            given = ", ".join(
                f"{word}={getattr(value, word)!r}" for word in Words.__dataclass_fields__ if getattr(value, word)
            )
            shown.append(f"    words=Words({given}),")
        else:
            shown.append(f"    {name}={str(value)!r},")
    return "LedgerTable(\n" + "\n".join(shown) + "\n)"


def _first(names: Sequence[str], there: Sequence[str]) -> str | None:
    return next((name for name in names if name in there), None)


def _statuses(connection: Connection, name: str, schema: str | None, status: str) -> list[str]:
    """The words that the status column may hold, if it is an enum, else those that it does hold."""
    for found in inspect(connection).get_columns(name, schema=schema):
        if found["name"] == status and isinstance(found["type"], Enum):
            return list(found["type"].enums)
    rows: Select[Any] = (
        select(column(status)).select_from(table(name, schema=schema)).distinct().limit(STATUSES_SHOWN_MAX)
    )
    return [str(word) for word in connection.execute(rows).scalars()]
