"""The API under `/v1`: events and the inbox here, endpoints, keys and what operators ask in files of their own."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response, Security
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader
from pydantic import ValidationError
from starlette.routing import Route

from redrive import Where
from redrive.access.keys import Scope
from redrive.http.errors import ApiError, ErrorAnswer
from redrive.operator.json_views import instant_json
from redrive.systems.triggers import shapes as m
from redrive.systems.triggers.access import BATCH_BYTES_MAX, PREFIX, Gate, bind_correlation, needs, route_class
from redrive.systems.triggers.cursor import CURSOR_CHARS_MAX, Cursors
from redrive.systems.triggers.ids import read_id
from redrive.systems.triggers.limits import Limiter
from redrive.systems.triggers.store import NewEvent, Status, Taken

if TYPE_CHECKING:
    from redrive.systems.triggers.system import Triggers

ATTEMPTS_MAX = 100
IDS_PER_REDRIVE = 500
"""A thousand events may have a hundred deliveries each, and a statement of PostgreSQL takes 32,767 values."""

_header = APIKeyHeader(
    name="X-API-Key", auto_error=False, description="A key of a user: `redrive keys create --user NAME --scope …`"
)
_WHY = {
    400: "The request does not fit",
    401: "No valid key",
    403: "The key lacks a scope",
    404: "There is no such thing, or it is not yours",
    408: "The body came too slowly",
    409: "Its state does not allow it",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "Too many requests with this key; see `Retry-After`",
    503: "The store cannot be reached now; see `Retry-After`",
}
_BODY = (400, 408, 413, 415)

EventId = Annotated[str, Path(description="The event's id", examples=[m.EVENT])]


class PayloadResponse(JSONResponse):
    """JSON in ASCII: a payload may hold what UTF-8 cannot, such as half a surrogate."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals that a route may answer with, besides those of all routes."""
    named = sorted({401, 403, 429, 503, *statuses})
    return {status: {"description": _WHY[status], "model": ErrorAnswer} for status in named}


def with_body(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same for a route that takes a body."""
    return refusals(*_BODY, *statuses)


def not_found() -> ApiError:
    """The one answer for what is unknown, deleted, malformed or somebody else's."""
    return ApiError(404, "NOT_FOUND", "there is no such thing here")


def invalid(message: str, *where: str) -> ApiError:
    """A request that does not fit, in the form of all such refusals."""
    return ApiError(400, "VALIDATION_ERROR", "the request does not fit",
                    details=[{"where": list(where), "problem": message}])  # fmt: skip


def owner_of(request: Request) -> str:
    """The user whose key was sent."""
    owner: str = request.state.key.owner
    return owner


def make_routes(system: "Triggers") -> list[Any]:
    """All routes of the system."""
    from redrive.systems.triggers.routes_desk import make_oversight_routes
    from redrive.systems.triggers.routes_endpoints import add_endpoint_routes
    from redrive.systems.triggers.routes_keys import add_key_routes

    gate = Gate(system.database, Limiter(system.database, system.settings.rate_limit_per_minute))
    cursors = Cursors(system.database)
    router = APIRouter(prefix=PREFIX, route_class=route_class(gate), dependencies=[Security(_header)])
    _add_ingest(router, system)
    _add_looks(router, system)
    _add_inbox(router, system, cursors)
    _add_acts(router, system)
    add_endpoint_routes(router, system)
    add_key_routes(router, system, cursors)
    return [_status_route(system, gate), router, make_oversight_routes(system)]


def _add_ingest(router: APIRouter, system: "Triggers") -> None:
    @router.post("/events", status_code=201, tags=["events"], response_model=m.EventTaken, responses=with_body())
    @needs("events:write")
    async def post_event(
        request: Request,
        event: m.EventIn,
        idempotency_key: Annotated[m.IdempotencyKey | None, Header(alias="Idempotency-Key")] = None,
    ) -> JSONResponse:
        """Take an event in. When this answers 201 the event is stored, and so is what will deliver it.

        With an `Idempotency-Key`, a second request of the same user with the same key gets the event of the first.
        """
        [taken] = await system.events.take([_new_event(event, request, idempotency_key)])
        headers = {} if taken.new else {"Idempotent-Replayed": "true"}
        return JSONResponse(_taken_json(taken), status_code=201, headers=headers)

    @router.post("/events/batch", tags=["events"], response_model=m.BatchTaken, responses=with_body())
    @needs("events:write", body_bytes_max=BATCH_BYTES_MAX)
    async def post_events(request: Request, batch: m.BatchIn) -> JSONResponse:
        """Take up to 100 events in, with a result for each; those that fit are stored in one commit."""
        results: list[dict[str, Any]] = []
        fitting: list[NewEvent] = []
        places: list[int] = []
        for index, item in enumerate(batch.events):
            try:
                event = m.BatchEventIn.model_validate(item)
                fitting.append(_new_event(event, request, event.idempotency_key))
                places.append(index)
                results.append({"index": index})
            except (ValidationError, ApiError) as error:
                said = {"code": "VALIDATION_ERROR", "message": _sentence(error)}
                results.append({"index": index, "error": said})
        taken = await system.events.take(fitting) if fitting else []
        for place, one in zip(places, taken, strict=True):
            results[place] |= _taken_json(one)
        return JSONResponse({"results": results})


def _new_event(event: m.EventIn, request: Request, idempotency_key: str | None) -> NewEvent:
    try:
        # ASCII with escapes: every database stores it and every receiver reads it, half surrogates and NUL included.
        payload = json.dumps(event.payload, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise invalid("a number in it is too large", "body", "payload") from None
    return NewEvent(
        user_id=owner_of(request), event_type=event.event_type, payload=payload,
        correlation_id=request.state.request_id, idempotency_key=idempotency_key,
    )  # fmt: skip


def _sentence(error: ValidationError | ApiError) -> str:
    if isinstance(error, ApiError):
        return error.message
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the item'}: {first['msg']}"


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


def _status_route(system: "Triggers", gate: Gate) -> Route:
    """The most asked of all: the key and the event are read in one go, and nothing else happens on the way."""

    async def look(request: Request) -> Response:
        bind_correlation(request)
        found = await gate.enter(request, Scope.EVENTS_READ, event_id=read_id(request.path_params["event_id"]))
        if system.metrics is not None:
            system.metrics.queries.inc()
        assert found.key is not None
        if found.event is None or found.event[0] != found.key.owner:
            raise not_found()
        return JSONResponse(status_json(found.event[1]))

    return Route(f"{PREFIX}/events/{{event_id}}/status", look, methods=["GET"])


def _add_looks(router: APIRouter, system: "Triggers") -> None:
    @router.get("/events/{event_id}", tags=["events"], response_model=m.EventOut, responses=refusals(404))
    @needs("events:read")
    async def get_event(request: Request, event_id: EventId) -> JSONResponse:
        """An event with all that is known of it."""
        event = await system.events.get(owner_of(request), read_id(event_id))
        if event is None:
            raise not_found()
        status = Status(*(getattr(event, name) for name in Status._fields))
        return PayloadResponse(
            status_json(status)
            | {
                "event_type": event.event_type,
                "payload": json.loads(event.payload),
                "timestamp": instant_json(event.created_at),
                "delivered_at": instant_json(event.delivered_at),
                "last_error": event.last_error,
                "correlation_id": event.correlation_id,
            }
        )

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
        if await system.events.get(user, id_) is None:
            raise not_found()
        found = await system.events.attempts(user, event_id=id_, limit=ATTEMPTS_MAX)
        return JSONResponse({"attempts": attempts_json(found)})


def attempts_json(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Tries of deliveries."""
    return [
        {
            "event_id": row.event_id,
            "endpoint_id": row.endpoint_id,
            "number": row.number,
            "started_at": instant_json(row.started_at),
            "ended_at": instant_json(row.ended_at),
            "duration_seconds": row.duration_seconds,
            "outcome": row.outcome,
            "error_class": row.error_class,
            "error": row.error,
            "delay_seconds": row.delay_seconds,
        }
        for row in rows
    ]


def _add_inbox(router: APIRouter, system: "Triggers", cursors: Cursors) -> None:
    @router.get("/inbox", tags=["inbox"], response_model=m.Inbox, responses=refusals(400))
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
        """Events of a status, oldest first. A page ends early where its payloads come to 4 MiB: see `has_more`."""
        user = owner_of(request)
        bound_to = ("inbox", user, status, event_type)
        after = None
        if cursor is not None:
            after = await cursors.read(cursor, *bound_to)
            if after is None:
                raise invalid("this cursor was not given out for this request: begin without one", "query", "cursor")
        page = await system.events.page(user, status, event_type=event_type, after=after, limit=limit)
        events = [
            {
                "event_id": row.id,
                "event_type": row.event_type,
                "timestamp": instant_json(row.created_at),
                "payload": json.loads(row.payload),
            }
            for row in page.events
        ]
        pagination = {
            "limit": limit,
            "cursor": await cursors.write(page.last, *bound_to) if page.has_more else None,
            "has_more": page.has_more,
            "total_count": page.total,
        }
        return PayloadResponse({"events": events, "pagination": pagination})


def _add_acts(router: APIRouter, system: "Triggers") -> None:
    @router.post("/events/retry", tags=["events"], response_model=m.Retried, responses=with_body())
    @needs("events:write")
    async def retry_events(request: Request, which: m.RetryIn) -> JSONResponse:
        """Bring failed events back, oldest first: their failed deliveries are tried again with a fresh budget."""
        found, has_more = await system.events.failed(
            owner_of(request), event_type=which.event_type, since=which.failed_after, until=which.failed_before,
            endpoint_id=None if which.endpoint_id is None else read_id(which.endpoint_id), limit=which.limit,
        )  # fmt: skip
        retried = 0
        if found and not which.dry_run:
            dead = [delivery for deliveries in found.values() for delivery in deliveries]
            changed = set(await _redrive(system, dead, request))
            retried = sum(1 for deliveries in found.values() if not changed.isdisjoint(deliveries))
        return JSONResponse({"matched": len(found), "retried": retried, "has_more": has_more})

    @router.post(
        "/events/{event_id}/retry", tags=["events"], response_model=m.EventStatusOut, responses=refusals(404, 409)
    )
    @needs("events:write")
    async def retry_event(request: Request, event_id: EventId) -> JSONResponse:
        """Bring a failed event back: its failed deliveries are tried again, now, with a fresh budget."""
        user, id_ = owner_of(request), read_id(event_id)
        status, dead = await system.events.dead_deliveries(user, id_)
        if status is None:
            raise not_found()
        if not await _redrive(system, dead if status == "failed" else [], request):
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
        status = await system.events.acknowledge(user, id_)
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
        if not await system.events.delete(owner_of(request), read_id(event_id)):
            raise not_found()
        return Response(status_code=204)

    async def _status_after(user: str, id_: str) -> JSONResponse:
        event = await system.events.get(user, id_)
        if event is None:
            raise not_found()  # deleted in between
        return JSONResponse(status_json(Status(*(getattr(event, name) for name in Status._fields))))


async def _redrive(system: "Triggers", deliveries: Sequence[str], request: Request) -> Sequence[Any]:
    """Bring deliveries back, block by block: what a broken request leaves behind, the next one finds."""
    reason = f"request {request.state.request_id}"
    changed: list[Any] = []
    for start in range(0, len(deliveries), IDS_PER_REDRIVE):
        block = Where(ids=list(deliveries[start : start + IDS_PER_REDRIVE]))
        changed += (await system.lane.redrive(block, actor=owner_of(request), reason=reason)).changed
    return changed
