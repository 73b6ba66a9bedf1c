"""The routes of the inbox.

Those that take webhooks in read the body themselves, piece by piece, and answer without the framework's help: they are asked
thousands of times a second. Everything they take and answer is described all the same.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from redrive.errors import LedgerAwayError, LedgerError, UsageError
from redrive.http.errors import ApiError, ErrorAnswer
from redrive.http.guard import require_unless_local_program, require_unless_loopback
from redrive.lane import make_task
from redrive.operator.json_views import instant_json
from redrive.systems.webhooks.bodies import check_is_json, parse_object, read_body
from redrive.systems.webhooks.intake import Receipt
from redrive.systems.webhooks.shapes import (
    KEY_CHARS_MAX,
    STATUSES,
    TYPE_CHARS_MAX,
    ReceiptOut,
    WebhookIn,
    WebhookOut,
    WebhookPage,
    webhook_json,
)
from redrive.systems.webhooks.signatures import SignatureError
from redrive.systems.webhooks.sources import Place, Source

if TYPE_CHECKING:
    from redrive.systems.webhooks.system import Webhooks

FULL_RETRY_AFTER_SECONDS = 5
PAGE_MAX = 1000
NAME_SHOWN_CHARS_MAX = 80
PROBLEMS_SHOWN_MAX = 20
Status = Literal["pending", "processing", "completed", "failed"]


def _refusals(**meanings: str) -> dict[int | str, dict[str, Any]]:
    return {int(code[1:]): {"model": ErrorAnswer, "description": meaning} for code, meaning in meanings.items()}


_TAKEN: dict[int | str, dict[str, Any]] = {
    202: {"model": ReceiptOut, "description": "It is new and stored: the row is on disk"},
    200: {
        "model": ReceiptOut,
        "description": "Its key is known: this is the webhook that has it, with its current status",
    },
    **_refusals(
        _408="The body came too slowly",
        _413="The body is larger than WEBHOOK_MAX_BYTES",
        _415="The body is not JSON in UTF-8",
        _422="The body does not fit; nothing was stored",
        _503="The store cannot be reached now: try again",
    ),
    429: {
        "model": ErrorAnswer,
        "description": "More than QUEUE_MAXSIZE webhooks wait: nothing was stored, send it again later",
        "headers": {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}},
    },
}
_KEYLESS = _refusals(_401="The caller is elsewhere and has sent no valid key", _403="The key lacks the scope")


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def make_routes(webhooks: "Webhooks") -> list[Route | APIRouter]:
    """The routes of one inbox: first those that answer POSTs, then those that describe them, and the others.

    FastAPI's own way to a function costs more than all that is done here for a webhook. So plain routes answer; the routes
    of the same paths that follow are not reached by a request: they describe, and would do the same.
    """
    door = _Door(webhooks)
    ways = (("/webhooks", door.take), ("/webhooks/in/{source}", door.take_signed))
    lean = [Route(path, _Lean(function), methods=["POST"], include_in_schema=False) for path, function in ways]
    return [*lean, _described(webhooks, door)]


def _described(webhooks: "Webhooks", door: "_Door") -> APIRouter:
    router = APIRouter(prefix="/webhooks", tags=["webhooks"])
    may_write = [] if webhooks.settings.webhook_open else [Depends(door.guard)]
    may_read = [Depends(require_unless_loopback("viewer"))]

    @router.post(
        "",
        summary="Take a webhook in",
        status_code=202,
        response_class=Response,
        responses=_TAKEN | ({} if webhooks.settings.webhook_open else _KEYLESS),
        dependencies=may_write,
        openapi_extra=_body(WebhookIn.model_json_schema()),
    )
    async def take(request: Request) -> Response:
        """Store a webhook, to be processed soon. The answer goes out when the row is on disk.

        Open on loopback; elsewhere with a key of scope `webhooks:write`, unless WEBHOOK_OPEN is set.
        """
        return await door.take(request)

    @router.post(
        "/in/{source}",
        summary="Take a webhook in from a sender that signs",
        status_code=202,
        response_class=Response,
        responses=_TAKEN | _refusals(_401="The signature is missing, wrong or old", _404="There is no such source"),
        openapi_extra=_body({"type": "object", "description": "Whatever the sender sends"}),
    )
    async def take_signed(
        request: Request,
        source: Annotated[str, Path(max_length=50, description="A source of redrive.toml")],  # noqa: ARG001 - described
    ) -> Response:
        """The signature stands in for a key. The idempotency key is the source's name, a colon, and the sender's own id."""
        return await door.take_signed(request)

    @router.get(
        "",
        summary="Find a webhook by its key, or page through all of one status",
        response_model=WebhookOut | WebhookPage,
        responses=_refusals(_404="No webhook has this key") | _KEYLESS | _refusals(_422="A parameter does not fit"),
        dependencies=may_read,
    )
    async def find(
        idempotency_key: Annotated[
            str | None, Query(min_length=1, max_length=KEY_CHARS_MAX, description="Gives the one webhook with this key")
        ] = None,
        status: Annotated[
            Status | None, Query(description="Gives a page of these: `failed` are the dead letters")
        ] = None,
        after: Annotated[
            str | None, Query(max_length=100, description="Where the last page said that it ended")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many a page holds")] = 100,
    ) -> Response:
        """Oldest first. Open on loopback; elsewhere with a key of scope `viewer`."""
        if idempotency_key is not None:
            task = await webhooks.find(_storable(idempotency_key))
            if task is None or (status is not None and task.state is not STATUSES[status]):
                raise ApiError(404, "not_found", "there is no webhook with this idempotency key")
            return JSONResponse(webhook_json(task))
        state = None if status is None else STATUSES[status]
        page = await webhooks.page(state, after=None if after is None else _storable(after), limit=limit)
        shown = [webhook_json(task) for task in page.tasks]
        return JSONResponse({"webhooks": shown, "after": None if page.after is None else str(page.after)})

    @router.get(
        "/{id}",
        summary="One webhook and what became of it",
        response_model=WebhookOut,
        responses=_refusals(_404="There is no such webhook") | _KEYLESS | _refusals(_422="The id does not fit"),
        dependencies=may_read,
    )
    async def get(id: Annotated[str, Path(max_length=100)]) -> Response:
        """Open on loopback; elsewhere with a key of scope `viewer`."""
        task = await webhooks.get(_storable(id))
        if task is None:
            raise ApiError(404, "not_found", "there is no webhook with this id")
        return JSONResponse(webhook_json(task))

    return router


class _Lean:
    """A function of a request as an ASGI application."""

    def __init__(self, function: Callable[[Request], Awaitable[Response]]) -> None:
        self._function = function

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._function(Request(scope, receive, send))
        await response(scope, receive, send)


class _Door:
    """The two ways in."""

    def __init__(self, webhooks: "Webhooks") -> None:
        self._webhooks = webhooks
        self._bytes_max = webhooks.settings.webhook_max_bytes
        self._is_open = webhooks.settings.webhook_open
        self.guard = require_unless_local_program("webhooks:write")

    async def take(self, request: Request) -> Response:
        """For whoever may write here."""
        try:
            if not self._is_open:
                await self.guard(request, request.headers.get("x-api-key"))
            check_is_json(request)
            read = await parse_object(await self._read(request))
            given = WebhookIn.model_validate(read)
            return await self._store(given.event_type, given.payload, given.idempotency_key)
        except ValidationError as error:
            self._webhooks.metrics.rejected.inc()
            raise _unfit(error) from None
        except (ApiError, LedgerAwayError):
            self._webhooks.metrics.rejected.inc()
            raise

    async def take_signed(self, request: Request) -> Response:
        """For senders that sign."""
        try:
            name = request.path_params["source"]
            source = self._webhooks.sources.get(name)
            if source is None:
                raise ApiError(404, "source_unknown", "there is no such source: redrive.toml lists them")
            check_is_json(request)
            body = await self._read(request)
            self._check_signature(source, body, request.headers)
            read = await parse_object(body)
            identity = _value(source.identity, "identity", request.headers, read, KEY_CHARS_MAX - len(name) - 1)
            event_type = _value(source.event_type, "event type", request.headers, read, TYPE_CHARS_MAX)
            return await self._store(event_type, read, f"{name}:{identity}")
        except (ApiError, LedgerAwayError):
            self._webhooks.metrics.rejected.inc()
            raise

    async def _read(self, request: Request) -> bytes:
        try:
            return await read_body(request, self._bytes_max)
        except ClientDisconnect:
            raise ApiError(400, "disconnected", "the sender has gone before its body was read") from None

    def _check_signature(self, source: Source, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            source.check(body, headers, self._webhooks.database.now())
        except SignatureError as error:
            if self._webhooks.speaks:
                self._webhooks.logs.refused(source=source.name, reason=str(error))
            raise ApiError(401, "signature_refused", str(error)) from None

    async def _store(self, event_type: str, payload: dict[str, Any], idempotency_key: str) -> Response:
        try:
            task = make_task(event_type, payload, key=idempotency_key)
        except UsageError as error:
            raise ApiError(422, "invalid_webhook", str(error)) from None
        try:
            receipt = await self._webhooks.take_in(task)
        except LedgerAwayError:
            raise
        except LedgerError as error:
            raise ApiError(503, "try_again", str(error), headers={"Retry-After": "1"}) from None
        if receipt is None:
            waiting = self._webhooks.settings.queue_maxsize
            raise ApiError(
                429, "queue_full", f"more than {waiting:,} webhooks wait to be processed: send it again later",
                details={"queue_maxsize": waiting}, headers={"Retry-After": str(FULL_RETRY_AFTER_SECONDS)},
            )  # fmt: skip
        return _answer(receipt)


def _answer(receipt: Receipt) -> Response:
    shown = {
        "id": receipt.id,
        "idempotency_key": receipt.idempotency_key,
        "status": receipt.status,
        "created_at": instant_json(receipt.created_at),
    }
    body = json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, status_code=202 if receipt.new else 200, media_type="application/json")


def _unfit(error: ValidationError) -> ApiError:
    # Without the input: it may be large, or a secret. Names are the sender's too: cut, and in plain letters.
    details = [
        {"where": [ascii(part)[:NAME_SHOWN_CHARS_MAX] if part not in WebhookIn.model_fields else part for part in one["loc"]],
         "problem": one["msg"]}
        for one in error.errors(include_url=False, include_input=False, include_context=False)[:PROBLEMS_SHOWN_MAX]
    ]  # fmt: skip
    return ApiError(422, "invalid_request", "the webhook does not fit", details=details)


def _value(place: Place, what: str, headers: Mapping[str, str], body: Mapping[str, Any], chars_max: int) -> str:
    found = place.find(headers, body)
    if not found:
        raise ApiError(422, "invalid_webhook", f"the {what} is missing: it is expected in {place}")
    if len(found) > chars_max:
        raise ApiError(422, "invalid_webhook", f"the {what} in {place} is longer than {chars_max} characters")
    return found


def _storable(text: str) -> str:
    """A stranger's text to look for; what no database stores is found nowhere."""
    if "\0" in text:
        raise ApiError(404, "not_found", "there is no such webhook")
    return text
