"""From the retry queue into the database: deliveries are gathered, stored in one transaction, and acknowledged after its commit.

Nothing is acknowledged before it is durable, here or in the quarantine. Whatever breaks in between (the broker, the database,
this process), the broker delivers again what was not acknowledged, and a message that is stored already changes nothing.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterable
from typing import Protocol

from aiormq.abc import AbstractChannel as RawChannel
from aiormq.abc import DeliveredMessage
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from redrive.errors import LedgerError, TooSlowError
from redrive.extend import describe_error, safe_text
from redrive.systems.relay.broker import Publisher
from redrive.systems.relay.frames import unreadable
from redrive.systems.relay.message import Arrival, InvalidMessageError, read_message
from redrive.systems.relay.quarantine import quarantine
from redrive.systems.relay.settings import RelaySettings
from redrive.systems.relay.store import Store, Stored

LINGER_SECONDS = 0.003
"""How long the first message of a batch waits for others."""
BATCH_MAX = 500
HOLD_SECONDS = 0.05
"""How soon a message is stored again whose row was being published."""
PAUSE_CAP_SECONDS = 2.0
TELL_EVERY_TRIES = 30
"""How often, in tries, it is told that the database does not store: about once a minute."""
_CONTENT_CLASSES = ("22", "23", "54")
"""SQLSTATE: data that cannot be, constraints that do not hold, limits of the database."""


class Told(Protocol):
    """Who is told what arrived; called after it is durable."""

    def stored(self, stored: Stored) -> None:
        """A batch is stored."""
        ...

    def invalid(self, reason: str, detail: str) -> None:
        """A message is in quarantine."""
        ...

    def unstored(self, error: str) -> None:
        """The database is there and does not store, for no fault of the messages; they wait until it does."""
        ...


class Tags:
    """Which deliveries of a channel are dealt with, and how to acknowledge them in few words.

    A broker numbers the deliveries of a channel from one. An acknowledgement stands for all before it too only up to the first
    that is still open, so a message that is held for a while keeps none behind it from being acknowledged.
    """

    def __init__(self) -> None:
        self._first_open = 1
        self._done: set[int] = set()
        self._told: set[int] = set()

    def done(self, tags: Iterable[int]) -> list[tuple[int, bool]]:
        """These are dealt with: the acknowledgements to send, each a tag and whether it stands for all before it too."""
        new = set(tags)
        self._done |= new
        last = None
        while self._first_open in self._done:
            self._done.discard(self._first_open)
            if self._first_open in self._told:
                self._told.discard(self._first_open)
            else:
                last = self._first_open
            self._first_open += 1
        rest = sorted(new & self._done)
        self._told.update(rest)
        return [*([] if last is None else [(last, True)]), *((tag, False) for tag in rest)]


class Intake:
    """Stores what arrives. One `take` for each session of the consumer."""

    def __init__(self, settings: RelaySettings, store: Store, publisher: Publisher, told: Told) -> None:
        self._settings = settings
        self._store = store
        self._publisher = publisher
        self._told = told

    async def take(self, channel: RawChannel, arrived: "asyncio.Queue[DeliveredMessage]") -> None:
        """Store and acknowledge until cancelled, which is when the session ends."""
        async with asyncio.TaskGroup() as helpers:
            session = _Session(self, channel, arrived, helpers)
            while True:
                await session.process(await self._batch(arrived))

    async def _batch(self, arrived: "asyncio.Queue[DeliveredMessage]") -> list[DeliveredMessage]:
        batch = [await arrived.get()]
        if arrived.empty():
            await asyncio.sleep(LINGER_SECONDS)
        while len(batch) < BATCH_MAX and not arrived.empty():
            batch.append(arrived.get_nowait())
        return batch

    def read(self, message: DeliveredMessage) -> Arrival:
        """The message, or an `InvalidMessageError` whatever it holds."""
        properties = message.header.properties
        if (strange := unreadable(message.header)) is not None:
            raise InvalidMessageError("bad_properties", f"the properties cannot be decoded: {strange.why}")
        try:
            return read_message(
                message.body,
                content_type=properties.content_type,
                content_encoding=properties.content_encoding,
                headers=properties.headers or {},
                settings=self._settings,
            )
        except InvalidMessageError:
            raise
        except Exception as error:  # nothing that a stranger sends may stop the consumer
            raise InvalidMessageError("unparsable", describe_error(error)) from error

    async def store(self, arrivals: list[Arrival]) -> tuple[Stored, dict[str, str]]:
        """Store, however long the database is away; what it refuses for good comes back by id with its words."""
        tries = 0
        while True:
            try:
                return await self._store.store(arrivals), {}
            except (StatementError, TooSlowError) as error:
                if isinstance(error, StatementError) and _is_about_content(error):
                    if len(arrivals) == 1:
                        return Stored(), {arrivals[0].message_id: describe_error(error)}
                    return await self._store_apart(arrivals)
                # A time limit, a deadlock, a right or a table that is missing: not what the messages hold, so they wait.
                if tries % TELL_EVERY_TRIES == 0:
                    self._told.unstored(describe_error(error))
            except LedgerError:  # away, or not migrated yet: the worker of the lane tells
                pass
            tries += 1
            ceiling = min(PAUSE_CAP_SECONDS, 0.05 * 2 ** min(tries, 10))
            await asyncio.sleep(random.uniform(ceiling / 2, ceiling))

    async def _store_apart(self, arrivals: list[Arrival]) -> tuple[Stored, dict[str, str]]:
        """One by one: a message that cannot be stored must not keep the others from it."""
        whole = Stored()
        refused: dict[str, str] = {}
        for one in arrivals:
            stored, failed = await self.store([one])
            refused |= failed
            for name in ("new", "returned", "known", "held"):
                getattr(whole, name).extend(getattr(stored, name))
        return whole, refused

    async def quarantine(self, message: DeliveredMessage, error: InvalidMessageError) -> None:
        """Publish bad input to its own queue; when this returns the broker has it there."""
        await quarantine(message, error, self._publisher, self._settings.invalid_queue)

    def tell_invalid(self, error: InvalidMessageError) -> None:
        """Say what is in quarantine now."""
        self._told.invalid(error.reason, safe_text(str(error)))

    def tell_stored(self, stored: Stored) -> None:
        """Say what is durable now."""
        self._told.stored(stored)


class _Session:
    """What belongs to one channel: its tags, the messages that are held, the quarantines under way."""

    def __init__(
        self,
        intake: Intake,
        channel: RawChannel,
        arrived: "asyncio.Queue[DeliveredMessage]",
        helpers: asyncio.TaskGroup,
    ) -> None:
        self._intake = intake
        self._channel = channel
        self._arrived = arrived
        self._helpers = helpers
        self._tags = Tags()
        self._acknowledging = asyncio.Lock()

    async def process(self, batch: list[DeliveredMessage]) -> None:
        """Deal with a batch of deliveries."""
        good: list[tuple[DeliveredMessage, Arrival]] = []
        for message in batch:
            try:
                good.append((message, self._intake.read(message)))
            except InvalidMessageError as error:
                self._helpers.create_task(self._quarantine(message, error))
        held = await self._store(good)
        if held:
            self._helpers.create_task(self._store_held(held))

    async def _store(self, pairs: list[tuple[DeliveredMessage, Arrival]]) -> list[tuple[DeliveredMessage, Arrival]]:
        """Store and acknowledge; those that must be held."""
        if not pairs:
            return []
        stored, refused = await self._intake.store([arrival for _, arrival in pairs])
        # By identity: two deliveries of one message may be in one batch.
        held_ids = {id(arrival) for arrival in stored.held}
        held = [pair for pair in pairs if id(pair[1]) in held_ids]
        for message, arrival in pairs:
            if arrival.message_id in refused:
                error = InvalidMessageError("cannot_be_stored", refused[arrival.message_id])
                self._helpers.create_task(self._quarantine(message, error))
        await self._acknowledge(
            _tag(message)
            for message, arrival in pairs
            if id(arrival) not in held_ids and arrival.message_id not in refused
        )
        self._intake.tell_stored(stored)
        return held

    async def _store_held(self, held: list[tuple[DeliveredMessage, Arrival]]) -> None:
        """Try again until the claims have ended. The broker sees them as under way meanwhile."""
        while held:
            await asyncio.sleep(HOLD_SECONDS * random.uniform(0.8, 1.2))
            held = await self._store(held)

    async def _quarantine(self, message: DeliveredMessage, error: InvalidMessageError) -> None:
        await self._intake.quarantine(message, error)
        await self._acknowledge([_tag(message)])
        self._intake.tell_invalid(error)

    async def _acknowledge(self, tags: Iterable[int]) -> None:
        done = list(tags)
        # One after the other: a word that waits for its place on the wire must not be overtaken by one that stands for all
        # before it. The broker closes a channel that acknowledges a delivery twice.
        # On a channel that is gone nothing can be acknowledged, nor need be: it all comes again.
        async with self._acknowledging:
            await self._send(self._tags.done(done))
        for _ in done:
            self._arrived.task_done()

    async def _send(self, words: list[tuple[int, bool]]) -> None:
        with contextlib.suppress(Exception):
            for at, (tag, multiple) in enumerate(words, start=1):
                # Only the last waits until it is on the wire: behind a message that is held each has a word of its own.
                await self._channel.basic_ack(tag, multiple=multiple, wait=at == len(words))


def _is_about_content(error: StatementError) -> bool:
    """Whether the database refuses what a message holds, and will whenever it is asked."""
    if not isinstance(error, DBAPIError):
        return True  # it was not even sent: a value cannot be bound
    state = str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or "")
    if state:
        return state.startswith(_CONTENT_CLASSES)
    # SQLite has no states; the driver of PostgreSQL calls a value that it cannot encode an interface error.
    return isinstance(error, IntegrityError | DataError) or "invalid input for query argument" in str(error.orig)


def _tag(message: DeliveredMessage) -> int:
    tag = message.delivery_tag
    assert tag is not None, "a delivery has a tag"
    return tag
