"""`/api/relay/review`: manual review by people. Looking needs the scope viewer or this machine, acting the scope operator."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from redrive.access.keys import ApiKey
from redrive.errors import TooSlowError
from redrive.extend import Actor, redact
from redrive.http.errors import ApiError, ErrorAnswer
from redrive.http.guard import require, require_unless_loopback
from redrive.http.reason import Reason
from redrive.operator.json_views import instant_json, redacted
from redrive.systems.relay.desk import COUNTED_MAX, QUEUES_MAX, Asked, Deed, Review
from redrive.systems.relay.preview import preview
from redrive.systems.relay.settings import QUEUE_BYTES_MAX
from redrive.systems.relay.tables import MESSAGE_ID_CHARS_MAX

IDS_MAX = 1000
PAGE_MAX = 200
TEXT_CHARS_MAX = 500
ID_MAX = 2**63 - 1

LOOKING = [Depends(require_unless_loopback("viewer"))]
Operator = Annotated[ApiKey, Depends(require("operator"))]


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("no message holds a NUL")
    return text


def _with_zone(instant: datetime) -> datetime:
    try:
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except OverflowError:
        raise ValueError("no calendar has this instant") from None


Text = Annotated[str, AfterValidator(_no_nul)]
Id = Annotated[int, Field(strict=True, ge=1, le=ID_MAX)]


class Body(BaseModel):
    """A body; a field that is not known is a mistake that somebody should hear of."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class ReviewFilter(Body):
    """Which messages in review; all conditions must hold."""

    # None of them may be empty: a program whose variable is would act on everything.
    queue: Text | None = Field(
        default=None, min_length=1, max_length=QUEUE_BYTES_MAX, description="The queue that they failed in"
    )
    error: Text | None = Field(
        default=None, min_length=1, max_length=TEXT_CHARS_MAX, description="What their error contains"
    )
    message_id: Text | None = Field(
        default=None, min_length=1, max_length=MESSAGE_ID_CHARS_MAX, description="The one with this id"
    )
    until: Annotated[datetime, AfterValidator(_with_zone)] | None = Field(
        default=None, description="Only what was in review at this instant already, as a dry run answered it"
    )

    def asked(self) -> Asked:
        """The same for the table."""
        return Asked(queue=self.queue, error=self.error, message_id=self.message_id, until=self.until)


class ReviewAct(Body):
    """Which messages, by their numbers or by a filter, and why."""

    ids: list[Id] | None = Field(default=None, min_length=1, max_length=IDS_MAX, description="The ids of their rows")
    filter: ReviewFilter | None = Field(default=None, description="All that match; `{}` is everything in review")
    reason: Reason
    dry_run: bool = Field(default=False, description="Only count")
    at_most: int | None = Field(default=None, ge=0, description="With a filter: the number that was shown, never more")

    @model_validator(mode="after")
    def _one_of_both(self) -> "ReviewAct":
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give either ids or a filter")
        return self


class ReviewMessage(BaseModel):
    """A message, without its payload."""

    id: int = Field(description="Of its row: what acts take")
    message_id: str
    queue: str = Field(description="Where it failed, and goes when it is resubmitted")
    error: str = Field(description="What it failed with, as the upstream said")
    retry_count: int
    max_retries: int
    status: Literal["pending", "retried", "failed", "resolved"]
    last_error: str | None = Field(description="What the relay says of it")
    due_at: str | None = Field(description="When it goes out, while it is pending")
    created_at: str = Field(description="When it first arrived")
    changed_at: str = Field(description="When it came to where it is: for one in review, when its retries were spent")
    content_type: str | None
    payload_bytes: int


class ReviewPayload(BaseModel):
    """What can be shown of a payload; what looks like a secret is hidden."""

    format: Literal["json", "text", "base64", "empty"]
    text: str = Field(description="JSON is indented; what is no text is base64")
    bytes: int = Field(description="How long the payload is")
    whole: bool = Field(description="Whether all of it is shown")


class ReviewOne(ReviewMessage):
    """A message with its headers and a preview of its payload."""

    headers: dict[str, Any] = Field(description="Those that go out with it, redacted")
    payload: ReviewPayload


class ReviewPage(BaseModel):
    """Some messages, the newest first."""

    messages: list[ReviewMessage]
    cursor: int | None = Field(description="For the next page; null after the last")


class QueueCount(BaseModel):
    """How many messages of a queue wait."""

    queue: str
    amount: int


class ReviewWaiting(BaseModel):
    """How much waits for a person."""

    total: int = Field(description=f"Counted up to {COUNTED_MAX:,}")
    queues: list[QueueCount] = Field(
        description=f"Up to {QUEUES_MAX}, those with the oldest messages, each counted up to {COUNTED_MAX:,}; the largest first"
    )
    more: bool = Field(description="Whether messages of other queues wait too")


class ReviewDone(BaseModel):
    """What came of an act."""

    matched: int = Field(description="How many it was about")
    changed: int = Field(description="How many changed; none in a dry run")
    refused: dict[int, str] = Field(description="Of ids that did not change: why not")
    until: str | None = Field(
        description="Send it with the filter, and the number as `at_most`: nothing is acted on that came later, nor more than that"
    )
    complete: bool = Field(
        description="False: it took long; send it again with the same `until` for the rest, and `at_most` less `matched`"
    )


def message_json(row: Any) -> dict[str, Any]:
    """A row as it is shown. Errors are redacted here too: others may have written into the table."""
    return {
        "id": row.id,
        "message_id": row.message_id,
        "queue": row.original_queue,
        "error": redact(row.error_reason),
        "retry_count": row.retry_count,
        "max_retries": row.max_retries,
        "status": row.status,
        "last_error": row.last_error and redact(row.last_error),
        "due_at": instant_json(row.next_retry_at),
        "created_at": instant_json(row.created_at),
        "changed_at": instant_json(row.updated_at),
        "content_type": row.content_type,
        "payload_bytes": row.payload_bytes,
    }


def one_json(row: Any) -> dict[str, Any]:
    """The same with headers and payload."""
    shown = preview(bytes(row.head), row.payload_bytes)
    payload = {"format": shown.format, "text": shown.text, "bytes": shown.bytes, "whole": shown.whole}
    return message_json(row) | {"headers": redacted(row.headers), "payload": payload}


TOO_SLOW = "the error's text is looked for message by message, and these are too many: name the queue as well"


@contextmanager
def in_time(asked: Asked) -> Iterator[None]:
    """Refuse a look that no index serves. All others are served by one: where such a look is slow, the store is busy."""
    try:
        yield
    except TooSlowError:
        if asked.error is None:
            raise
        raise ApiError(422, "too_slow", TOO_SLOW) from None


def make_router(review: Review) -> APIRouter:
    """The routes over the messages in review."""
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 422, 503)
    }
    router = APIRouter(prefix="/api/relay/review", tags=["relay"], responses=refusals)

    @router.get("", summary="Messages that wait for a person, the newest first", dependencies=LOOKING)
    async def listed(
        queue: Annotated[Text | None, Query(description="The queue they failed in", max_length=QUEUE_BYTES_MAX)] = None,
        error: Annotated[Text | None, Query(description="What the error contains", max_length=TEXT_CHARS_MAX)] = None,
        message_id: Annotated[Text | None, Query(max_length=MESSAGE_ID_CHARS_MAX)] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
        cursor: Annotated[int | None, Query(description="Where the page before ended", ge=1, le=ID_MAX)] = None,
    ) -> ReviewPage:
        """Pages, queues and ids are served by indexes. A text that is looked for in too many is refused with `too_slow`."""
        asked = Asked(queue=queue or None, error=error or None, message_id=message_id or None)
        with in_time(asked):
            rows, following = await review.page(asked, before=cursor, limit=limit)
        return ReviewPage(messages=[ReviewMessage(**message_json(row)) for row in rows], cursor=following)

    @router.get("/queues", summary="How many messages wait for a person, by queue", dependencies=LOOKING)
    async def queues() -> ReviewWaiting:
        """In all, and of each queue."""
        waiting = await review.waiting()
        counts = [QueueCount(queue=queue, amount=amount) for queue, amount in waiting.queues]
        return ReviewWaiting(total=waiting.total, queues=counts, more=waiting.more)

    @router.get("/{id}", summary="One message with its headers and a preview of its payload", dependencies=LOOKING)
    async def one(id: Annotated[int, Path(ge=1, le=ID_MAX, description="Of its row")]) -> ReviewOne:
        """Wherever it stands now: also one that somebody else has resubmitted or resolved."""
        row = await review.get(id)
        if row is None:
            raise ApiError(404, "message_unknown", f"there is no message {id} in the relay's table")
        return ReviewOne(**one_json(row))

    @router.post("/resubmit", summary="Send messages to their queues again, now and with a fresh count")
    async def resubmit(body: ReviewAct, key: Operator) -> ReviewDone:
        """The same as a redrive of the ledger `retry_queue`.

        What goes out says who and when in `x-resubmitted-by` and `x-resubmitted-at`.
        """
        return await _act(review, Deed.RESUBMIT, body, key)

    @router.post("/resolve", summary="Close messages that a person has dealt with")
    async def resolve(body: ReviewAct, key: Operator) -> ReviewDone:
        """They will not be sent again, unless they fail again and come back by themselves."""
        return await _act(review, Deed.RESOLVE, body, key)

    return router


async def _act(review: Review, deed: Deed, body: ReviewAct, key: ApiKey) -> ReviewDone:
    actor = Actor(name=key.owner, reason=body.reason)
    if body.ids is not None:
        ids = list(dict.fromkeys(body.ids))
        if body.dry_run:
            matched = await review.count(Asked(ids=ids))
            return ReviewDone(matched=matched, changed=0, refused={}, until=None, complete=True)
        changed, refused = await review.act(deed, ids, actor)
        return ReviewDone(matched=len(ids), changed=len(changed), refused=refused, until=None, complete=True)
    assert body.filter is not None
    until = body.filter.until or await review.present()
    asked = body.filter.model_copy(update={"until": until}).asked()
    with in_time(asked):
        if body.dry_run:
            matched, amount, complete = await review.count(asked), 0, True
        else:
            matched, amount, complete = await review.act_on_all(deed, asked, actor, at_most=body.at_most)
    return ReviewDone(matched=matched, changed=amount, refused={}, until=instant_json(until), complete=complete)
