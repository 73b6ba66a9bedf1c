"""`/v1/events` and `/v1/inbox`: events taken in, looked at, acknowledged, brought back, deleted."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError
from starlette.routing import Route
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from redrive import Filter
from redrive.access.keys import Scope
from redrive.http.body import header
from redrive.http.direct import send_json
from redrive.http.errors import ApiError
from redrive.http.strict_json import to_ascii
from redrive.lane import Lane
from redrive.operator.json_views import fields_json, instant_json
from redrive.systems.triggers import shapes as m
from redrive.systems.triggers.access import BODY_BYTES_MAX, PREFIX, Entrance, bind_correlation, needs, read_json
from redrive.systems.triggers.cursor import CURSOR_CHARS_MAX, Cursors
from redrive.systems.triggers.held import EndpointGates
from redrive.systems.triggers.hosting import Hosting
from redrive.systems.triggers.ids import read_id
from redrive.systems.triggers.limits import Quota
from redrive.systems.triggers.ports import Inbox, Intake
from redrive.systems.triggers.routes.answers import attempts_json, invalid, not_found, owner_of, refusals, with_body
from redrive.systems.triggers.values import NewEvent, NotTaken, Status, Taken

ATTEMPTS_MAX = 100
IDS_PER_REDRIVE = 500
"""A thousand events may have a hundred deliveries each, and a statement of PostgreSQL takes 32,767 values."""

REPLAYED = ((b"idempotent-replayed", b"true"),)

EventId = Annotated[str, Path(description="The event's id", examples=[m.EVENT])]


class PayloadResponse(JSONResponse):
    """JSON in ASCII: a payload may hold what UTF-8 cannot, such as half a surrogate."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


class Ingest:
    """Takes the events of requests in."""

    def __init__(self, gate: Entrance, intake: Intake, quota: Quota) -> None:
        self.intake = intake
        self._gate = gate
        self._quota = quota

    def route(self) -> Route:
        """The way in for one event, past the framework: only what does not fit is put as the framework would put it."""
        return Route(f"{PREFIX}/events", _LeanIngest(self), methods=["POST"], include_in_schema=False)

    async def take_one(self, request: Request) -> Taken:
        """The event of a request."""
        bind_correlation(request)
        request.state.key = (await self._gate.enter(request, Scope.EVENTS_WRITE)).key
        await read_json(request, BODY_BYTES_MAX)
        event, idempotency_key = _fitting(await request.json(), header(request, b"idempotency-key"))
        [taken] = await self.take(request, [_new_event(event, request, idempotency_key, self.intake)])
        assert isinstance(taken, Taken), "one that was not taken is raised"
        return taken

    async def take(self, request: Request, events: Sequence[NewEvent]) -> Sequence[Taken | NotTaken]:
        """Store events of the user whose key was sent, unless theirs have made too many deliveries."""
        user, quota = owner_of(request), self._quota
        wait = quota.wait_for(user)
        if wait is not None:
            raise ApiError(
                429, "RATE_LIMIT_EXCEEDED",
                f"your events have made {quota.per_minute:,} deliveries in this minute, one for each endpoint that they go to: "
                f"try again in {wait} s, or have fewer endpoints take the same events; whoever runs this may raise DELIVERIES_PER_MINUTE",
                headers={"Retry-After": str(wait)},
            )  # fmt: skip
        taken = await self.intake.take(events)
        await quota.made(user, sum(one.deliveries for one in taken if isinstance(one, Taken)))
        return taken


class _LeanIngest:
    """An ASGI application; a class, since Starlette would take a function for one of a request."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        taken = await self._ingest.take_one(Request(scope, receive, send))
        await send_json(send, 201, _taken_json(taken), () if taken.new else REPLAYED)


def _fitting(body: Any, idempotency_key: str | None) -> tuple[m.EventIn, str | None]:
    """The event and the key of a request; raises what the framework raises where they do not fit."""
    problems: list[Any] = []
    if idempotency_key is not None:
        try:
            idempotency_key = _KEY.validate_python(idempotency_key)
        except ValidationError as error:
            problems += _located(error, "header", "Idempotency-Key")
    try:
        event = m.EventIn.model_validate(body, from_attributes=True)
    except ValidationError as error:
        problems += _located(error, "body")
    if problems:
        raise RequestValidationError(problems, body=body)
    return event, idempotency_key


def _located(error: ValidationError, *where: str) -> list[Any]:
    return [one | {"loc": (*where, *one["loc"])} for one in error.errors(include_url=False)]


_KEY: TypeAdapter[str] = TypeAdapter(m.IdempotencyKey)


def add_event_routes(
    router: APIRouter,
    ingest: Ingest,
    inbox: Inbox,
    cursors: Cursors,
    lane: Lane,
    gates: EndpointGates,
    hosting: Hosting,
) -> None:
    """The routes of events and of the inbox."""
    _add_ingest(router, ingest, hosting)
    _add_looks(router, inbox, gates)
    _add_inbox(router, inbox, cursors)
    _add_acts(router, inbox, lane, gates)


def _add_ingest(router: APIRouter, ingest: Ingest, hosting: Hosting) -> None:
    @router.post("/events", status_code=201, tags=["events"], response_model=m.EventTaken, responses=with_body())
    @needs("events:write")
    async def post_event(
        event: m.EventIn,  # noqa: ARG001 - for the description
        idempotency_key: Annotated[m.IdempotencyKey | None, Header(alias="Idempotency-Key")] = None,  # noqa: ARG001
    ) -> JSONResponse:
        """Take an event in. When this answers 201 the event is stored, and so is what will deliver it.

        With an `Idempotency-Key`, a second request of the same user with the same key gets the event of the first.
        """
        raise AssertionError("the plain route before this one answers")

    @router.post("/events/batch", tags=["events"], response_model=m.BatchTaken, responses=with_body())
    @needs("events:write", body_bytes_max=hosting.batch_bytes_max, remedy="send fewer events at once")
    async def post_events(request: Request, batch: m.BatchIn) -> JSONResponse:
        """Take up to 100 events in, with a result for each."""
        results: list[dict[str, Any]] = []
        fitting: list[NewEvent] = []
        places: list[int] = []
        for index, item in enumerate(batch.events):
            try:
                event = m.BatchEventIn.model_validate(item)
                fitting.append(_new_event(event, request, event.idempotency_key, ingest.intake))
                places.append(index)
                results.append({"index": index})
            except (ValidationError, ApiError) as error:
                code = error.code if isinstance(error, ApiError) else "VALIDATION_ERROR"
                said = {"code": code, "message": _sentence(error)}
                results.append({"index": index, "error": said})
        taken = await ingest.take(request, fitting) if fitting else []
        for place, one in zip(places, taken, strict=True):
            results[place] |= _taken_json(one) if isinstance(one, Taken) else _not_taken_json(one)
        return JSONResponse({"results": results})


def _new_event(event: m.EventIn, request: Request, idempotency_key: str | None, intake: Intake) -> NewEvent:
    try:
        payload = to_ascii(event.payload)
    except ValueError:
        raise invalid("a number in it is too large", "body", "payload") from None
    most = intake.payload_bytes_max
    if most is not None and len(payload) > most:
        raise ApiError(
            413,
            "PAYLOAD_TOO_LARGE",
            f"the payload has {len(payload):,} bytes as JSON text: {most:,} at most are stored",
        )
    return NewEvent(
        user_id=owner_of(request), event_type=event.event_type, payload=payload,
        correlation_id=request.state.request_id, idempotency_key=idempotency_key,
    )  # fmt: skip


def _sentence(error: ValidationError | ApiError) -> str:
    if isinstance(error, ApiError):
        return error.message
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the item'}: {first['msg']}"


def _not_taken_json(one: NotTaken) -> dict[str, Any]:
    return {"error": {"code": "SERVICE_UNAVAILABLE", "message": one.why}}


def _taken_json(taken: Taken) -> dict[str, Any]:
    return {"event_id": taken.id, "status": taken.status, "timestamp": instant_json(taken.created_at)}


def status_json(status: Status) -> dict[str, Any]:
    """The body of a status: exactly this."""
    return {
        "event_id": status.id,
        "status": status.status,
        "retry_attempts": status.retry_attempts,
        "last_retry_at": instant_json(status.last_retry_at),
        "failed_at": instant_json(status.failed_at),
        "next_retry_at": instant_json(status.next_retry_at),
    }


def status_route(gate: Entrance, gates: EndpointGates, queried: Callable[[], None]) -> Route:
    """The most asked of all: the key and the event are read in one go, and nothing else happens on the way."""

    async def look(request: Request) -> Response:
        bind_correlation(request)
        found = await gate.enter(request, Scope.EVENTS_READ, event_id=read_id(request.path_params["event_id"]))
        queried()
        assert found.key is not None
        if found.event is None or found.event[0] != found.key.owner:
            raise not_found()
        status = found.event[1]
        if status.next_retry_at is not None:
            next_try = await gates.next_try(status.id, status.status, status.next_retry_at)
            status = status._replace(next_retry_at=next_try)
        return JSONResponse(status_json(status))

    return Route(f"{PREFIX}/events/{{event_id}}/status", look, methods=["GET"])


def _add_looks(router: APIRouter, inbox: Inbox, gates: EndpointGates) -> None:
    @router.get("/events/{event_id}", tags=["events"], response_model=m.EventOut, responses=refusals(404))
    @needs("events:read")
    async def get_event(request: Request, event_id: EventId) -> JSONResponse:
        """An event with all that is known of it."""
        event = await inbox.get(owner_of(request), read_id(event_id))
        if event is None:
            raise not_found()
        next_try = await gates.next_try(event.id, event.status, event.next_retry_at)
        shown = {
            "event_id": event.id, "timestamp": event.created_at, "payload": json.loads(event.payload),
            "next_retry_at": next_try,
        }  # fmt: skip
        return PayloadResponse(fields_json(event, m.EventOut.model_fields, **shown))

    @router.get("/events/{event_id}/status", tags=["events"], responses=refusals(404))
    @needs("events:read")
    async def get_status(event_id: EventId) -> m.EventStatusOut:  # noqa: ARG001 - for the description
        """How far an event is: exactly these six fields, never the payload."""
        raise AssertionError("the plain route before this one answers")

    @router.get("/events/{event_id}/attempts", tags=["events"], response_model=m.Attempts, responses=refusals(404))
    @needs("events:read")
    async def get_attempts(request: Request, event_id: EventId) -> JSONResponse:
        """The latest hundred tries of an event's deliveries, newest first."""
        user, id_ = owner_of(request), read_id(event_id)
        if await inbox.get(user, id_) is None:
            raise not_found()
        found = await inbox.attempts(user, event_id=id_, limit=ATTEMPTS_MAX)
        return JSONResponse({"attempts": attempts_json(found)})


def _add_inbox(router: APIRouter, inbox: Inbox, cursors: Cursors) -> None:
    @router.get("/inbox", tags=["inbox"], response_model=m.InboxOut, responses=refusals(400))
    @needs("events:read")
    async def get_inbox(
        request: Request,
        status: Annotated[m.EventStatus, Query(description="Which events")] = "received",
        limit: Annotated[int, Query(ge=1, le=100)] = 50,
        cursor: Annotated[
            str | None, Query(max_length=CURSOR_CHARS_MAX, description="Of the page before, for the same filter")
        ] = None,
        event_type: Annotated[m.EventType | None, Query(description="Only events of this type")] = None,
    ) -> JSONResponse:
        """Events of a status, oldest first. A page ends early where its payloads come to 4 MiB, on DynamoDB 2 MiB: see `has_more`."""
        user = owner_of(request)
        bound_to = ("inbox", user, status, event_type)
        after = None
        if cursor is not None:
            after = await cursors.read(cursor, *bound_to)
            if after is None:
                raise invalid(
                    "this cursor was not given out for this request: begin again without it", "query", "cursor"
                )
        page = await inbox.page(user, status, event_type=event_type, after=after, limit=limit)
        shown = m.InboxEvent.model_fields
        events = [
            fields_json(row, shown, event_id=row.id, timestamp=row.created_at, payload=json.loads(row.payload))
            for row in page.events
        ]
        pagination = {
            "limit": limit,
            "cursor": await cursors.write(page.last, *bound_to) if page.has_more else None,
            "has_more": page.has_more,
            "total_count": page.total,
        }
        return PayloadResponse({"events": events, "pagination": pagination})


def _add_acts(router: APIRouter, inbox: Inbox, lane: Lane, gates: EndpointGates) -> None:
    @router.post("/events/retry", tags=["events"], response_model=m.Retried, responses=with_body())
    @needs("events:write")
    async def retry_events(request: Request, which: m.RetryIn) -> JSONResponse:
        """Bring failed events back, oldest first: their failed deliveries are tried again with a fresh budget."""
        found, has_more = await inbox.failed(
            owner_of(request), event_type=which.event_type, since=which.failed_after, until=which.failed_before,
            endpoint_id=None if which.endpoint_id is None else read_id(which.endpoint_id), limit=which.limit,
        )  # fmt: skip
        retried = 0
        if found and not which.dry_run:
            dead = [delivery for deliveries in found.values() for delivery in deliveries]
            changed = set(await _redrive(lane, dead, request))
            retried = sum(1 for deliveries in found.values() if not changed.isdisjoint(deliveries))
        return JSONResponse({"matched": len(found), "retried": retried, "has_more": has_more})

    @router.post(
        "/events/{event_id}/retry", tags=["events"], response_model=m.EventStatusOut, responses=refusals(404, 409)
    )
    @needs("events:write")
    async def retry_event(request: Request, event_id: EventId) -> JSONResponse:
        """Bring a failed event back: its failed deliveries are tried again, now, with a fresh budget."""
        user, id_ = owner_of(request), read_id(event_id)
        status, dead = await inbox.dead_deliveries(user, id_)
        if status is None:
            raise not_found()
        if not await _redrive(lane, dead if status == "failed" else [], request):
            why = "its endpoints are gone" if status == "failed" else f"it is {status}"
            raise ApiError(409, "CONFLICT", f"only a failed event with a delivery can be retried: {why}")
        return await _status_after(user, id_)

    @router.post(
        "/events/{event_id}/ack", tags=["inbox"], response_model=m.EventStatusOut, responses=refusals(404, 409)
    )
    @needs("events:write")
    async def acknowledge(request: Request, event_id: EventId) -> JSONResponse:
        """Say that an event was taken from the inbox: it is delivered. Saying it twice changes nothing."""
        user, id_ = owner_of(request), read_id(event_id)
        status = await inbox.acknowledge(user, id_)
        if status is None:
            raise not_found()
        if status == "failed":
            raise ApiError(409, "CONFLICT", "the event has failed: retry it first")
        return await _status_after(user, id_)

    @router.delete(
        "/events/{event_id}", status_code=204, tags=["events"], response_class=Response, responses=refusals(404)
    )
    @needs("events:write")
    async def delete_event(request: Request, event_id: EventId) -> Response:
        """Forget an event, its deliveries and their history."""
        if not await inbox.delete(owner_of(request), read_id(event_id)):
            raise not_found()
        return Response(status_code=204)

    async def _status_after(user: str, id_: str) -> JSONResponse:
        event = await inbox.get(user, id_)
        if event is None:
            raise not_found()  # deleted in between
        next_try = await gates.next_try(event.id, event.status, event.next_retry_at)
        shown = {"event_id": event.id, "next_retry_at": next_try}
        return JSONResponse(fields_json(event, m.EventStatusOut.model_fields, **shown))


async def _redrive(lane: Lane, deliveries: Sequence[str], request: Request) -> Sequence[Any]:
    """Bring deliveries back, block by block: what a broken request leaves behind, the next one finds."""
    reason = f"request {request.state.request_id}"
    changed: list[Any] = []
    for start in range(0, len(deliveries), IDS_PER_REDRIVE):
        block = Filter(ids=list(deliveries[start : start + IDS_PER_REDRIVE]))
        changed += (await lane.redrive(block, actor=owner_of(request), reason=reason)).changed
    return changed
