"""One session of the consumer, step by step: when it acknowledges, and in how many words."""

import asyncio
import random
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiormq.abc import DeliveredMessage
from hypothesis import given
from hypothesis import strategies as st

from redrive import Redrive
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay.deliveries import ChannelSession, Deliveries, Tags
from redrive.systems.relay.logs import RelayMetrics
from redrive.systems.relay.message import InvalidMessageError

from .kit import Broker, Recorder, delivered, retry, rows

SETTINGS = RelaySettings(_env_file=None)


# --- properties that cannot be decoded --------------------------------------------------------------------------------


# --- acknowledging ----------------------------------------------------------------------------------------------------


class Narrow:
    """A channel as the driver has it, with room for ten words on their way, and a broker that knows each delivery once."""

    def __init__(self, amount: int) -> None:
        self.open = set(range(1, amount + 1))
        self.unknown: list[int] = []
        self._words: asyncio.Queue[Any] = asyncio.Queue(10)

    async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
        written = asyncio.get_running_loop().create_future()
        await self._words.put((tag, multiple, written))
        if wait:
            await written

    async def broker(self) -> None:
        while True:
            tag, multiple, written = await self._words.get()
            if tag not in self.open:
                self.unknown.append(tag)
            self.open -= {each for each in self.open if each <= tag} if multiple else {tag}
            written.set_result(None)
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(5))
async def test_no_delivery_is_acknowledged_twice(seed: int) -> None:
    """However many end at once and in whatever order, over a wire that is slower than they are: the broker would close the channel."""
    rng, amount = random.Random(seed), 300
    channel, arrived = Narrow(amount), asyncio.Queue[Any]()
    for tag in range(amount):
        arrived.put_nowait(tag)
    tags, parts = rng.sample(range(1, amount + 1), amount), []
    while tags:
        size = rng.choice([1, 1, 5, 30])
        parts.append(tags[:size])
        tags = tags[size:]
    broker = asyncio.create_task(channel.broker())
    async with asyncio.TaskGroup() as helpers:
        session = ChannelSession(SimpleNamespace(intake=None), channel, arrived, helpers)  # type: ignore[arg-type]
        for part in parts:
            helpers.create_task(session._acknowledge(part))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
    broker.cancel()
    assert channel.unknown == []
    assert channel.open == set()
    await asyncio.wait_for(arrived.join(), 60)


async def test_the_acknowledgement_comes_after_the_commit(app: Redrive, url: str, broker: Broker) -> None:
    """At the moment in which it is sent, somebody else can read every row of its batch."""
    relay = Relay(app, broker.settings())
    arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
    for number in range(1, 4):
        arrived.put_nowait(delivered(retry(f"m-{number}", "q").SerializeToString(), number))
    seen: list[tuple[int, bool, list[str]]] = []
    other = Redrive(url)

    class Channel:
        async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
            seen.append((tag, multiple, [each["message_id"] for each in await rows(other)]))

    async with app, other:
        taking = asyncio.create_task(relay._deliveries.take(Channel(), arrived))  # type: ignore[arg-type]
        await asyncio.wait_for(arrived.join(), 60)
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
    assert seen == [(3, True, ["m-1", "m-2", "m-3"])]


async def test_a_quarantine_is_told_after_its_acknowledgement() -> None:
    """What cannot be told, under a full disk, must not come again."""
    steps: list[str] = []

    class Publisher:
        async def deliver(self, message: Any, queue: str) -> None:
            steps.append("published")

    class Channel:
        async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
            steps.append("acknowledged")

    class Log(Recorder):
        def quarantined(self, error: InvalidMessageError) -> None:
            steps.append(f"told {error.reason}")

    arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
    arrived.put_nowait(delivered(b"\xff"))
    deliveries = Deliveries(SETTINGS, SimpleNamespace(), Publisher(), Log(), RelayMetrics())  # type: ignore[arg-type]
    taking = asyncio.create_task(deliveries.take(Channel(), arrived))  # type: ignore[arg-type]
    await asyncio.wait_for(arrived.join(), 60)
    taking.cancel()
    with suppress(asyncio.CancelledError):
        await taking
    assert steps == ["published", "acknowledged", "told unparsable"]


# --- what the database says -------------------------------------------------------------------------------------------


@given(st.data())
def test_tags_are_acknowledged_once_and_only_when_done(data: st.DataObject) -> None:
    """In whatever order deliveries are done, the broker hears of each exactly once, and never of one that is not done."""
    amount = data.draw(st.integers(1, 30))
    order = data.draw(st.permutations(range(1, amount + 1)))
    tags, done, unacked = Tags(), set[int](), set(range(1, amount + 1))
    while order:
        size = data.draw(st.integers(1, len(order)))
        group, order = order[:size], order[size:]
        done |= set(group)
        for tag, multiple in tags.done(group):
            assert tag in unacked, "the broker closes the channel for a tag that it does not know"
            heard = {one for one in unacked if one <= tag} if multiple else {tag}
            assert heard <= done
            unacked -= heard
        assert not unacked & done
    assert not unacked


def test_a_held_message_does_not_hold_the_others() -> None:
    """Those behind it are acknowledged one by one, and it closes the gap."""
    tags = Tags()
    assert tags.done([1, 2]) == [(2, True)]
    assert tags.done([4, 5]) == [(4, False), (5, False)]
    assert tags.done([3]) == [(3, True)]
