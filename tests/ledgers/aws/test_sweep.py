"""Finding what was lost: by turns, in rounds, and through indexes that are behind."""

import asyncio
from typing import Any

import pytest

from redrive.core.durations import ZERO, hours, minutes, seconds
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.ledgers.aws import sweep
from redrive.ledgers.aws.attributes import to_micros
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.expressions import put
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ports import Filter
from redrive.systems.triggers.aws.follow import EventFollower
from tests.ledgers.aws.clock_sqs import ClockSqs
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.aws.homes import DELIVERIES, ItemHome, make_ledger
from tests.ledgers.aws.lagging import LaggingClient
from tests.ledgers.homes import ADA, LEASE, PERMANENT, settlement

STORES = ("aws",)


async def put_without_messages(home: ItemHome, amount: int) -> list[TaskId]:
    """Deliveries whose messages were lost."""
    queue, home.ledger.queue = home.ledger.queue, ClockSqs(home.clock).queue()
    ids = await home.put(amount)
    home.ledger.queue = queue
    return ids


def as_deployed(home: ItemHome, client: Any = None) -> DynamoLedger:
    """The ledger with the spans that it has in production."""
    dynamo = home.ledger.dynamo if client is None else Dynamo(client, home.ledger.dynamo.table)
    return DynamoLedger(dynamo, home.ledger.queue, DELIVERIES.table, clock=home.clock, follower=EventFollower())


async def test_a_lost_message_is_sent_again_after_two_minutes(home: ItemHome) -> None:
    """As deployed: not before, and once, however many processes look."""
    home.ledger = as_deployed(home)
    [id_] = await put_without_messages(home, 1)
    queue = home.ledger.queue
    home.clock.advance(seconds(119))
    assert await home.ledger.reclaim(9, LEASE) == []
    assert await queue.depth() == 0
    home.clock.advance(seconds(11))
    others = [as_deployed(home) for _ in range(3)]
    assert await asyncio.gather(*(one.reclaim(9, LEASE) for one in others)) == [[], [], []]
    assert await queue.depth() == 1
    assert [claim.task.id for claim in await others[0].claim(9, LEASE)] == [id_]


async def test_all_processes_take_turns(home: ItemHome) -> None:
    """Whoever asks while it is another's turn makes one call; when it is over anybody sweeps. A turn without end is not believed."""
    client = CuttingClient(home.ledger.dynamo._client)
    first, second = as_deployed(home), as_deployed(home, client)
    await first.reclaim(9, LEASE)
    await second.reclaim(9, LEASE)
    assert dict(client.calls) == {"get_item": 1}
    await second.reclaim(9, LEASE)
    assert dict(client.calls) == {"get_item": 1}, "a process asks for its turn every ten seconds only"
    home.clock.advance(seconds(11))
    third = as_deployed(home, client)
    client.calls.clear()
    await third.reclaim(9, LEASE)
    assert dict(client.calls) == {"get_item": 1, "update_item": 1, "query": 16}
    until = to_micros(home.clock.now() + hours(5))
    await first.dynamo.write([put(first._turn_key, {"held_until": until})])
    client.calls.clear()
    await as_deployed(home, client).reclaim(9, LEASE)
    assert client.calls["query"] == 16


async def test_a_round_is_bounded_and_goes_on_where_it_stopped(home: ItemHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Much that was lost at once is found in several rounds, each of which does little; the last has found everything, once."""
    monkeypatch.setattr(sweep, "SWEPT_MAX", 2)
    monkeypatch.setattr(sweep, "ROUND_MAX", 3)
    await put_without_messages(home, 36)
    client = CuttingClient(home.ledger.dynamo._client)
    ledger = make_ledger(Dynamo(client, home.ledger.dynamo.table), home.ledger.queue, home.clock)
    depths = []
    while not depths or depths[-1] < 12:
        before = client.calls["update_item"]
        assert await ledger.reclaim(9, LEASE) == []
        assert client.calls["update_item"] - before <= 2 + 4, "each head that was looked at, and the turn"
        depths.append(await home.ledger.queue.depth())
        assert len(depths) < 24, depths
    assert len(depths) >= 4
    assert await ledger.reclaim(9, LEASE) == []
    assert await home.ledger.queue.depth() == 12


async def test_lost_claims_are_handed_out_up_to_the_limit(home: ItemHome) -> None:
    """The rest comes with the next rounds, which follow at once."""
    await home.put(12)
    assert len(await home.ledger.claim(12, LEASE)) == 12
    home.clock.advance(LEASE + seconds(10))
    found = []
    for _ in range(6):
        some = await home.ledger.reclaim(5, LEASE)
        assert len(some) <= 5
        found += [claim.task.id for claim in some]
    assert len(found) == len(set(found)) == 12


# --- an index is behind -------------------------------------------------------------------------------------------------


def lagging(home: ItemHome) -> LaggingClient:
    """Let all that this home does go through indexes that are a second behind."""
    client = LaggingClient(home.ledger.dynamo._client, home.clock, home.ledger.dynamo.table)
    home.ledger = make_ledger(Dynamo(client, home.ledger.dynamo.table), home.ledger.queue, home.clock)
    return client


async def test_a_stale_entry_is_seen_through(home: ItemHome) -> None:
    """A sweep that meets a head another has just swept, or that has ended, leaves it alone."""
    client = lagging(home)
    [id_] = await put_without_messages(home, 1)
    home.clock.advance(seconds(2))
    assert await home.ledger.reclaim(9, LEASE) == []
    assert await home.ledger.queue.depth() == 1
    home.clock.advance(seconds(0.5))
    assert await home.ledger.reclaim(9, LEASE) == []
    assert await home.ledger.queue.depth() == 1, "it was sent already; the index has not heard of it"
    assert client.stale > 0
    [claim] = await home.ledger.claim(9, LEASE)
    home.clock.advance(LEASE + minutes(3))
    [lost] = await home.ledger.reclaim(9, LEASE)
    assert (lost.task.id, lost.claim_id) == (id_, claim.claim_id)
    assert await home.ledger.reclaim(9, LEASE) == [], "it was taken over already"
    assert await home.ledger.settle([settlement(lost)], worker="w1") == []
    assert await home.ledger.reclaim(9, LEASE) == []
    assert [one.outcome for one in await home.ledger.attempts(id_)] == ["done"]


async def test_pages_show_nothing_old(home: ItemHome) -> None:
    """What has just become dead may be missing for a second; what is no longer dead is not shown as dead, and none is shown twice."""
    client = lagging(home)
    ids = await home.put(6)
    home.clock.advance(seconds(2))
    claims = await home.ledger.claim(6, LEASE)
    assert await home.ledger.settle([settlement(claim, PERMANENT) for claim in claims], worker="w1") == []

    async def listed(state: State) -> list[TaskId]:
        found, cursor = list[TaskId](), None
        while True:
            page = await home.ledger.find(Filter(state=state), cursor=cursor, limit=2)
            assert all(task.state is state for task in page.items)
            found += [task.id for task in page.items]
            if page.cursor is None:
                return found
            cursor = page.cursor

    assert await listed(State.DEAD) == []
    assert await listed(State.WAITING) == [], "they are dead, though the index still lists them as open"
    home.clock.advance(seconds(1))
    assert await listed(State.DEAD) == ids
    assert await home.ledger.redrive(ids[:3], ADA) == ids[:3]
    assert await listed(State.DEAD) == ids[3:]
    assert (await home.ledger.counts())[State.WAITING] in (0, 3)
    home.clock.advance(seconds(1))
    assert await listed(State.WAITING) == ids[:3]
    assert (await home.ledger.counts())[State.WAITING] == 3
    assert client.stale > 0
    assert await home.ledger.next_due() == ZERO
