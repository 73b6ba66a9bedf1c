"""What the operator's routes take and answer."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from redrive.http.reason import Reason
from redrive.lane import Page
from redrive.operator.json_views import fields_json, redacted
from redrive.systems.commands.desk import BULK_MAX
from redrive.systems.commands.values import (
    TEXT_CHARS_MAX,
    AuditEvent,
    BatchRecord,
    BatchStatus,
    CommandRecord,
    CommandStatus,
)

DOMAIN_CHARS_MAX = 50
AUDIT_MAX = 500

Instant = Annotated[str, Field(examples=["2026-01-31T09:00:00.000000Z"])]


class ErrorOut(BaseModel):
    """What went wrong last. Texts that look like secrets are hidden."""

    type: str | None = Field(description="TRANSIENT, PERMANENT, BUSINESS_RULE, WORKER_LOST or NO_HANDLER")
    code: str | None = Field(description="The code that the handler gave, or the class of the exception")
    message: str | None


class CommandOut(BaseModel):
    """A command."""

    domain: str
    command_id: str
    command_type: str
    status: CommandStatus
    attempts: int = Field(description="How often it was tried since it was sent, or sent again")
    max_attempts: int | None = Field(description="Its own limit; null if the handler's or the worker's applies")
    last_error: ErrorOut | None
    troubled_at: Instant | None = Field(
        description="Since when it has been in the troubleshooting queue; null if it is not"
    )
    due_at: Instant | None
    lease_until: Instant | None
    queue_name: str
    msg_id: int | None = Field(description="Its message in PGMQ; null on SQLite")
    reply_to: str | None
    correlation_id: str | None
    batch_id: str | None
    created_at: Instant
    updated_at: Instant
    task_id: int = Field(
        description="Its task in the ledger `commands`: `/api/tasks/commands/{task_id}` has its attempts"
    )


class AuditLineOut(BaseModel):
    """A line of the audit."""

    at: Instant
    event_type: str = Field(examples=["MOVED_TO_TROUBLESHOOTING_QUEUE"])
    details: dict[str, Any]


class CommandDetails(CommandOut):
    """Everything that is known about a command."""

    data: Any = Field(description="Redacted; on PostgreSQL null once its message is gone")
    audit: list[AuditLineOut] = Field(description="Oldest first, no more than the latest 500 lines")


class PageOut(BaseModel):
    """Commands, newest first."""

    commands: list[CommandOut]
    cursor: str | None = Field(
        description="For the next page; null after the last. A page reads 50,000 commands at most: if few of them match it is "
        "short, and the cursor continues from there"
    )


class QueueOut(PageOut):
    """The troubleshooting queue, newest first."""

    waiting: dict[str, int] | None = Field(
        description="How many commands of each domain are in the queue, among the latest 100,000; null with a cursor"
    )


class BatchOut(BaseModel):
    """A batch, with its commands counted by state."""

    domain: str
    batch_id: str
    name: str | None
    custom_data: Any = Field(description="Redacted")
    status: BatchStatus
    total: int
    pending: int
    in_progress: int
    completed: int
    failed: int
    canceled: int
    in_troubleshooting: int
    created_at: Instant
    completed_at: Instant | None


class CommandActIn(BaseModel):
    """Which commands of a domain, and why."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    domain: str = Field(max_length=DOMAIN_CHARS_MAX, examples=["payments"])
    ids: list[Annotated[str, Field(max_length=TEXT_CHARS_MAX)]] = Field(
        min_length=1, max_length=BULK_MAX, description="Their ids in the domain", examples=[["debit-7"]]
    )
    reason: Reason


class CompleteIn(CommandActIn):
    """Which commands of a domain, why, and what their senders are told."""

    result: Any = Field(default=None, description="Any JSON; it is part of each reply", examples=[{"debited": 10}])


class ActOut(BaseModel):
    """The result of an act."""

    changed: int = Field(description="How many commands changed")
    refused: dict[str, str] = Field(description="Why the others did not, by id")


def command_json(one: CommandRecord) -> dict[str, Any]:
    """A command, without its data."""
    error = {"type": one.last_error_type, "code": one.last_error_code, "message": one.last_error_msg}
    last_error = redacted(error) if one.last_error_type is not None else None
    return fields_json(one, CommandOut.model_fields, last_error=last_error, task_id=one.id)


def page_json(page: Page[CommandRecord]) -> dict[str, Any]:
    """A page of commands."""
    return {"commands": [command_json(one) for one in page.items], "cursor": page.cursor}


def details_json(one: CommandRecord, audit: Sequence[AuditEvent]) -> dict[str, Any]:
    """A command with its data and its audit."""
    lines = [fields_json(event, AuditLineOut.model_fields, details=redacted(event.details)) for event in audit]
    return command_json(one) | {"data": redacted(one.data), "audit": lines}


def batch_json(batch: BatchRecord) -> dict[str, Any]:
    """A batch."""
    return fields_json(batch, BatchOut.model_fields, custom_data=redacted(batch.custom_data))
