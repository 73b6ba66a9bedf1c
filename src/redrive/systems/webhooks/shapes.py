"""What the routes take and answer, for their description and for whoever reads the code."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from redrive import State, Task
from redrive.operator.json_views import fields_json, instant_json
from redrive.systems.webhooks.intake import Receipt
from redrive.systems.webhooks.tables import WORDS

KEY_CHARS_MAX = 500
TYPE_CHARS_MAX = 200
STATUSES = {WORDS.word(state): state for state in (State.WAITING, State.CLAIMED, State.DONE, State.DEAD)}
"""The states by the words of the table."""

_INSTANT = "2026-01-31T09:00:00.000000Z"
_ID = "019c12f0-8a80-7000-8000-000000000001"


class WebhookIn(BaseModel):
    """A webhook, as POST /webhooks takes it."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "example": {"idempotency_key": "order-7-paid", "event_type": "order.paid", "payload": {"order": 7}}
        },
    )

    idempotency_key: str = Field(
        min_length=1, max_length=KEY_CHARS_MAX, description="The sender's name for this webhook: it is processed once"
    )
    event_type: str = Field(min_length=1, max_length=TYPE_CHARS_MAX, description="Chooses the handler")
    payload: dict[str, Any] = Field(description="What the handler gets")


class ReceiptOut(BaseModel):
    """A webhook is stored, now or before."""

    id: str = Field(examples=[_ID])
    idempotency_key: str = Field(examples=["order-7-paid"])
    status: str = Field(description="pending, processing, completed or failed", examples=["pending"])
    created_at: str = Field(description="When it was stored, in ISO 8601 UTC", examples=[_INSTANT])


class WebhookOut(BaseModel):
    """A webhook and what became of it."""

    id: str = Field(examples=[_ID])
    idempotency_key: str = Field(examples=["order-7-paid"])
    event_type: str = Field(examples=["order.paid"])
    status: str = Field(description="pending, processing, completed or failed", examples=["failed"])
    attempts: int = Field(description="How often it was tried", examples=[5])
    last_error: str | None = Field(description="What the last failed try said", examples=["TimeoutError: too slow"])
    retry_after: str | None = Field(description="When it is tried again; null: now, or never", examples=[None])
    created_at: str = Field(examples=[_INSTANT])
    updated_at: str = Field(examples=[_INSTANT])


class WebhookPage(BaseModel):
    """Some webhooks, oldest first."""

    webhooks: list[WebhookOut]
    after: str | None = Field(
        description="Give it as `after` for the next page; null: this is the last", examples=[_ID]
    )


def receipt_json(receipt: Receipt) -> dict[str, Any]:
    """A receipt as `ReceiptOut` says."""
    return {
        "id": receipt.id,
        "idempotency_key": receipt.idempotency_key,
        "status": receipt.status,
        "created_at": instant_json(receipt.created_at),
    }


def webhook_json(task: Task) -> dict[str, Any]:
    """A row as `WebhookOut` says."""
    waits = task.due_at is not None and (task.created_at is None or task.due_at > task.created_at)
    return fields_json(
        task, WebhookOut.model_fields, id=str(task.id), idempotency_key=task.key, event_type=task.kind,
        status=WORDS.word(task.state), attempts=task.failures + (task.state is State.CLAIMED),
        retry_after=task.due_at if waits else None,
    )  # fmt: skip
