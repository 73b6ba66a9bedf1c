"""`/api/relay/review`: manual review by people. Looking needs the scope viewer or this machine, acting the scope operator."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query

from redrive.access.keys import ApiKey
from redrive.errors import TooSlowError
from redrive.events import Act
from redrive.http.errors import ApiError, ErrorAnswer
from redrive.http.guard import KeyFirstRoute, require, require_unless_loopback
from redrive.lane import Actor
from redrive.operator.json_views import instant_json
from redrive.systems.relay import shapes
from redrive.systems.relay.desk import TOO_SLOW, Asked, ReviewDesk
from redrive.systems.relay.settings import QUEUE_BYTES_MAX
from redrive.systems.relay.tables import MESSAGE_ID_CHARS_MAX

PAGE_MAX = 200
LOOKING = [Depends(require_unless_loopback("viewer"))]
Operator = Annotated[ApiKey, Depends(require("operator"))]


def make_router(desk: ReviewDesk) -> APIRouter:
    """The routes over the messages in review."""
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 422, 503)
    }
    router = APIRouter(prefix="/api/relay/review", route_class=KeyFirstRoute, tags=["relay"], responses=refusals)

    @router.get("", summary="Messages that wait for a person, the newest first", dependencies=LOOKING)
    async def listed(
        queue: Annotated[
            shapes.Text | None, Query(description="The queue they failed in", max_length=QUEUE_BYTES_MAX)
        ] = None,
        error: Annotated[
            shapes.Text | None, Query(description="What the error contains", max_length=shapes.ERROR_CHARS_MAX)
        ] = None,
        message_id: Annotated[shapes.Text | None, Query(max_length=MESSAGE_ID_CHARS_MAX)] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
        cursor: Annotated[int | None, Query(description="Where the page before ended", ge=1, le=shapes.ID_MAX)] = None,
    ) -> shapes.ReviewPage:
        """Pages, queues and ids are served by indexes. A text that is looked for in too many is refused with `too_slow`."""
        asked = Asked(queue=queue or None, error=error or None, message_id=message_id or None)
        with _in_time(asked):
            page = await desk.page(asked, before=cursor, limit=limit)
        return shapes.ReviewPage.of(page)

    @router.get("/queues", summary="How many messages wait for a person, by queue", dependencies=LOOKING)
    async def queues() -> shapes.ReviewWaiting:
        """In all, and of each queue."""
        waiting = await desk.waiting()
        counts = [shapes.QueueCount(queue=queue, amount=amount) for queue, amount in waiting.queues]
        return shapes.ReviewWaiting(total=waiting.total, queues=counts, more=waiting.more)

    @router.get("/{id}", summary="One message with its headers and a preview of its payload", dependencies=LOOKING)
    async def one(id: Annotated[int, Path(ge=1, le=shapes.ID_MAX, description="Of its row")]) -> shapes.ReviewOne:
        """Wherever it stands now: also one that somebody else has resubmitted or resolved."""
        row = await desk.get(id)
        if row is None:
            raise ApiError(404, "message_unknown", f"there is no message {id} in the relay's table")
        return shapes.one_of(row)

    @router.post("/resubmit", summary="Send messages to their queues again, now and with a fresh count")
    async def resubmit(body: shapes.ReviewAct, key: Operator) -> shapes.ReviewDone:
        """The same as a redrive of the ledger `retry_queue`.

        What goes out says who and when in `x-resubmitted-by` and `x-resubmitted-at`.
        """
        return await _act(desk, Act.REDRIVE, body, key)

    @router.post("/resolve", summary="Close messages that a person has dealt with")
    async def resolve(body: shapes.ReviewAct, key: Operator) -> shapes.ReviewDone:
        """They will not be sent again, unless they fail again and come back by themselves."""
        return await _act(desk, Act.RESOLVE, body, key)

    return router


async def _act(desk: ReviewDesk, act: Act, body: shapes.ReviewAct, key: ApiKey) -> shapes.ReviewDone:
    actor = Actor(name=key.owner, reason=body.reason)
    if body.ids is not None:
        ids = list(dict.fromkeys(body.ids))
        if body.dry_run:
            return shapes.ReviewDone(matched=await desk.count(Asked(ids=ids)), changed=0)
        done = await desk.act(act, ids, actor)
        refused: dict[Any, str] = dict(done.refused)
        return shapes.ReviewDone(matched=len(ids), changed=len(done.changed), refused=refused)
    assert body.filter is not None
    until = body.filter.until or await desk.present()
    asked = body.filter.asked(until)
    with _in_time(asked):
        if body.dry_run:
            return shapes.ReviewDone(matched=await desk.count(asked), changed=0, until=instant_json(until))
        done = await desk.act_on_all(act, asked, actor, at_most=body.at_most)
    return shapes.ReviewDone(
        matched=done.matched, changed=len(done.changed), until=instant_json(until), complete=done.complete
    )


@contextmanager
def _in_time(asked: Asked) -> Iterator[None]:
    """Refuse a look that no index serves. All others are served by one: where such a look is slow, the store is busy."""
    try:
        yield
    except TooSlowError:
        if asked.error is None:
            raise
        raise ApiError(422, "too_slow", TOO_SLOW) from None
