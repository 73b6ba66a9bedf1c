"""The routes of the inbox.

Those that take webhooks in read the body themselves, piece by piece, and answer without the framework's help: they are asked
thousands of times a second. Everything they take and answer is described all the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from redrive.errors import LedgerAwayError, LedgerError, UsageError
from redrive.http.body import check_is_json, header, read_body
from redrive.http.direct import send_json
from redrive.http.errors import ApiError, ErrorAnswer, refusals
from redrive.http.guard import require_unless_local_program, require_unless_loopback
from redrive.http.strict_json import PARSED_IN_LOOP_BYTES_MAX, parse_object
from redrive.lane import Lane, NewTask, make_task
from redrive.systems.webhooks import shapes
from redrive.systems.webhooks.desk import WebhookDesk
from redrive.systems.webhooks.intake import Receipt, WebhookInbox
from redrive.systems.webhooks.logs import WebhookLogs, WebhookMetrics
from redrive.systems.webhooks.replays import Replays, signed
from redrive.systems.webhooks.routes.desk import make_desk_router
from redrive.systems.webhooks.settings import WebhookSettings
from redrive.systems.webhooks.signatures import SignatureError
from redrive.systems.webhooks.sources import Place, Source

BODY_SECONDS_MAX = 30.0
"""How long a sender may take for its body."""
FULL_RETRY_AFTER_SECONDS = 5
PAGE_MAX = 1000
NAME_SHOWN_CHARS_MAX = 80
PROBLEMS_SHOWN_MAX = 20
Status = Literal["pending", "processing", "completed", "failed", "cancelled"]
Described = dict[int | str, dict[str, Any]]


_TAKEN: Described = {
    202: {"model": shapes.ReceiptOut, "description": "It is new and stored: the row is on disk"},
    200: {
        "model": shapes.ReceiptOut,
        "description": "Its key is known: this is the webhook that has it, with its current status",
    },
    **refusals(
        {
            408: "The body came too slowly",
            413: "The body is larger than WEBHOOK_MAX_BYTES",
            415: "The body is not JSON in UTF-8",
            422: "The body is not valid; nothing was stored",
            503: "The store cannot be reached now: try again",
        }
    ),
    429: {
        "model": ErrorAnswer,
        "description": "More than QUEUE_MAXSIZE webhooks wait: nothing was stored, send it again later",
        "headers": {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}},
    },
}
_KEYLESS = refusals({401: "The caller is elsewhere and has sent no valid key", 403: "The key lacks the scope"})


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def make_routes(
    inbox: WebhookInbox,
    desk: WebhookDesk,
    lane: Lane,
    settings: WebhookSettings,
    sources: Mapping[str, Source],
    logs: WebhookLogs,
    metrics: WebhookMetrics,
    now: Callable[[], datetime],
    replays: Replays,
) -> list[Route | APIRouter]:
    """The routes of one inbox: first those that answer POSTs, then those that describe them, and the others.

    FastAPI's own way to a function costs more than all that is done here for a webhook. So plain routes answer; the routes
    of the same paths that follow are not reached by a request: they describe.
    """
    door = _Door(inbox, settings, sources, logs, now, replays)
    ways = (("/webhooks", door.take), ("/webhooks/in/{source}", door.take_signed))
    lean = [Route(path, _lean(take, metrics), methods=["POST"], include_in_schema=False) for path, take in ways]
    return [*lean, make_desk_router(desk), _described(door, desk, lane, is_open=settings.webhook_open)]


def _lean(take: Callable[[Request], Awaitable[Receipt]], metrics: WebhookMetrics) -> ASGIApp:
    """A function of a request as an ASGI application; what it refuses is counted."""

    class Lean:  # a class: Starlette would take a function for one of a request
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                receipt = await take(Request(scope, receive, send))
            except (ApiError, LedgerAwayError):
                metrics.rejected.inc()
                raise
            await send_json(send, 202 if receipt.new else 200, shapes.receipt_json(receipt))

    return Lean()


def _described(door: "_Door", desk: WebhookDesk, lane: Lane, *, is_open: bool) -> APIRouter:
    router = APIRouter(prefix="/webhooks", tags=["webhooks"])
    may_read = [Depends(require_unless_loopback("viewer"))]

    @router.post(
        "",
        summary="Take a webhook in",
        status_code=202,
        response_class=Response,
        responses=_TAKEN | ({} if is_open else _KEYLESS),
        dependencies=[] if is_open else [Depends(door.guard)],
        openapi_extra=_body(shapes.WebhookIn.model_json_schema()),
    )
    async def take() -> Response:
        """Store a webhook, to be processed soon. The answer goes out when the row is on disk.

        Open to this machine where HTTP_TRUST_LOOPBACK is set; else with a key of scope `webhooks:write`, unless WEBHOOK_OPEN is set.
        """
        raise AssertionError("the plain route before this one answers")

    @router.post(
        "/in/{source}",
        summary="Take a webhook in from a sender that signs",
        status_code=202,
        response_class=Response,
        responses=_TAKEN | refusals({401: "The signature is missing, wrong or old", 404: "There is no such source"}),
        openapi_extra=_body({"type": "object", "description": "Whatever the sender sends"}),
    )
    async def take_signed(
        source: Annotated[str, Path(max_length=50, description="A source of redrive.toml")],  # noqa: ARG001 - described
    ) -> Response:
        """The signature stands in for a key. The idempotency key is the source's name, a colon, and the sender's own id."""
        raise AssertionError("the plain route before this one answers")

    @router.get(
        "",
        summary="Find a webhook by its key, or page through all of one status",
        response_model=shapes.WebhookOut | shapes.WebhookPage,
        responses=refusals({404: "No webhook has this key"}) | _KEYLESS | refusals({422: "A parameter is not valid"}),
        dependencies=may_read,
    )
    async def find(
        idempotency_key: Annotated[
            str | None,
            Query(min_length=1, max_length=shapes.KEY_CHARS_MAX, description="Gives the one webhook with this key"),
        ] = None,
        status: Annotated[
            Status | None, Query(description="Gives a page of these: `failed` are the dead letters")
        ] = None,
        after: Annotated[
            str | None, Query(max_length=100, description="Where the last page said that it ended")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many a page holds")] = 100,
        event_type: Annotated[
            str | None, Query(min_length=1, max_length=shapes.TYPE_CHARS_MAX, description="Only of this type")
        ] = None,
    ) -> Response:
        """Oldest first. Open to this machine where HTTP_TRUST_LOOPBACK is set; else with a key of scope `viewer`."""
        of_type = None if event_type is None else storable(event_type)
        if idempotency_key is not None:
            row = await desk.get(key=storable(idempotency_key))
            if row is None or status not in (None, row.status) or of_type not in (None, row.event_type):
                raise ApiError(404, "not_found", "there is no webhook with this idempotency key")
            return JSONResponse(shapes.webhook_json(row))
        begin = None if after is None else storable(after)
        page = await desk.page(status=status, event_type=of_type, after=begin, limit=limit)
        return JSONResponse({"webhooks": [shapes.webhook_json(row) for row in page.items], "after": page.cursor})

    @router.get(
        "/unhandled",
        summary="The types that wait because no worker handles them",
        response_model=shapes.UnhandledTypes,
        responses=_KEYLESS,
        dependencies=may_read,
    )
    async def unhandled() -> Response:
        """How many webhooks of each wait, and since when. Cancel them, or add a handler: then they are processed."""
        return JSONResponse(shapes.unhandled_json(await desk.unhandled()))

    @router.get(
        "/{id}",
        summary="One webhook and what became of it",
        response_model=shapes.WebhookOne,
        responses=refusals({404: "There is no such webhook"}) | _KEYLESS | refusals({422: "The id is not valid"}),
        dependencies=may_read,
    )
    async def get(id: Annotated[str, Path(max_length=100)]) -> Response:
        """Open to this machine where HTTP_TRUST_LOOPBACK is set; else with a key of scope `viewer`."""
        row, task = await desk.get(id=storable(id)), await lane.get_by_id(id)
        if row is None or task is None:
            raise ApiError(404, "not_found", "there is no webhook with this id")
        # In a thread: what is large takes its time to be looked through.
        return JSONResponse(await asyncio.to_thread(shapes.one_json, row, task.payload))

    return router


class _Door:
    """The two ways in."""

    def __init__(
        self,
        inbox: WebhookInbox,
        settings: WebhookSettings,
        sources: Mapping[str, Source],
        logs: WebhookLogs,
        now: Callable[[], datetime],
        replays: Replays,
    ) -> None:
        self._inbox = inbox
        self._replays = replays
        self._settings = settings
        self._sources = sources
        self._logs = logs
        self._now = now
        self.guard = require_unless_local_program("webhooks:write")

    async def take(self, request: Request) -> Receipt:
        """For whoever may write here."""
        if not self._settings.webhook_open:
            await self.guard(request, header(request, b"x-api-key"))
        try:
            body = await self._read(request)
            given = shapes.WebhookIn.model_validate(await _parse(body))
        except ValidationError as error:
            raise _unfit(error) from None
        return await self._store(given.event_type, given.payload, given.idempotency_key, len(body))

    async def take_signed(self, request: Request) -> Receipt:
        """For senders that sign."""
        name = request.path_params["source"]
        source = self._sources.get(name)
        if source is None:
            raise ApiError(404, "source_unknown", "there is no such source: redrive.toml lists them")
        body = await self._read(request)
        try:
            source.verify(body, request.headers, self._now())
        except SignatureError as error:
            self._logs.refused(source=name, reason=str(error))
            raise ApiError(401, "signature_refused", str(error)) from None
        read = await _parse(body)
        identity = _value(source.identity, "identity", request.headers, read, shapes.KEY_CHARS_MAX - len(name) - 1)
        event_type = _value(source.event_type, "event type", request.headers, read, shapes.TYPE_CHARS_MAX)
        key = f"{name}:{identity}"
        if source.replay_window:
            known = await self._replays.first_key(signed(name, body, key, source.replay_window))
            if known != key:
                self._logs.replayed(source=name, idempotency_key=key, known_key=known)
                key = known
        return await self._store(event_type, read, key, len(body))

    async def _read(self, request: Request) -> bytes:
        check_is_json(request)
        return await read_body(
            request, self._settings.webhook_max_bytes,
            seconds_max=BODY_SECONDS_MAX, remedy="send a reference instead, or raise WEBHOOK_MAX_BYTES",
        )  # fmt: skip

    def _make_task(self, event_type: str, payload: dict[str, Any], key: str) -> NewTask:
        return make_task(event_type, payload, key=key, payload_bytes_max=self._settings.payload_bytes_max)

    async def _store(self, event_type: str, payload: dict[str, Any], idempotency_key: str, size: int) -> Receipt:
        given = (event_type, payload, idempotency_key)
        try:
            # Written as JSON again, which takes as long as reading it did.
            if size <= PARSED_IN_LOOP_BYTES_MAX:
                task = self._make_task(*given)
            else:
                task = await asyncio.to_thread(self._make_task, *given)
        except UsageError as error:
            raise ApiError(422, "invalid_webhook", str(error)) from None
        try:
            receipt = await self._inbox.accept(task)
        except LedgerAwayError:
            raise
        except LedgerError as error:
            raise ApiError(503, "try_again", str(error), headers={"Retry-After": "1"}) from None
        if receipt is None:
            waiting = self._settings.queue_maxsize
            raise ApiError(
                429, "queue_full", f"more than {waiting:,} webhooks wait to be processed: send it again later",
                details={"queue_maxsize": waiting}, headers={"Retry-After": str(FULL_RETRY_AFTER_SECONDS)},
            )  # fmt: skip
        return receipt


async def _parse(body: bytes) -> dict[str, Any]:
    try:
        return await parse_object(body)
    except ValueError as error:
        raise ApiError(422, "invalid_json", f"the body is not JSON that can be kept: {error}") from None


def _unfit(error: ValidationError) -> ApiError:
    # Without the input: it may be large, or a secret. Names are the sender's too: cut, and in plain letters.
    details = [
        {"where": [ascii(part)[:NAME_SHOWN_CHARS_MAX] if part not in shapes.WebhookIn.model_fields else part for part in one["loc"]],
         "problem": one["msg"]}
        for one in error.errors(include_url=False, include_input=False, include_context=False)[:PROBLEMS_SHOWN_MAX]
    ]  # fmt: skip
    return ApiError(422, "invalid_request", "the webhook is not valid", details=details)


def _value(place: Place, what: str, headers: Mapping[str, str], body: Mapping[str, Any], chars_max: int) -> str:
    found = place.find(headers, body)
    if not found:
        raise ApiError(422, "invalid_webhook", f"the {what} is missing: it is expected in {place}")
    if len(found) > chars_max:
        raise ApiError(422, "invalid_webhook", f"the {what} in {place} is longer than {chars_max} characters")
    return found


def storable(text: str) -> str:
    """A stranger's text to look for; what no database stores is found nowhere."""
    if "\0" in text:
        raise ApiError(404, "not_found", "there is no such webhook")
    return text
