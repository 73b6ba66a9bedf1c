"""A client of the triggers API: send events, read the inbox, wait until an event is delivered.

    with Client("https://redrive.example", key="rdk_…") as client:
        event = client.send("order.created", {"order": 7})
        client.wait_for_delivery(event.event_id)

`AsyncClient` has the same methods to be awaited. What a method sends and what it makes of the answer is written once, as a
`_Call`; the two clients differ only in how they make it.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

import httpx

T = TypeVar("T")

TRIES_MAX = 4
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
UNKNOWN_STATUSES = frozenset({502, 503, 504})
"""Answers that leave open whether the request was carried out: of a proxy, or of a service that lost its store."""
WAIT_SECONDS_MAX = 30.0
LOOK_SECONDS_FIRST, LOOK_SECONDS_MAX = 0.25, 5.0


class ClientError(Exception):
    """The root of what the client raises by itself."""


class ApiError(ClientError):
    """The service refused: its status, its code and its own words."""

    def __init__(
        self, status: int, code: str, message: str, *, details: Any = None, request_id: str | None = None
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.details = details
        self.request_id = request_id


class DeliveryFailedError(ClientError):
    """The event that was waited for has failed."""

    def __init__(self, status: "EventStatus") -> None:
        super().__init__(f"event {status.event_id} failed at {status.failed_at} after {status.retry_attempts} retries")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTaken:
    """An event that the service has stored."""

    event_id: str
    status: str
    timestamp: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """How far an event is."""

    event_id: str
    status: str
    retry_attempts: int
    last_retry_at: datetime | None
    failed_at: datetime | None
    next_retry_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEvent:
    """An event in the inbox."""

    event_id: str
    event_type: str
    timestamp: datetime
    payload: Any


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """A request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: Any = None
    query: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None
    repeatable: bool = True
    """Whether sending it twice comes to the same as sending it once."""


@dataclass(frozen=True, slots=True)
class _Page:
    events: list[InboxEvent]
    cursor: str | None


# --- what is sent, and what is made of the answer ---------------------------------------------------------------------


def _send(event_type: str, payload: Any, idempotency_key: str | None) -> _Call[EventTaken]:
    # A key of our own where none is given: a request that is sent again after a lost answer must not make a second event.
    headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
    return _Call("POST", "/v1/events", _taken, {"event_type": event_type, "payload": payload}, headers=headers)


def _send_many(events: Sequence[tuple[str, Any]]) -> _Call[list[EventTaken | ApiError]]:
    items = [
        {"event_type": event_type, "payload": payload, "idempotency_key": secrets.token_hex(16)}
        for event_type, payload in events
    ]
    return _Call("POST", "/v1/events/batch", _taken_many, {"events": items})


def _status(event_id: str) -> _Call[EventStatus]:
    return _Call("GET", f"/v1/events/{quote(event_id, safe='')}/status", _read_status)


def _acknowledge(event_id: str) -> _Call[EventStatus]:
    return _Call("POST", f"/v1/events/{quote(event_id, safe='')}/ack", _read_status)


def _retry(event_id: str) -> _Call[EventStatus]:
    # A second one would be refused, or bring back what has failed once more meanwhile.
    return _Call("POST", f"/v1/events/{quote(event_id, safe='')}/retry", _read_status, repeatable=False)


def _delete(event_id: str) -> _Call[None]:
    return _Call("DELETE", f"/v1/events/{quote(event_id, safe='')}", lambda _: None)


def _inbox(status: str, event_type: str | None, page_size: int, cursor: str | None) -> _Call[_Page]:
    query = {"status": status, "event_type": event_type, "limit": page_size, "cursor": cursor}
    return _Call(
        "GET", "/v1/inbox", _read_page, query={name: value for name, value in query.items() if value is not None}
    )


def _taken(body: Any) -> EventTaken:
    return EventTaken(event_id=body["event_id"], status=body["status"], timestamp=_instant(body["timestamp"]))


def _taken_many(body: Any) -> list[EventTaken | ApiError]:
    return [
        ApiError(400, item["error"]["code"], item["error"]["message"]) if item.get("error") else _taken(item)
        for item in body["results"]
    ]


def _read_status(body: Any) -> EventStatus:
    times = {name: body[name] and _instant(body[name]) for name in ("last_retry_at", "failed_at", "next_retry_at")}
    return EventStatus(event_id=body["event_id"], status=body["status"], retry_attempts=body["retry_attempts"], **times)


def _read_page(body: Any) -> _Page:
    events = [
        InboxEvent(
            event_id=event["event_id"], event_type=event["event_type"], timestamp=_instant(event["timestamp"]),
            payload=event["payload"],
        )
        for event in body["events"]
    ]  # fmt: skip
    return _Page(events, body["pagination"]["cursor"])


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


# --- how often and how long -------------------------------------------------------------------------------------------


def _may_be_done(answer: httpx.Response | None) -> bool:
    """Whether a request without an answer, or with one that leaves it open, may have been carried out all the same."""
    return answer is None or answer.status_code in UNKNOWN_STATUSES


def _wait_before(call: _Call[Any], tries: int, answer: httpx.Response | None) -> float | None:
    """Seconds until the request may be sent again; None if it must not or need not be."""
    if tries >= TRIES_MAX or (answer is not None and answer.status_code not in RETRIED_STATUSES):
        return None
    if not call.repeatable and _may_be_done(answer):
        return None
    asked = answer.headers.get("Retry-After", "") if answer is not None else ""
    wait = float(asked) if asked.isdigit() else 0.2 * 2 ** (tries - 1)
    return wait if wait <= WAIT_SECONDS_MAX else None


def _result(call: _Call[T], answer: httpx.Response, *, may_be_done: bool) -> T:
    """What an answer comes to; `may_be_done` if an earlier try may have been carried out."""
    if answer.is_success:
        return call.read(answer.json() if answer.content else None)
    if call.method == "DELETE" and answer.status_code == 404 and may_be_done:
        return call.read(None)  # gone, which is what was asked for
    try:
        error = answer.json()["error"]
        raise ApiError(
            answer.status_code, error["code"], error["message"],
            details=error.get("details"), request_id=error.get("request_id"),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        raise ApiError(answer.status_code, "UNEXPECTED", "the answer is not one of redrive's") from None


def _looks(timeout: float) -> Iterator[float]:
    """How long to wait before each further look at a status, until the time is over."""
    ends, wait = time.monotonic() + timeout, LOOK_SECONDS_FIRST
    while (left := ends - time.monotonic()) > 0:
        yield min(wait, left)
        wait = min(wait * 1.5, LOOK_SECONDS_MAX)


def _ended(status: EventStatus) -> bool:
    if status.status == "failed":
        raise DeliveryFailedError(status)
    return status.status == "delivered"


def _too_late(event_id: str, timeout: float, status: EventStatus) -> TimeoutError:
    return TimeoutError(f"event {event_id} is still {status.status} after {timeout:g} s")


class Client:
    """The API for code without an event loop. Requests that cannot have been refused for good are sent again a few times."""

    def __init__(
        self, base_url: str, *, key: str, timeout: float = 15, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._http = httpx.Client(base_url=base_url, headers={"X-API-Key": key}, timeout=timeout, transport=transport)

    def send(self, event_type: str, payload: Any, *, idempotency_key: str | None = None) -> EventTaken:
        """Send an event; when this returns it is stored."""
        return self._make(_send(event_type, payload, idempotency_key))

    def send_many(self, events: Sequence[tuple[str, Any]]) -> list[EventTaken | ApiError]:
        """Send up to a hundred events; what became of each, in their order."""
        return self._make(_send_many(events))

    def status(self, event_id: str) -> EventStatus:
        """How far an event is."""
        return self._make(_status(event_id))

    def wait_for_delivery(self, event_id: str, *, timeout: float = 60) -> EventStatus:
        """Come back when the event is delivered; `DeliveryFailedError` if it fails, `TimeoutError` if it takes longer."""
        status = self.status(event_id)
        for wait in _looks(timeout):
            if _ended(status):
                return status
            time.sleep(wait)
            status = self.status(event_id)
        if _ended(status):
            return status
        raise _too_late(event_id, timeout, status)

    def inbox(
        self, *, status: str = "received", event_type: str | None = None, page_size: int = 50
    ) -> Iterator[InboxEvent]:
        """All events of a status, oldest first, page by page."""
        cursor = None
        while True:
            page = self._make(_inbox(status, event_type, page_size, cursor))
            yield from page.events
            cursor = page.cursor
            if cursor is None:
                return

    def acknowledge(self, event_id: str) -> EventStatus:
        """Say that an event was taken from the inbox."""
        return self._make(_acknowledge(event_id))

    def retry(self, event_id: str) -> EventStatus:
        """Bring a failed event back. Not sent again where its answer is lost: look at the status then."""
        return self._make(_retry(event_id))

    def delete(self, event_id: str) -> None:
        """Forget an event."""
        return self._make(_delete(event_id))

    def _make(self, call: _Call[T]) -> T:
        tries, may_be_done = 0, False
        while True:
            tries += 1
            answer = failed = None
            try:
                answer = self._http.request(
                    call.method, call.path, json=call.body, params=call.query, headers=call.headers
                )
            except httpx.TransportError as error:
                failed = error
            wait = _wait_before(call, tries, answer)
            if wait is None:
                if failed is not None:
                    raise failed
                assert answer is not None
                return _result(call, answer, may_be_done=may_be_done)
            may_be_done = may_be_done or _may_be_done(answer)
            time.sleep(wait)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """The same to be awaited."""

    def __init__(
        self, base_url: str, *, key: str, timeout: float = 15, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url, headers={"X-API-Key": key}, timeout=timeout, transport=transport
        )

    async def send(self, event_type: str, payload: Any, *, idempotency_key: str | None = None) -> EventTaken:
        """See `Client.send`."""
        return await self._make(_send(event_type, payload, idempotency_key))

    async def send_many(self, events: Sequence[tuple[str, Any]]) -> list[EventTaken | ApiError]:
        """See `Client.send_many`."""
        return await self._make(_send_many(events))

    async def status(self, event_id: str) -> EventStatus:
        """See `Client.status`."""
        return await self._make(_status(event_id))

    async def wait_for_delivery(self, event_id: str, *, timeout: float = 60) -> EventStatus:
        """See `Client.wait_for_delivery`."""
        status = await self.status(event_id)
        for wait in _looks(timeout):
            if _ended(status):
                return status
            await asyncio.sleep(wait)
            status = await self.status(event_id)
        if _ended(status):
            return status
        raise _too_late(event_id, timeout, status)

    async def inbox(
        self, *, status: str = "received", event_type: str | None = None, page_size: int = 50
    ) -> AsyncIterator[InboxEvent]:
        """See `Client.inbox`."""
        cursor = None
        while True:
            page = await self._make(_inbox(status, event_type, page_size, cursor))
            for event in page.events:
                yield event
            cursor = page.cursor
            if cursor is None:
                return

    async def acknowledge(self, event_id: str) -> EventStatus:
        """See `Client.acknowledge`."""
        return await self._make(_acknowledge(event_id))

    async def retry(self, event_id: str) -> EventStatus:
        """See `Client.retry`."""
        return await self._make(_retry(event_id))

    async def delete(self, event_id: str) -> None:
        """See `Client.delete`."""
        return await self._make(_delete(event_id))

    async def _make(self, call: _Call[T]) -> T:
        tries, may_be_done = 0, False
        while True:
            tries += 1
            answer = failed = None
            try:
                answer = await self._http.request(
                    call.method, call.path, json=call.body, params=call.query, headers=call.headers
                )
            except httpx.TransportError as error:
                failed = error
            wait = _wait_before(call, tries, answer)
            if wait is None:
                if failed is not None:
                    raise failed
                assert answer is not None
                return _result(call, answer, may_be_done=may_be_done)
            may_be_done = may_be_done or _may_be_done(answer)
            await asyncio.sleep(wait)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
