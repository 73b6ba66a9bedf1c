"""Connections to the broker that are made again whenever they break, and publishing that waits for its confirm.

aio-pika's robust connections are not used on purpose. They reopen channels behind the caller's back, where delivery tags of
the old channel mean other messages or none; here a new connection is a new session, and whatever belonged to the old one is
forgotten with it. The broker delivers again what was not acknowledged.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq.abc import AbstractChannel as RawChannel
from aiormq.abc import DeliveredMessage
from yarl import URL

from redrive.operator.words import describe_error
from redrive.systems.relay.frames import survive_strangers
from redrive.systems.relay.topology import declare
from redrive.systems.relay.wire import ConfirmingChannel, Incoming, Published, Wire

CONNECT_SECONDS_MAX = 10
HEARTBEAT_SECONDS = 10
"""A broker that does not answer is given up after about three of these."""
PAUSE_FIRST_SECONDS = 0.05
PAUSE_CAP_SECONDS = 5.0
LASTED_SECONDS = 10.0
"""A connection that held this long was a good one: the next pause is short again."""
CLOSE_SECONDS_MAX = 3
FINISH_SECONDS_MAX = 2
"""How long a stopping relay deals with what has arrived. What is left then comes again."""
CONFIRM_SECONDS_MAX = 60
"""A queue that never confirms, such as one without its majority, must not keep all the others waiting."""
CONFIRMS_LOST_MAX = 3
"""After so many lost confirms of one message it steps back: it may be what breaks the channel, and others must go on."""

Told = Callable[[str, bool, str], None]
"""Is told the name of a link, whether it is up, and the error if it is not; once for each change."""


class Link:
    """One connection, made again for as long as `run` runs."""

    def __init__(self, url: str, name: str, tell: Told) -> None:
        given = URL(url)
        named: dict[str, str] = {"name": name}
        if "heartbeat" not in given.query:
            named["heartbeat"] = str(HEARTBEAT_SECONDS)
        self._url = given.update_query(named)
        self.name = name
        self._tell = tell
        self._known: bool | None = None
        self.was_up = False
        """Whether it has ever been up."""

    @property
    def is_up(self) -> bool:
        """Whether it can be used now."""
        return self._known is True

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        _hush()
        survive_strangers()
        tries = 0
        while True:
            began = time.monotonic()
            error = await self._one_session()
            _heed_end()
            self._say(up=False, error=error)
            tries = 1 if time.monotonic() - began > LASTED_SECONDS else tries + 1
            await pause(tries, cap_seconds=PAUSE_CAP_SECONDS)

    async def _one_session(self) -> str:
        """From connecting to the end of the connection; why it ended."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def end(_sender: Any = None, error: BaseException | None = None) -> None:
            if not ended.done():
                ended.set_result("closed" if error is None else describe_error(error))

        wire = Wire()
        connection = wire.connection(self._url)
        try:
            await connection.connect(timeout=CONNECT_SECONDS_MAX)
            connection.close_callbacks.add(end)
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await self._open(connection, wire, end)
            _heed_end()
            self._say(up=True)
            return await ended
        except Exception as error:  # whatever a driver says: it is tried again
            return describe_error(error)
        except asyncio.CancelledError as error:
            if _is_to_end():
                raise
            return describe_error(error)
        finally:
            self._forget()
            await _close(connection)

    def _say(self, *, up: bool, error: str = "") -> None:
        self.was_up = self.was_up or up
        if self._known is not up:
            self._known = up
            self._tell(self.name, up, error)

    async def _open(self, connection: AbstractConnection, wire: Wire, end: Callable[..., None]) -> None:
        """Set up what the link is for; call `end` when that breaks."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Let go of what `_open` has set up."""


class Publisher(Link):
    """Publishes to queues, many messages in flight, each until its confirm."""

    def __init__(
        self,
        url: str,
        name: str,
        tell: Told,
        *,
        queues: Sequence[str],
        cut: Callable[[aio_pika.Message, str], None],
    ) -> None:
        super().__init__(url, name, tell)
        self._queues = tuple(queues)
        self._cut = cut
        self._connection: AbstractConnection | None = None
        self._outgoing: ConfirmingChannel | None = None
        self._usable = asyncio.Event()
        self._end: Callable[..., None] = _nothing
        self._under_way: dict[str, asyncio.Event] = {}

    async def _open(self, connection: AbstractConnection, wire: Wire, end: Callable[..., None]) -> None:
        for queue in self._queues:
            await declare(connection, queue)
        channel = connection.channel(publisher_confirms=True)
        await channel.initialize()
        channel.close_callbacks.add(end)
        raw = await channel.get_underlay_channel()
        outgoing = ConfirmingChannel(wire, raw, CONFIRM_SECONDS_MAX)
        wire.watchers[raw.number] = outgoing
        self._connection, self._outgoing, self._end = connection, outgoing, end
        self._usable.set()

    def _forget(self) -> None:
        self._usable.clear()
        self._connection = None
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.lose()

    async def publish(self, message: aio_pika.Message, queue: str) -> Published:
        """Publish to the queue and wait for the confirm, and before that for the broker while it is away.

        Those that share an id go one at a time: a message that comes back as unroutable is known by nothing else. Of two at once the one
        would be taken for the other, and the one that came back for confirmed.
        """
        if not (message_id := message.message_id):
            return await self._publish(message, queue)
        while (other := self._under_way.get(message_id)) is not None:
            await other.wait()
        self._under_way[message_id] = ended = asyncio.Event()
        try:
            return await self._publish(message, queue)
        finally:
            del self._under_way[message_id]
            ended.set()

    async def _publish(self, message: aio_pika.Message, queue: str) -> Published:
        lost = 0
        while True:
            await self._usable.wait()
            outgoing = self._outgoing
            if outgoing is None:
                continue
            try:
                answer = await outgoing.publish(message, queue)
            except OSError:  # the connection, not the message
                pass
            else:
                if answer is Published.UNCONFIRMED:  # the queue, not the connection: others use it
                    self._cut(message, queue)
                if answer is not None:
                    return answer
            lost += 1
            self._cut(message, queue)  # it may have arrived: sent again, it may arrive twice
            if self._outgoing is outgoing:
                self._usable.clear()
                self._end()
            if lost >= CONFIRMS_LOST_MAX:
                return Published.UNCONFIRMED

    async def deliver(self, message: aio_pika.Message, queue: str) -> None:
        """Publish to one of the relay's own queues; when this returns the broker has it there, however long that takes."""
        tries = 0
        while (answer := await self.publish(message, queue)) is not Published.CONFIRMED:
            if answer is Published.UNROUTABLE:
                await self.declare_again(queue)
            tries += 1
            await pause(tries, cap_seconds=PAUSE_CAP_SECONDS)

    async def declare_again(self, queue: str) -> None:
        """Declare one of the relay's own queues that somebody has deleted."""
        if self._connection is not None:
            with _whatever_it_says():
                await declare(self._connection, queue)


class Consumer(Link):
    """Takes messages from a queue, and hands each session's over to `take`, until that session ends."""

    def __init__(
        self,
        url: str,
        name: str,
        tell: Told,
        *,
        queue: str,
        prefetch: int,
        take: Callable[[RawChannel, "asyncio.Queue[DeliveredMessage]"], Awaitable[None]],
        prepare: Callable[[AbstractConnection, str], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(url, name, tell)
        self._queue = queue
        self._prepare = declare if prepare is None else prepare
        self._prefetch = prefetch
        self._take = take
        self._taking: asyncio.Task[None] | None = None
        self._session: tuple[RawChannel, str, asyncio.Queue[DeliveredMessage]] | None = None

    async def _open(self, connection: AbstractConnection, wire: Wire, end: Callable[..., None]) -> None:
        await self._prepare(connection, self._queue)
        channel = connection.channel(publisher_confirms=False)
        await channel.initialize()
        channel.close_callbacks.add(end)
        await channel.set_qos(prefetch_count=self._prefetch)
        raw = await channel.get_underlay_channel()
        # A queue that is deleted ends its consumers without closing anything: nothing would ever arrive again.
        raw.on_consumer_cancel_callbacks.add(lambda _frame: end(None, ConsumerCancelledError(self._queue)))
        arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()  # the prefetch is its limit
        self._taking = asyncio.create_task(self._take_all(raw, arrived, end), name="relay-intake")
        wire.watchers[raw.number] = Incoming(raw, arrived.put_nowait)
        consuming = await raw.basic_consume(self._queue, arrived.put, no_ack=False)
        self._session = (raw, str(consuming.consumer_tag), arrived)

    async def _take_all(
        self, raw: RawChannel, arrived: "asyncio.Queue[DeliveredMessage]", end: Callable[..., None]
    ) -> None:
        try:
            await self._take(raw, arrived)
        except Exception as error:
            end(None, error)

    async def finish(self) -> None:
        """Take no more, and deal with what has arrived: left to the broker it would come again, perhaps after it went out."""
        if self._session is None:
            return
        raw, tag, arrived = self._session
        with _whatever_it_says():
            async with asyncio.timeout(FINISH_SECONDS_MAX):
                await raw.basic_cancel(tag)
                await arrived.join()

    def _forget(self) -> None:
        self._session = None
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None


async def consume_until(stopped: asyncio.Event, consumer: Consumer, publishing: "asyncio.Task[None]") -> None:
    """Take messages in until stopped, then finish what has arrived. Publishing goes on; what breaks either is raised."""
    consuming = asyncio.create_task(consumer.run(), name=consumer.name)
    stopping = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({consuming, publishing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for link in (consuming, publishing):
            if link.done():
                link.result()  # neither ends by itself: what it raised must be heard
        await consumer.finish()
    finally:
        consuming.cancel()
        stopping.cancel()
        await asyncio.gather(consuming, stopping, return_exceptions=True)


async def pause(tries: int, *, cap_seconds: float) -> None:
    """Wait before the next try: up to twice as long after each, and not all at the same moment."""
    ceiling = min(cap_seconds, PAUSE_FIRST_SECONDS * 2 ** min(tries, 10))
    await asyncio.sleep(random.uniform(ceiling / 2, ceiling))


class ConsumerCancelledError(Exception):
    """The broker ended the consumer: its queue was deleted or moved."""


def _is_to_end() -> bool:
    """Whether it is this task that is cancelled. The driver cancels, too, what waits for a connection that it gives up."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _heed_end() -> None:
    """End this task if it was cancelled and the driver kept that to itself, as `wait_for` of Python 3.11 in it may."""
    if _is_to_end():
        raise asyncio.CancelledError


@contextlib.contextmanager
def _whatever_it_says() -> Iterator[None]:
    """Go on, whatever the driver raises; its own cancellations are no reason to end either."""
    with contextlib.suppress(Exception):
        try:
            yield
        except asyncio.CancelledError:
            if _is_to_end():
                raise


def _nothing(*_: Any) -> None:
    """Before there is a session there is none to end."""


async def _close(connection: AbstractConnection) -> None:
    """Close a connection that may be broken already, without waiting long or raising."""
    with _whatever_it_says():
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await connection.close()


def _hush() -> None:
    """Leave outages to our own one line for each: the drivers log every try."""
    for name in ("aio_pika", "aiormq"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
