"""What the routes of manual review take and answer, and how a payload is shown: JSON or text where it is that, else base64.

What looks like a secret is hidden, also where others have written into the table.
"""

import codecs
import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from redrive.http.reason import Reason
from redrive.http.shape import Body
from redrive.lane import Page
from redrive.operator.json_views import fields_json, redacted
from redrive.operator.words import redact
from redrive.systems.relay.desk import COUNTED_MAX, QUEUES_MAX, Asked
from redrive.systems.relay.settings import QUEUE_BYTES_MAX
from redrive.systems.relay.tables import MESSAGE_ID_CHARS_MAX

IDS_MAX = 1000
ERROR_CHARS_MAX = 500
"""Of a text that errors are searched for."""
ID_MAX = 2**63 - 1
TEXT_CHARS_MAX = 16_384
"""So much of a payload is shown as text."""
BINARY_BYTES_MAX = 4096
"""So much of one that is not text."""
_LAYOUT = frozenset("\t\n\r")


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it must not hold a NUL character")
    return text


def _with_zone(instant: datetime) -> datetime:
    try:
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except OverflowError:
        raise ValueError("there is no such instant") from None


Text = Annotated[str, AfterValidator(_no_nul)]
Id = Annotated[int, Field(strict=True, ge=1, le=ID_MAX)]


class ReviewFilter(Body):
    """Which messages in review; all conditions must hold."""

    # None of them may be empty: a program whose variable is would act on everything.
    queue: Text | None = Field(
        default=None, min_length=1, max_length=QUEUE_BYTES_MAX, description="The queue that they failed in"
    )
    error: Text | None = Field(
        default=None, min_length=1, max_length=ERROR_CHARS_MAX, description="What their error contains"
    )
    message_id: Text | None = Field(
        default=None, min_length=1, max_length=MESSAGE_ID_CHARS_MAX, description="The one with this id"
    )
    until: Annotated[datetime, AfterValidator(_with_zone)] | None = Field(
        default=None, description="Only what was in review at this instant already, as a dry run answered it"
    )

    def asked(self, until: datetime) -> Asked:
        """The same for the table, with an end."""
        return Asked(queue=self.queue, error=self.error, message_id=self.message_id, until=until)


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
    text: str = Field(description="JSON is indented; what is not text is base64")
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

    @classmethod
    def of(cls, page: Page[Any]) -> "ReviewPage":
        """A page of the desk."""
        return cls.model_validate({"messages": [message_of(row) for row in page.items], "cursor": page.cursor})


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
    refused: dict[int, str] = Field(default={}, description="Of ids that did not change: why not")
    until: str | None = Field(
        default=None,
        description="Send it with the filter, and the number as `at_most`: nothing is acted on that came later, nor more than that",
    )
    complete: bool = Field(
        default=True,
        description="False: it took long; send it again with the same `until` for the rest, and `at_most` less `matched`",
    )


def message_of(row: Any) -> ReviewMessage:
    """A row of the table as it is shown in a list."""
    return ReviewMessage(**_fields(row))


def one_of(row: Any) -> ReviewOne:
    """The same with headers and payload."""
    return ReviewOne(**_fields(row), headers=redacted(row.headers), payload=preview(bytes(row.head), row.payload_bytes))


def _fields(row: Any) -> dict[str, Any]:
    return fields_json(
        row, ReviewMessage.model_fields, queue=row.original_queue, error=redact(row.error_reason),
        last_error=row.last_error and redact(row.last_error), due_at=row.next_retry_at, changed_at=row.updated_at,
    )  # fmt: skip


def preview(head: bytes, size: int) -> ReviewPayload:
    """The preview of a payload of so many bytes, of which this is the beginning."""
    if not size:
        return ReviewPayload(format="empty", text="", bytes=0, whole=True)
    is_all = len(head) == size
    text = _text(head, is_all=is_all)
    if text is None:
        # What looks like a secret is hidden in bytes as well: a protobuf holds its texts as they are.
        shown = redact(head.decode("latin-1")).encode("latin-1")
        whole = is_all and len(shown) <= BINARY_BYTES_MAX
        encoded = b64encode(shown[:BINARY_BYTES_MAX]).decode()
        return ReviewPayload(format="base64", text=encoded, bytes=size, whole=whole)
    written = _json(text) if is_all else None
    shown_text = redact(text) if written is None else written
    return ReviewPayload(
        format="text" if written is None else "json",
        text=shown_text[:TEXT_CHARS_MAX],
        bytes=size,
        whole=is_all and len(shown_text) <= TEXT_CHARS_MAX,
    )


def _text(head: bytes, *, is_all: bool) -> str | None:
    """The text, if it is one; its last letter may be cut."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=is_all)
    except UnicodeDecodeError:
        return None
    return None if any(letter < " " and letter not in _LAYOUT for letter in text) else text


def _json(text: str) -> str | None:
    """The same, indented and redacted member by member, if it is JSON."""
    try:
        written = json.dumps(redacted(json.loads(text)), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return written.encode("utf-8", "replace").decode()  # half a surrogate can be written in JSON, but not sent
