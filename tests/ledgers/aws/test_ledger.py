"""What is special about a ledger over items: what it refuses, what messages may do to it, and what a cut call leaves."""

import asyncio
import json
import urllib.request
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from redrive.core.durations import ZERO, hours, minutes, seconds
from redrive.core.outcome import Done, Failed, LeaseExpired
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.errors import UsageError
from redrive.ledgers.aws.expressions import query
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.queue import Message, ReceivedMessage
from redrive.ports import Filter, Return
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.aws.homes import ClockQueue, ItemHome
from tests.ledgers.homes import ADA, BACKOFF, LEASE, PERMANENT, START, TRANSIENT, settlement

STORES = ("aws",)


# --- what is refused ----------------------------------------------------------------------------------------------------


async def test_there_is_no_transaction_to_join(home: ItemHome) -> None:
    """Whatever would need one says so in one sentence, and writes nothing."""
    [id_] = await home.dead()
    settled = settlement((await home.ledger.claim(1, LEASE) or [None])[0]) if await home.put() else None  # type: ignore[arg-type]
    refused = pytest.raises(UsageError, match="no transaction to join: call it without within")
    with refused:
        await home.ledger.settle([settled] if settled else [], worker="w1", within=object())
    with refused:
        await home.ledger.return_([Return(id=id_, failures=1, delay=ZERO)], ADA, within=object())
    with refused:
        home.ledger.transaction()
    with refused:
        home.ledger.return_sync([], ADA, within=object())
    assert home.ledger.transactions_max == 0


async def test_what_no_index_serves_is_refused(home: ItemHome) -> None:
    """Nothing here scans: what has ended is listed by user, text is not searched, and events go by their retention."""
    for state in (State.DONE, State.CANCELLED):
        with pytest.raises(UsageError, match="ended deliveries are listed by user"):
            await home.ledger.find(Filter(state=state))
    with pytest.raises(UsageError, match="cannot search for text"):
        await home.ledger.find(Filter(text="bank", state=State.DEAD))
    with pytest.raises(UsageError, match="pruned by their retention"):
        await home.ledger.prune([State.DONE], hours(1))


# --- messages -----------------------------------------------------------------------------------------------------------


async def test_a_doubled_message_changes_nothing(home: ItemHome) -> None:
    """However many messages there are for a head, each task is claimed once, and no message is left."""
    [id_] = await home.put()
    message = Message(str(id_).partition(".")[0], 0)
    await home.ledger.queue.send([(message, ZERO)] * 5)
    other = await home.another()
    claims = await asyncio.gather(*(ledger.claim(3, LEASE) for ledger in (home.ledger, other) for _ in range(2)))
    assert [claim.task.id for some in claims for claim in some] == [id_]
    assert await home.ledger.queue.depth() == 0


class LosingQueue(ClockQueue):
    """A queue that takes messages and forgets them."""

    async def send(self, messages: Any) -> None:
        return


async def test_a_lost_message_is_sent_again_by_the_sweep(home: ItemHome) -> None:
    """A head without a message is found, once, when it is long due; two sweeps at once send it once."""
    queue, home.ledger.queue = home.ledger.queue, LosingQueue(home.clock)
    [id_] = await home.put(delay=minutes(1))
    home.ledger.queue = queue
    assert await home.ledger.reclaim(9, LEASE) == []
    assert await queue.depth() == 0, "it is not due yet"
    home.clock.advance(minutes(2))
    assert await home.ledger.claim(9, LEASE) == []
    other = await home.another()
    assert await asyncio.gather(home.ledger.reclaim(9, LEASE), other.reclaim(9, LEASE)) == [[], []]
    assert await queue.depth() == 1
    assert await home.ledger.reclaim(9, LEASE) == []
    assert await queue.depth() == 1, "it has just been sent"
    assert [claim.task.id for claim in await home.ledger.claim(9, LEASE)] == [id_]


async def test_a_long_wait_hops(home: ItemHome) -> None:
    """A wait that is longer than a queue can delay is made in steps, each a message that says the same."""
    [id_] = await home.put(delay=hours(1))
    for step in range(1, 4):
        home.clock.advance(minutes(15))
        assert await home.ledger.claim(9, LEASE) == []
        assert await home.ledger.queue.depth() == 1, step
    home.clock.advance(minutes(15))
    assert [claim.task.id for claim in await home.ledger.claim(9, LEASE)] == [id_]
    assert await home.ledger.queue.depth() == 0


async def test_a_message_for_nothing_is_forgotten(home: ItemHome) -> None:
    """Of a head that is gone, that has ended, or that waits for another instant; one that cannot be read is left alone."""
    await home.put()
    await home.run(TRANSIENT)
    await home.put()
    done = await home.run(Done())
    depth = await home.ledger.queue.depth()
    waiting, ended = (str(id_).partition(".")[0] for id_ in ("event-00001.00", done.task.id))
    await home.ledger.queue.send([(Message(head, 7), ZERO) for head in (waiting, ended, "nobody")])
    assert await home.ledger.claim(9, LEASE) == []
    assert await home.ledger.queue.depth() == depth == 1
    deleted: list[ReceivedMessage] = []

    class Unreadable(ClockQueue):
        async def receive(self, limit: int, wait: timedelta) -> list[ReceivedMessage]:
            return [ReceivedMessage("r", None)] if not deleted and await self.depth() == 0 else []

        async def depth(self) -> int:
            self.looked = getattr(self, "looked", -1) + 1
            return self.looked

        async def delete(self, messages: Sequence[ReceivedMessage]) -> None:
            deleted.extend(messages)

    home.ledger.queue = Unreadable(home.clock)
    assert await home.ledger.claim(9, LEASE) == []
    assert deleted == []


async def test_more_is_due_than_was_asked_for(home: ItemHome) -> None:
    """What is left of a head gets a message of its own, so the next who asks finds it at once."""
    ids = await home.put(3)
    taken = [(await home.claim_one()).task.id for _ in range(3)]
    assert sorted(map(str, taken)) == sorted(map(str, ids))
    assert await home.ledger.claim(1, LEASE) == []


async def test_what_a_waiter_got_is_claimed_next(home: ItemHome) -> None:
    """Waiting is done at the queue; the messages that end it are not lost."""
    with home.ledger.waiter() as waiter:
        waiter.clear()
        assert await waiter.wait(seconds(1)) is False
        [id_] = await home.put()
        assert await waiter.wait(seconds(1)) is True
    assert [claim.task.id for claim in await home.ledger.claim(1, LEASE)] == [id_]


# --- what follows from deliveries ---------------------------------------------------------------------------------------


async def test_the_event_follows_its_deliveries(home: ItemHome) -> None:
    """Its status, counts and times are those of the fold, in the very write; the inbox index finds it by its status."""

    async def stands() -> tuple[Any, ...]:
        facts = await home.standing(ids[0])
        return facts["status"], facts.get("retry_attempts", 0), facts.get("next_retry_at"), facts.get("failed_at")

    async def listed(status: str) -> int:
        asked = query(("user_id", "ada"), ("status#timestamp", "begins_with", f"{status}#"), index="StatusIndex")
        return len(await home.ledger.dynamo.query(asked))

    ids = await home.put(3)
    assert await stands() == ("received", 0, None, None)
    first, second, third = await home.ledger.claim(3, LEASE)
    assert await stands() == ("queued", 0, None, None)
    assert await home.settle(first, Done()) == await home.settle(second, TRANSIENT) == []
    assert await stands() == ("queued", 1, "2030-01-01T00:01:00.000000Z", None)
    assert await home.settle(third, PERMANENT) == []
    home.clock.advance(BACKOFF)
    await home.run(Done())
    assert await stands() == ("failed", 1, None, "2030-01-01T00:01:00.000000Z")
    assert (await listed("failed"), await listed("queued"), await listed("received")) == (1, 0, 0)
    assert await home.ledger.redrive(ids, ADA) == [third.task.id]
    await home.run(Done())
    assert (await stands())[0] == "delivered"
    counters = await home.ledger.counters("ada")
    assert {name: amount for name, amount in counters.items() if amount} == {"delivered": 1, "d_done": 3}


async def test_two_that_settle_one_event_at_once(home: ItemHome) -> None:
    """Each of two workers settles deliveries of the same event: all are written, and the event is what they come to."""
    ids = await home.put(3)
    claims = await home.ledger.claim(3, LEASE)
    other = await home.another()
    ledgers = [home.ledger, other, home.ledger]
    ends = await asyncio.gather(
        *(ledger.settle([settlement(claim)], worker="w1") for ledger, claim in zip(ledgers, claims, strict=True))
    )
    assert ends == [[], [], []]
    assert (await home.standing(ids[0]))["status"] == "delivered"
    assert (await home.ledger.counts())[State.DONE] == 3


# --- groups, cuts, busy servers -----------------------------------------------------------------------------------------


async def test_a_hundred_failures_are_a_few_transactions(home: ItemHome) -> None:
    """Settlements share transactions as far as its hundred actions go, and need no read of what was just claimed, nor of its gates."""
    await home.put(99)
    home.ledger._gates_fresh = minutes(60)
    client = CuttingClient(home.ledger.dynamo._client)
    home.ledger.dynamo._client, real = client, home.ledger.dynamo._client
    claims = await home.ledger.claim(99, LEASE)
    claimed = client.calls.copy()
    assert (
        await home.ledger.settle([settlement(claim, Failed(TimeoutError("slow"))) for claim in claims], worker="w1")
        == []
    )
    spent = client.calls - claimed
    home.ledger.dynamo._client = real
    assert dict(spent) == {"transact_write_items": 3, "update_item": 1}


async def whole_life(home: ItemHome, ledger: DynamoLedger) -> list[TaskId]:
    """Claimed, failed, lost, dead, redriven, done; through a ledger whose calls may be cut."""
    ids = await home.put(2)
    claims = await ledger.claim(2, LEASE)
    assert len(claims) == 2
    assert await ledger.settle([settlement(claims[0], TRANSIENT), settlement(claims[1])], worker="w1") == []
    home.clock.advance(BACKOFF)
    [again] = await ledger.claim(2, LEASE)
    assert await ledger.run_alone(again) is not None
    home.clock.advance(LEASE)
    [lost] = await ledger.reclaim(2, LEASE)
    assert await ledger.settle([settlement(lost, LeaseExpired())], worker="w1") == []
    home.clock.advance(BACKOFF)
    [third] = await ledger.claim(2, LEASE)
    assert await ledger.extend([third], LEASE) == []
    assert await ledger.settle([settlement(third, PERMANENT)], worker="w1") == []
    assert await ledger.redrive(ids, ADA) == [third.task.id]
    [last] = await ledger.claim(2, LEASE)
    assert await ledger.settle([settlement(last)], worker="w1") == []
    return ids


async def check_life(home: ItemHome, ids: list[TaskId]) -> None:
    told = sorted([[one.outcome for one in await home.ledger.attempts(id_)] for id_ in ids])
    assert told == [["done"], ["failed", "lease_expired", "failed", "done"]]
    assert sum([len(await home.ledger.deeds(id_)) for id_ in ids]) == 1
    assert [task.state for task in await home.ledger.tasks(map(str, ids))] == [State.DONE, State.DONE]
    counters = await home.ledger.counters("ada")
    assert {name: amount for name, amount in counters.items() if amount} == {"delivered": 1, "d_done": 2}
    assert (await home.standing(ids[0]))["status"] == "delivered"
    assert await home.ledger.next_due() is None
    assert (await home.ledger.find(Filter(state=State.DEAD))).items == []


async def test_a_busy_server_is_asked_again(home: ItemHome) -> None:
    """Conflicts of transactions and throttling are waited out; what they refuse was not written."""
    set_faults(home.url, conflicts=0.3, throttles=0.15, seed=11)
    try:
        ids = await whole_life(home, home.ledger)
    finally:
        set_faults(home.url)
    await check_life(home, ids)


def set_faults(url: str, **faults: float) -> None:
    """Tell the server which share of calls to refuse."""
    body = json.dumps(faults).encode()
    request = urllib.request.Request(f"{url}/faults", body, {"Content-Type": "application/json"}, method="PUT")
    urllib.request.urlopen(request, timeout=60).close()


async def test_time_is_the_ledgers(home: ItemHome) -> None:
    """A task is as old as the ledger's clock says, to the microsecond."""
    home.clock.advance(timedelta(microseconds=7))
    [id_] = await home.put(delay=seconds(1))
    task = await home.ledger.get(id_)
    assert task is not None
    assert task.created_at == START + timedelta(microseconds=7)
    assert task.due_at == START + timedelta(seconds=1, microseconds=7)
