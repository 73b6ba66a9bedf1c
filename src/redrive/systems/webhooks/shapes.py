"""What the routes take and answer, for their description and for whoever reads the code."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from redrive.http.reason import Reason
from redrive.http.shape import Body, WellFormed
from redrive.lane import Acted
from redrive.operator.json_views import fields_json, instant_json, redacted
from redrive.operator.words import redact
from redrive.systems.webhooks.desk import UnhandledType
from redrive.systems.webhooks.intake import Receipt

KEY_CHARS_MAX = 500
TYPE_CHARS_MAX = 200
IDS_MAX = 1000

_INSTANT = "2026-01-31T09:00:00.000000Z"
_ID = "019c12f0-8a80-7000-8000-000000000001"


def _storable(given: str) -> str:
    if "\0" in given:
        raise ValueError("it must not hold a NUL character")
    return given


Name = Annotated[WellFormed, AfterValidator(_storable), Field(min_length=1, max_length=KEY_CHARS_MAX)]
"""An id, a key or a type to look for."""


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
    status: str = Field(description="pending, processing, completed, failed or cancelled", examples=["pending"])
    created_at: str = Field(description="When it was stored, in ISO 8601 UTC", examples=[_INSTANT])


class WebhookOut(BaseModel):
    """A webhook and what became of it."""

    id: str = Field(examples=[_ID])
    idempotency_key: str = Field(examples=["order-7-paid"])
    event_type: str = Field(examples=["order.paid"])
    status: str = Field(description="pending, processing, completed, failed or cancelled", examples=["failed"])
    attempts: int = Field(description="How often it was tried", examples=[5])
    last_error: str | None = Field(description="What the last failed try said", examples=["TimeoutError: too slow"])
    retry_after: str | None = Field(description="When it is tried again; null: now, or never", examples=[None])
    created_at: str = Field(examples=[_INSTANT])
    updated_at: str = Field(examples=[_INSTANT])


class WebhookOne(WebhookOut):
    """One webhook, what became of it, and what it holds."""

    payload: Any = Field(
        description="What the handler gets; what looks like a secret is not shown", examples=[{"order": 7}]
    )


class WebhookPage(BaseModel):
    """Some webhooks, oldest first."""

    webhooks: list[WebhookOut]
    after: str | None = Field(
        description="Give it as `after` for the next page; null: this is the last", examples=[_ID]
    )


class UnhandledOut(BaseModel):
    """A type that no worker handles."""

    event_type: str = Field(examples=["order.archived"])
    waiting: int = Field(description="How many webhooks of it wait", examples=[12])
    oldest: str | None = Field(description="Since when", examples=[_INSTANT])


class UnhandledTypes(BaseModel):
    """Types that no worker handles, the one with most webhooks first."""

    types: list[UnhandledOut]


class WebhookActIn(Body):
    """Which webhooks, and why: by ids or idempotency keys, or all of a type that are in the right state."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"event_type": "order.archived", "reason": "we do not need them"}}
    )
    ids: Annotated[list[Name], Field(min_length=1, max_length=IDS_MAX)] | None = None
    event_type: Name | None = None
    reason: Reason

    @model_validator(mode="after")
    def _one_of_both(self) -> "WebhookActIn":
        if (self.ids is None) == (self.event_type is None):
            raise ValueError("give either ids or an event_type")
        return self


class WebhookActOut(BaseModel):
    """What an act came to."""

    changed: int = Field(description="How many webhooks changed")
    refused: dict[str, str] = Field(description="The others by their ids, and why they were left alone")
    complete: bool = Field(description="Whether all were looked at; if not, the same again goes on")


def act_json(acted: Acted) -> dict[str, Any]:
    """An act as `WebhookActOut` says."""
    refused = {str(name): why for name, why in [*acted.refused.items()][:IDS_MAX]}
    return {"changed": len(acted.changed), "refused": refused, "complete": acted.complete}


def unhandled_json(types: Sequence[UnhandledType]) -> dict[str, Any]:
    """Types as `UnhandledTypes` says."""
    return {"types": [fields_json(one, UnhandledOut.model_fields) for one in types]}


def receipt_json(receipt: Receipt) -> dict[str, Any]:
    """A receipt as `ReceiptOut` says."""
    return {
        "id": receipt.id,
        "idempotency_key": receipt.idempotency_key,
        "status": receipt.status,
        "created_at": instant_json(receipt.created_at),
    }


def webhook_json(row: Any) -> dict[str, Any]:
    """A row as `WebhookOut` says."""
    waits = row.retry_after is not None and (row.created_at is None or row.retry_after > row.created_at)
    error = None if row.last_error is None else redact(row.last_error)  # others may have written it
    return fields_json(row, WebhookOut.model_fields, retry_after=row.retry_after if waits else None, last_error=error)


def one_json(row: Any, payload: Any) -> dict[str, Any]:
    """A row with its payload, as `WebhookOne` says."""
    return webhook_json(row) | {"payload": redacted(payload)}
