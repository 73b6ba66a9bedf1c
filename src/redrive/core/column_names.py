"""What columns and status words are usually called: which name stands for which role of a `LedgerTable`.

Used where a mapping is read from a model (`core.models`) and where it is read from a table in a database (`ledgers.adopt.guess`).
"""

import re
from collections.abc import Iterable

_ROLES: dict[str, tuple[str, ...]] = {
    "kind": ("kind", "event_type", "command_type", "job_type", "type"),
    "status": ("status", "state"),
    "due": (
        "next_retry_at", "retry_after", "next_attempt_at", "due_at", "run_at", "available_at", "send_after", "run_after",
        "due_date",
    ),
    "first_due": ("scheduled_at", "scheduled_for", "send_at"),
    "count": (
        "retry_count", "retry_attempts", "attempts", "attempt_count", "failures", "failure_count", "tries", "retries",
    ),
    "count_max": ("max_retries", "max_attempts", "max_tries", "failures_max"),
    "last_error": ("last_error", "error_message", "error"),
    "lease_until": ("lease_until",),
    "claim_id": ("claim_id",),
    "claimed_at": ("claimed_at", "started_at", "locked_at"),
    "done_at": ("applied_at", "completed_at", "processed_at", "delivered_at", "done_at", "sent_at"),
    "ended_at": ("ended_at", "finished_at"),
    "created_at": ("created_at", "inserted_at"),
    "updated_at": ("updated_at", "modified_at"),
    "deadline": ("deadline_at", "deadline"),
}  # fmt: skip
_WORDS: dict[str, tuple[str, ...]] = {
    "waiting": ("pending", "waiting", "queued", "new", "scheduled", "received", "available", "ready"),
    "retrying": ("retrying", "retry", "retryable"),
    "claimed": ("processing", "claimed", "running", "in_progress", "executing", "started"),
    "done": ("completed", "complete", "done", "applied", "succeeded", "success", "delivered", "processed", "sent"),
    "dead": ("dead", "failed", "error", "discarded"),
    "cancelled": ("cancelled", "canceled"),
}
KEYS = ("idempotency_key", "message_id", "event_id", "message_key", "key", "uuid")
PAYLOADS = ("payload", "data", "body", "args")
DEADLINES = ("expires_at",)
WORDS_NEEDED = ("waiting", "done", "dead")
"""What a table must have words for."""


def usual_columns(there: Iterable[str]) -> dict[str, str]:
    """The columns that are called as one usually calls them, by role."""
    names = list(there)
    return {role: chosen for role, usual in _ROLES.items() if (chosen := first_of(usual, names)) is not None}


def usual_words(there: Iterable[str]) -> dict[str, str]:
    """The status words that mean what they usually mean, by state."""
    words = list(there)
    return {state: chosen for state, usual in _WORDS.items() if (chosen := first_of(usual, words)) is not None}


def counts_retries(count: str) -> bool:
    """Whether the name of a count says that it counts retries."""
    return "retr" in count


def first_of(names: Iterable[str], there: Iterable[str]) -> str | None:
    """The first of the names that is there, however it is written: `dueAt` is `due_at`."""
    written = {_plain(one): one for one in reversed(list(there))}
    return next((written[_plain(name)] for name in names if _plain(name) in written), None)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()
