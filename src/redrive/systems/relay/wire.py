"""What comes and goes thousands of times a second on a connection to the broker: deliveries, messages to publish, confirms.

The driver gives each frame to three tasks, and each message one of its own and a write of its own, which was about four tenths of the relay's
processor time. So its reader is told here what arrives on a channel that somebody watches, before the driver looks, and what is published
goes out with all else of one turn of the loop. Connecting, channels, queues, heartbeats and ends stay the driver's: it gets every frame
that nobody here has taken.
"""

import asyncio
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Protocol
from uuid import uuid4

import aio_pika
from aiormq.abc import AbstractChannel as RawChannel
from aiormq.abc import DeliveredMessage
from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError
from pamqp.commands import Basic
from pamqp.frame import marshal
from pamqp.header import ContentHeader
from yarl import URL

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
ALIVE = b"\x08\x00\x00\x00\x00\x00\x00\xce"
"""A heartbeat."""
ALIVE_EVERY_SECONDS = 1.0
"""The driver takes a connection for dead on which it sees nothing. It is told at most so often of what it does not see."""
UNSENT_BYTES_MAX = 1 << 20
"""Of more than this a publisher waits until the broker has read some."""
DELIVER, RETURN = Basic.Deliver.index, Basic.Return.index
ACK, NACK = Basic.Ack.index, Basic.Nack.index

_frame = struct.Struct(">BHI")
_method = struct.Struct(">I")
_confirm = struct.Struct(">QB")
_delivery = struct.Struct(">QB")


class Watcher(Protocol):
    """Takes frames of one channel."""

    def take(self, kind: int, frame: bytes) -> bool:
        """Whether this frame was taken; if not, the driver gets it. Without its head and its last byte."""
        ...


class Wire(TransportFactory):
    """One connection to the broker, between the driver and the socket."""

    def __init__(self) -> None:
        self.watchers: dict[int, Watcher] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._unsent: list[bytes] = []

    def connection(self, url: URL) -> aio_pika.Connection:
        """The driver's connection to the broker, over this."""
        made = aio_pika.Connection(url)
        made.kwargs["transport_factory"] = self
        return made

    async def create(self, url: URL, **given: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, as the driver's own factories do."""
        loop, secure = asyncio.get_running_loop(), given.pop("ssl_context_provider")
        given |= {
            "host": url.host,
            "port": url.port,
            "ssl": await secure.get_context() if url.scheme == "amqps" else None,
        }
        reader = _Reader(self.watchers, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.create_connection(lambda: protocol, **given)
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        self._writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return reader, self._writer

    def send(self, frames: bytes) -> None:
        """Send whole frames, together with all others of this turn of the loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frames)

    @property
    def is_full(self) -> bool:
        """Whether the broker reads more slowly than we write."""
        return self._writer is not None and self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX

    async def drained(self) -> None:
        """Come back when the broker has read what was sent, or most of it."""
        if self._writer is not None:
            await self._writer.drain()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(b"".join(unsent))


class _Reader(asyncio.StreamReader):
    """Hands whole frames to whoever watches their channel, and all else to the driver, in its order."""

    def __init__(self, watchers: dict[int, Watcher], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._watchers = watchers
        self._begun = b""
        self._strange = False
        self._alive_at = loop.time()
        self._time = loop.time

    def feed_data(self, data: Any) -> None:
        """See `asyncio.StreamReader.feed_data`."""
        if self._begun:
            data, self._begun = self._begun + data, b""
        at = kept = 0
        watchers, length, took = self._watchers, len(data), False
        while not self._strange and length - at >= 8:
            kind, channel, size = _frame.unpack_from(data, at)
            ends = at + 8 + size
            if kind > HEARTBEAT:  # not our protocol: the driver says so
                self._strange = True
            elif ends > length:
                break
            elif data[ends - 1] != FRAME_END:
                self._strange = True
            else:
                watcher = watchers.get(channel)
                if watcher is not None and watcher.take(kind, data[at + 7 : ends - 1]):
                    if kept < at:
                        super().feed_data(data[kept:at])
                    kept, took = ends, True
                at = ends
        if self._strange:
            at = length
        if kept < at:
            super().feed_data(data[kept:at])
        elif took and self._time() - self._alive_at > ALIVE_EVERY_SECONDS:
            self._alive_at = self._time()
            super().feed_data(ALIVE)
        self._begun = data[at:]

    def feed_eof(self) -> None:
        """See `asyncio.StreamReader.feed_eof`."""
        if self._begun:  # the driver says that something is missing
            begun, self._begun = self._begun, b""
            super().feed_data(begun)
        super().feed_eof()


class _Content:
    """A header and its body, frame by frame."""

    __slots__ = ("_missing", "_parts", "header")

    def __init__(self) -> None:
        self.header: ContentHeader | None = None
        self._parts: list[bytes] = []
        self._missing = 0

    def add(self, kind: int, frame: bytes) -> bool:
        """Take a frame in; whether that was the last one."""
        if kind == HEADER:
            self.header = ContentHeader()
            self.header.unmarshal(frame)
            self._missing = self.header.body_size
        else:
            self._parts.append(frame)
            self._missing -= len(frame)
        return self._missing <= 0

    @property
    def body(self) -> bytes:
        """The whole body."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class Incoming:
    """What is delivered on a channel, put where it is asked for."""

    def __init__(self, channel: RawChannel, put: Callable[[DeliveredMessage], None]) -> None:
        self._channel = channel
        self._put = put
        self._delivery: Basic.Deliver | None = None
        self._content = _Content()

    def take(self, kind: int, frame: bytes) -> bool:
        """See `Watcher.take`."""
        if kind == METHOD:
            if _method.unpack_from(frame)[0] != DELIVER:
                return False
            self._delivery, self._content = _read_delivery(frame), _Content()
            return True
        if self._delivery is None:
            return False
        if self._content.add(kind, frame):
            delivery, self._delivery = self._delivery, None
            content = self._content
            assert content.header is not None, "a header comes before its body"
            self._put(DeliveredMessage(delivery, content.header, content.body, self._channel))
        return True


def _read_delivery(frame: bytes) -> Basic.Deliver:
    """The method of a delivery: the general decoder would take four times as long."""
    tag_at = 5 + frame[4]
    tag, redelivered = _delivery.unpack_from(frame, tag_at)
    exchange_at = tag_at + 10
    exchange_ends = exchange_at + frame[exchange_at - 1]
    made = Basic.Deliver.__new__(Basic.Deliver)
    made.consumer_tag = frame[5:tag_at].decode("utf-8", "replace")
    made.delivery_tag = tag
    made.redelivered = bool(redelivered & 1)
    made.exchange = frame[exchange_at:exchange_ends].decode("utf-8", "replace")
    made.routing_key = frame[exchange_ends + 1 : exchange_ends + 1 + frame[exchange_ends]].decode("utf-8", "replace")
    return made


class Published(Enum):
    """What became of a message that was published."""

    CONFIRMED = auto()
    """The broker has it, and is answerable for it."""
    UNROUTABLE = auto()
    """There is no such queue."""
    REFUSED = auto()
    """The broker would not take it: the queue is full, or something failed there."""
    UNCONFIRMED = auto()
    """No confirm came in time, or the connection broke before it again and again: it may have arrived, perhaps more than once."""


class UnknownReturnError(Exception):
    """A message came back that nobody here waits for: what did not arrive would be taken for confirmed."""


class ConfirmingChannel:
    """Publishes on a channel with confirms. Nobody else publishes there."""

    def __init__(self, wire: Wire, channel: RawChannel, patience_seconds: float) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._patience_seconds = patience_seconds
        self._number = channel.number
        self._body_bytes_max = channel.connection.connection_tune.frame_max - 8
        self._name = uuid4().hex
        self._tag = 0
        self._waiting: OrderedDict[int, tuple[asyncio.Future[Published | None], str]] = OrderedDict()
        self._tags: dict[str, int] = {}
        self._back: set[int] = set()
        self._returning: _Content | None = None
        self._sent: deque[tuple[float, asyncio.Future[Published | None]]] = deque()
        self._looking: asyncio.TimerHandle | None = None

    async def publish(self, message: aio_pika.Message, queue: str) -> Published | None:
        """Publish to the queue and wait for what `send` promises. Of those that share an id only one may be under way."""
        if self._wire.is_full:
            try:
                async with asyncio.timeout(self._patience_seconds):
                    await self._wire.drained()
            except (
                TimeoutError
            ):  # a broker that is out of memory or disk reads nothing: what is sent again and again would fill ours
                return Published.REFUSED
        return await self.send(message.properties, message.body, queue)

    def send(self, properties: Basic.Properties, body: bytes, queue: str) -> "asyncio.Future[Published | None]":
        """Send a message to the queue; what the broker will say of it, or None if the connection breaks before.

        A message comes back as unroutable under its id alone, so one without gets an id of its own.
        """
        tag = self._tag + 1
        known = properties.message_id = properties.message_id or f"{self._name}-{tag}"
        frames = self._frames(properties, body, queue)  # what this raises was not sent, and has no number
        self._tag = tag
        answer = self._loop.create_future()
        self._waiting[tag] = answer, known
        self._tags[known] = tag
        self._wire.send(frames)
        self._sent.append((self._loop.time(), answer))
        if self._looking is None:
            self._looking = self._loop.call_later(self._patience_seconds, self._look)
        return answer

    def _frames(self, properties: Basic.Properties, body: bytes, queue: str) -> bytes:
        number = self._number
        head = marshal(ContentHeader(body_size=len(body), properties=properties), number)
        parts = [_publishing(number, queue), head]
        for start in range(0, len(body), self._body_bytes_max):
            part = body[start : start + self._body_bytes_max]
            parts += (_frame.pack(BODY, number, len(part)), part, b"\xce")
        return b"".join(parts)

    def take(self, kind: int, frame: bytes) -> bool:
        """See `Watcher.take`."""
        if kind != METHOD:
            if self._returning is None:
                return False
            if self._returning.add(kind, frame):
                self._came_back(self._returning)
                self._returning = None
            return True
        [method] = _method.unpack_from(frame)
        if method in (ACK, NACK):
            tag, flags = _confirm.unpack_from(frame, 4)
            said = Published.CONFIRMED if method == ACK else Published.REFUSED
            for one in self._before(tag) if flags & 1 else (tag,):
                self._answer(one, said)
            return True
        if method == RETURN:
            self._returning = _Content()
            return True
        return False

    def _came_back(self, content: _Content) -> None:
        assert content.header is not None, "a header comes before its body"
        tag = self._tags.get(content.header.properties.message_id or "")
        if tag is None:
            raise UnknownReturnError
        self._back.add(tag)  # its confirm follows

    def _before(self, tag: int) -> list[int]:
        """All that wait up to this one."""
        found: list[int] = []
        for one in self._waiting:
            if one > tag:
                break
            found.append(one)
        return found

    def _answer(self, tag: int, said: Published) -> None:
        answer, known = self._waiting.pop(tag, (None, ""))
        if answer is None:
            return
        if self._tags.get(known) == tag:
            del self._tags[known]
        came_back = tag in self._back
        self._back.discard(tag)
        if not answer.done():  # nobody waits any more for one that took too long
            answer.set_result(Published.UNROUTABLE if came_back else said)

    def _look(self) -> None:
        """End the wait for those that were sent too long ago. One timer for all costs less than one for each."""
        now, sent = self._loop.time(), self._sent
        while sent and (sent[0][1].done() or now - sent[0][0] >= self._patience_seconds):
            _, answer = sent.popleft()
            if not answer.done():
                answer.set_result(Published.UNCONFIRMED)
        self._looking = None
        if sent:
            self._looking = self._loop.call_later(sent[0][0] + self._patience_seconds - now, self._look)

    def lose(self) -> None:
        """The session has ended: nobody learns any more what became of what was under way."""
        if self._looking is not None:
            self._looking.cancel()
        self._sent.clear()
        waiting, self._waiting = self._waiting, OrderedDict()
        for answer, _ in waiting.values():
            if not answer.done():
                answer.set_result(None)


@lru_cache(maxsize=1000)
def _publishing(channel: int, queue: str) -> bytes:
    """The method frame, the same for all messages to one queue."""
    return marshal(Basic.Publish(routing_key=queue, mandatory=True), channel)
