"""What goes over the bus, and what is on record about it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self
from uuid import UUID

from redrive.errors import PayloadError, UsageError
from redrive.observe.traces import current_trace
from redrive.operator.json_views import encode_payload

QUEUE_CHARS_MAX = 47
"""What PGMQ allows."""
ENDING = "__commands"
DOMAIN = re.compile(rf"[a-z][a-z0-9_]{{0,{QUEUE_CHARS_MAX - len(ENDING) - 1}}}")
QUEUE = re.compile(rf"[a-z][a-z0-9_]{{0,{QUEUE_CHARS_MAX - 1}}}")
TEXT_CHARS_MAX = 150
PAGE_MAX = 1000
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class CommandStatus(StrEnum):
    """The status of a command."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    IN_TROUBLESHOOTING_QUEUE = "IN_TROUBLESHOOTING_QUEUE"


class BatchStatus(StrEnum):
    """The status of a batch. It is complete when none of its commands is open or in the troubleshooting queue."""

    OPEN = "OPEN"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_FAILURES = "COMPLETED_WITH_FAILURES"


class Outcome(StrEnum):
    """What a reply says."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCommand:
    """A command to be sent. Checked here, so that the bus only sees what it can store."""

    domain: str
    command_type: str
    command_id: str | UUID
    data: Any = None
    correlation_id: str | UUID | None = None
    reply_to: str | None = None
    max_attempts: int | None = None
    data_json: str = field(init=False, repr=False)
    trace: str | None = field(init=False, repr=False, compare=False)
    """The trace that it is made in: sends that share a commit are written in another."""

    def __post_init__(self) -> None:
        check_domain(self.domain)
        check_text("command_type", self.command_type)
        if "*" in self.command_type:
            raise UsageError(f"command_type must be a plain name without *, not {self.command_type!r}")
        for name in ("command_id", "correlation_id"):
            given = getattr(self, name)
            if isinstance(given, UUID):
                object.__setattr__(self, name, str(given))
            elif given is not None or name == "command_id":
                check_text(name, given)
        if self.reply_to is not None:
            check_reply_queue("reply_to", self.reply_to)
        most = self.max_attempts
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= 1_000_000):
            raise UsageError(f"max_attempts must be a whole number from 1 to 1,000,000, not {most!r}")
        object.__setattr__(self, "data_json", json_text(self.data))
        object.__setattr__(self, "trace", current_trace())


class Command(NamedTuple):
    """What a handler gets."""

    domain: str
    command_type: str
    command_id: str
    data: Any
    correlation_id: str | None = None
    reply_to: str | None = None
    batch_id: str | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """What is known of a command. `data` is there where one command is asked for and its message still exists."""

    id: int
    """Of its row: its task in the ledger `commands` has the same."""
    domain: str
    command_id: str
    command_type: str
    status: CommandStatus
    attempts: int
    max_attempts: int | None
    """The command's own limit, if it has one; else the handler's or the worker's holds."""
    queue_name: str
    msg_id: int | None
    due_at: datetime | None
    lease_until: datetime | None
    last_error_type: str | None
    last_error_code: str | None
    last_error_msg: str | None
    reply_to: str | None
    correlation_id: str | None
    batch_id: str | None
    created_at: datetime
    updated_at: datetime
    troubled_at: datetime | None
    """Since when it has been in the troubleshooting queue."""
    data: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One line of the record of a command."""

    domain: str
    command_id: str
    event_type: str
    at: datetime
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Commands that were sent together, counted by state."""

    domain: str
    batch_id: str
    name: str | None
    custom_data: Any
    status: BatchStatus
    total: int
    pending: int
    in_progress: int
    completed: int
    failed: int
    canceled: int
    in_troubleshooting: int
    created_at: datetime
    completed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the sender of a command is told in the end."""

    domain: str
    command_id: str
    command_type: str
    correlation_id: str | None
    outcome: Outcome
    result: Any = None
    error: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """The reply that a message in a queue stands for."""
        named = {name: message[name] for name in ("domain", "command_id", "command_type", "correlation_id")}
        return cls(
            **named, outcome=Outcome(message["outcome"]), result=message.get("result"), error=message.get("error")
        )


def queues_of(commands: Iterable[NewCommand]) -> dict[str, bool]:
    """The queues that commands need, in order, and whether workers choose there by kind."""
    needed: dict[str, bool] = {}
    for command in commands:
        if command.reply_to is not None:
            needed.setdefault(command.reply_to, False)
        needed[queue_of(command.domain)] = True
    return dict(sorted(needed.items()))


def queue_of(domain: str) -> str:
    """The queue that the commands of a domain wait in."""
    return f"{domain}{ENDING}"


def split_kind(kind: str) -> tuple[str, str]:
    """From `domain/type` to the queue and the type."""
    domain, _, command_type = kind.partition("/")
    return queue_of(domain), command_type


def join_kind(queue: str, command_type: str) -> str:
    """From the queue and the type back to `domain/type`."""
    return f"{queue.removesuffix(ENDING)}/{command_type}"


def check_domain(domain: str) -> str:
    """Return the domain if a queue can be named after it, else raise `UsageError`."""
    if not isinstance(domain, str) or not DOMAIN.fullmatch(domain):
        raise UsageError(
            f"domain must be 1 to {QUEUE_CHARS_MAX - len(ENDING)} lowercase letters, digits and _, beginning with a letter, "
            f"such as payments, not {domain!r:.80}"
        )
    return domain


def check_reply_queue(name: str, queue: str) -> str:
    """Return the queue if replies can go there, else raise `UsageError`."""
    if not isinstance(queue, str) or not QUEUE.fullmatch(queue):
        raise UsageError(
            f"{name} must be the name of a queue, up to {QUEUE_CHARS_MAX} lowercase letters, digits and _ "
            f"such as payments__replies, not {queue!r:.80}"
        )
    if queue.endswith(ENDING):
        raise UsageError(f"{name} must be a queue for replies: {queue!r} would be one for commands, as it ends so")
    return queue


def check_text(name: str, given: Any) -> str:
    """Return the text if it is neither empty, too long nor unstorable, else raise `UsageError`."""
    if not isinstance(given, str) or not 1 <= len(given) <= TEXT_CHARS_MAX:
        raise UsageError(f"{name} must be 1 to {TEXT_CHARS_MAX} characters of text, not {given!r:.80}")
    if "\0" in given or given != given.encode("utf-8", "replace").decode():
        raise UsageError(f"{name} holds a character that no database stores: {given!r:.80}")
    return given


def check_limit(limit: int) -> None:
    """Raise `UsageError` if a page cannot hold so many."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"limit must lie between 1 and {PAGE_MAX}, not {limit!r}")


def can_be_stored(*texts: str) -> bool:
    """Whether anything on the bus could have such a name. If not, no database is asked: some refuse such texts."""
    try:
        for one in texts:
            check_text("it", one)
    except UsageError:
        return False
    return True


def json_text(value: Any) -> str:
    """The value as JSON text that a message can hold, or a `PayloadError`."""
    if value is None:
        return "null"
    text = encode_payload(value)
    if _NUL.search(text):
        raise PayloadError("the payload holds a NUL character, which no PostgreSQL message can hold: leave it out")
    return text
