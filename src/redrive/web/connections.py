"""Connections as strangers open them: one that is slow, endless or one of a thousand must not cost the others.

Each has a deadline for its head, for its body, and for reading our answer. There are so many at most, and so many from one sender.
Where a limit is reached, the one that has kept us waiting longest for a request makes room for the next: half a request, or none, is
worth less than a whole one. One sweep a second looks at all deadlines, so that a request costs no timer.
"""

import asyncio
import json
import math
import resource
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from redrive.access.senders import sender_of
from redrive.http.errors import error_body
from redrive.web.one_write import OneWrite

FILES_WANTED = 65_536
FILES_RESERVED = 256
"""For the database, the broker and outgoing requests."""
BACKLOG_MAX = 2048
LINGER_SECONDS = 2.0
"""How long a refused connection may still send: closed under its hands, it would never see the answer."""
SAID_EVERY_SECONDS = 10.0
LATER = (408, 503)
"""Refusals after which the same request may be sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection, one sender and all of them may take."""

    head_bytes: int = 64 * 1024
    head_seconds: float = 10
    body_seconds: float = 60
    unread_seconds: float = 60
    """How long a client may leave our answer unread."""
    connections: int = 10_000
    per_address: int = 500


class Doorkeeper:
    """Knows all connections of a server, and which of them keep us waiting."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        # In the order in which they began to keep us waiting: who has waited longest is found without a look at all.
        self._all: dict[HttpConnection, None] = {}
        self._by_sender: dict[str, dict[HttpConnection, None]] = {}
        self._turned_away: Counter[str] = Counter()
        self._said_at = -math.inf
        self._log: Any = structlog.get_logger().bind(system="web")

    def enter(self, connection: "HttpConnection") -> bool:
        """Let a connection in, at the cost of an idle one if there is no room; False if all are at work."""
        ours = self._by_sender.setdefault(connection.sender, {})
        if len(ours) >= self.limits.per_address and not self._make_room(ours):
            return False
        if len(self._all) >= self.limits.connections and not self._make_room(self._all):
            return False
        self._all[connection] = None
        ours[connection] = None
        return True

    def leave(self, connection: "HttpConnection") -> None:
        """Forget a connection."""
        self._all.pop(connection, None)
        ours = self._by_sender.get(connection.sender)
        if ours is not None:
            ours.pop(connection, None)
            if not ours:
                del self._by_sender[connection.sender]

    def rests(self, connection: "HttpConnection") -> None:
        """Note that a connection has had its answer, and keeps us waiting from now on."""
        for among in (self._all, self._by_sender.get(connection.sender, {})):
            if connection in among:
                del among[connection]
                among[connection] = None

    def turned_away(self, reason: str) -> None:
        """Count it; the log has the sum now and then, however many there are."""
        self._turned_away[reason] += 1

    def sweep(self, now: float) -> None:
        """End what is overdue; call it every second."""
        for connection in [one for one in self._all if one.due_at <= now or one.read_until <= now]:
            connection.overdue(now)
        if self._turned_away and now - self._said_at >= SAID_EVERY_SECONDS:
            self._log.warning("connections_turned_away", **self._turned_away)
            self._turned_away.clear()
            self._said_at = now

    def _make_room(self, among: "dict[HttpConnection, None]") -> bool:
        waiting = next((one for one in among if one.keeps_us_waiting), None)
        if waiting is not None:
            waiting.drop("made_room")
        return waiting is not None


class HttpConnection(HttpToolsProtocol):
    """One connection under the doorkeeper's limits."""

    doorkeeper: Doorkeeper
    """Set by `guarded`, which makes a class for each server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = self.doorkeeper.limits
        self.sender = ""
        """The address, or the network, that it counts for."""
        self.due_at = math.inf
        """When what we wait for must have come."""
        self.read_until = math.inf
        """When the client must have read what we have sent."""
        self._in_head = False
        self._chunk_bytes = self._parsed_bytes = 0
        self._refused = False

    @property
    def keeps_us_waiting(self) -> bool:
        """Whether no whole request is there: none has come yet, or only a part of its head."""
        return not self._refused and (self.cycle is None or self.cycle.response_complete)

    # --- the protocol -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.sender = sender_of(self.client[0]) if self.client else ""
        self._wait_for_head()
        if not self.doorkeeper.enter(self):
            self._refuse(503, "too_many_connections", "too many connections are open: try again")

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.doorkeeper.leave(self)
        self.due_at = self.read_until = math.inf
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._refused:
            return
        if self.due_at == math.inf and self.keeps_us_waiting:
            self._wait_for_head()
        was_in_head = self._in_head
        super().data_received(data)
        if was_in_head and self._in_head:
            # Whole chunks too, so that a header without an end is refused; the parser tells of a header when it has all of it.
            self._chunk_bytes += len(data)
            self._check_head(self._chunk_bytes)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.read_until = self.loop.time() + self._limits.unread_seconds
        super().pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.read_until = math.inf
        super().resume_writing()

    # --- the parser ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        self._chunk_bytes = self._parsed_bytes = 0
        self.due_at = self.loop.time() + self._limits.head_seconds
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        self._parsed_bytes += len(url)
        self._check_head(self._parsed_bytes)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header."""
        self._parsed_bytes += len(name) + len(value) + len(": \r\n")
        self._check_head(self._parsed_bytes)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self._refused:
            return
        self._in_head = False
        self.due_at = self.loop.time() + self._limits.body_seconds
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request is there."""
        self.due_at = math.inf
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is sent; the connection waits for the next request."""
        self.doorkeeper.rests(self)
        super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        OneWrite.take_over(cycle)
        super()._start_asgi_task(cycle, app)

    # --- refusing -----------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> None:
        """End a connection whose deadline has passed."""
        if self._refused:
            self.transport.abort()
        elif self.read_until <= now:
            self.drop("answer_unread")
        elif self.flow.read_paused:  # we do not read at the moment, so it cannot send
            self.due_at = now + self._limits.body_seconds
        elif self._in_head:
            self._refuse(408, "head_too_slow", f"send the whole head within {self._limits.head_seconds:g} s")
        elif self.keeps_us_waiting:
            self.drop("silent")
        elif self.cycle.response_started:
            self.drop("body_too_slow")
        else:
            self._refuse(408, "body_too_slow", f"send the whole body within {self._limits.body_seconds:g} s")

    def drop(self, reason: str) -> None:
        """End a connection without a word."""
        self.doorkeeper.turned_away(reason)
        self.doorkeeper.leave(self)
        self.transport.abort()

    def _wait_for_head(self) -> None:
        self.due_at = self.loop.time() + self._limits.head_seconds

    def _check_head(self, amount: int) -> None:
        most = self._limits.head_bytes
        if amount > most:
            message = f"the request line and the headers may have {most // 1024} KiB in all"
            self._refuse(431, "head_too_large", message)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """See `HttpToolsProtocol`: in the form of all errors."""
        self._refuse(400, "not_http", "this cannot be read as a request of HTTP/1.1")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer, and close when the client has read it, or soon."""
        if self._refused:
            return
        self._refused = True
        self.doorkeeper.turned_away(code)
        request_id = secrets.token_hex(16)
        body = json.dumps(error_body(code, message, request_id=request_id)).encode()
        later = b"retry-after: 5\r\n" if status in LATER else b""
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\nconnection: close\r\n%s\r\n"
            % (len(body), request_id.encode(), later)
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.due_at = self.loop.time() + LINGER_SECONDS


def guarded(doorkeeper: Doorkeeper) -> type[HttpConnection]:
    """The class of connections that this doorkeeper looks after."""
    return type("GuardedConnection", (HttpConnection,), {"doorkeeper": doorkeeper})


def files_allowed() -> int:
    """How many files this process may have open, after asking for as many as a server needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return FILES_WANTED if soft == resource.RLIM_INFINITY else soft


def backlog_for(files: int) -> int:
    """How many connections may wait to be accepted: they are accepted at one go, before any of them can be refused."""
    return max(16, min(BACKLOG_MAX, files // 8))


def connections_for(files: int) -> int:
    """How many connections there may be, so that files are left for all else."""
    return max(16, files - FILES_RESERVED - backlog_for(files))
