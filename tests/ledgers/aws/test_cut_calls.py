"""Every call that a life of tasks makes, cut once before and once after its effect, or the last thing that its process did."""

from collections.abc import Callable

import pytest

from redrive.core.durations import minutes
from redrive.core.outcome import Done, LeaseExpired
from redrive.core.task import Claim
from redrive.items import Part
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.queue import SqsQueue
from tests.ledgers.aws.clock_sqs import VISIBILITY, ClockSqs
from tests.ledgers.aws.cutting import CuttingClient, KilledError
from tests.ledgers.aws.ends import check_the_end
from tests.ledgers.aws.homes import USER, ItemHome, make_ledger, new_event
from tests.ledgers.homes import ADA, BACKOFF, LEASE, PERMANENT, TRANSIENT, settlement

STORES = ("aws",)
Posts = list[tuple[str, str]]
LIVES_MAX = 200


class Life:
    """The life of an event with two deliveries, through a ledger whose calls are numbered over both services."""

    def __init__(self, home: ItemHome, id: str, cut: Callable[[int], str | None]) -> None:
        self._home, self._id, self.calls, self.posts = home, id, list[str](), Posts()

        def numbered(_: int, call: str) -> str | None:
            self.calls.append(call)
            where = cut(len(self.calls) - 1)
            if where is not None and where.startswith("killed"):
                self._table.killed = self._queue.killed = where == "killed before"
            return where

        self.sqs = ClockSqs(home.clock)
        self._table = CuttingClient(home.clients.dynamodb, numbered)
        self._queue = CuttingClient(self.sqs, numbered)
        dynamo = Dynamo(self._table, home.ledger.dynamo.table)
        self.ledger: DynamoLedger = make_ledger(dynamo, SqsQueue(self._queue, "url"), home.clock)

    async def _claim(self) -> list[Claim]:
        claims = await self.ledger.claim(9, LEASE)
        if not claims:  # the answer of the queue was lost, with the messages in it
            self._home.clock.advance(VISIBILITY)
            claims = await self.ledger.claim(9, LEASE)
        return claims

    def _post(self, *claims: Claim) -> None:
        self.posts += [(str(claim.task.id), str(claim.claim_id)) for claim in claims]

    async def live(self) -> None:
        """Taken in, one done and one failed, run alone and dead, redriven, done: every verb."""
        now, ledger = self._home.clock.now(), self.ledger
        parts = {f"{n:02}": Part(f"ep-{n}", due_at=now) for n in range(2)}
        await ledger.take(new_event(self._id, parts, now), counts={"received": 1})
        first, second = await self._claim()
        self._post(first, second)
        assert await ledger.settle([settlement(first), settlement(second, TRANSIENT)], worker="w1") == []
        self._home.clock.advance(BACKOFF)
        [again] = await self._claim()
        alone = await ledger.run_alone(again)
        assert alone is not None
        self._post(alone)
        assert await ledger.extend([alone], LEASE) == []
        assert await ledger.settle([settlement(alone, PERMANENT)], worker="w1") == []
        assert await ledger.redrive([second.task.id], ADA) == [second.task.id]
        [last] = await self._claim()
        self._post(last)
        assert await ledger.settle([settlement(last, Done())], worker="w1") == []


async def number_of_calls(home: ItemHome) -> int:
    """How many calls a life makes that nothing happens to."""
    life = Life(home, "event-whole", lambda _: None)
    await life.live()
    assert {"transact_write_items", "update_item", "batch_get_item"} < set(life.calls)
    assert {"send_message_batch", "receive_message", "delete_message_batch"} < set(life.calls)
    return len(life.calls)


@pytest.mark.parametrize("where", ["before", "after"])
async def test_each_call_is_cut_once(home: ItemHome, where: str) -> None:
    """A life with a cut call is the same life: nothing is lost, nothing is written twice."""
    amount = await number_of_calls(home)
    posts = Posts()
    for cut in range(amount):
        life = Life(home, f"event-{cut:03}", lambda number, cut=cut: where if number == cut else None)
        await life.live()
        posts += life.posts
    end = await check_the_end(home.clients.dynamodb, home.ledger, posts, 2 * (amount + 1), home.clock.now())
    assert end.outcomes == {"done": 2 * (amount + 1), "failed": 2 * (amount + 1)}
    assert (await home.ledger.counters(USER))["delivered"] == amount + 1
    deeds = [item for item in end.items if item["sk"]["S"].startswith("H#")]
    assert len(deeds) == amount + 1


@pytest.mark.parametrize("where", ["killed before", "killed after"])
async def test_each_call_is_the_last(home: ItemHome, where: str) -> None:
    """A process that dies at any call leaves nothing that another does not find: each delivery ends, and each post is explained.

    Its messages are lost with it. Whoever finds what it left has every second of its own calls cut.
    """
    amount = await number_of_calls(home)
    posts, taken = Posts(), 1
    for cut in range(amount):
        life = Life(home, f"event-{cut:03}", lambda number, cut=cut: where if number == cut else None)
        with pytest.raises(KilledError):
            await life.live()
            raise KilledError  # where it is told and not raised, because it was one head of many
        taken += f"event-{cut:03}" in await home.ledger.heads([f"event-{cut:03}"])
        posts += life.posts
    sqs = ClockSqs(home.clock)
    cut_client = CuttingClient(home.clients.dynamodb, lambda number, _: "after" if number % 2 == 0 else None)
    ledger = make_ledger(Dynamo(cut_client, home.ledger.dynamo.table), sqs.queue(), home.clock)
    for _ in range(LIVES_MAX):
        lost = await ledger.reclaim(100, LEASE)
        claims = await ledger.claim(100, LEASE)
        posts += [(str(claim.task.id), str(claim.claim_id)) for claim in claims if claim.abandoned is None]
        settled = [settlement(claim, LeaseExpired() if claim.abandoned else Done()) for claim in [*lost, *claims]]
        assert await ledger.settle(settled, worker="w2") == []
        home.clock.advance(minutes(2))
        if not settled and await ledger.next_due() is None:
            break
    await check_the_end(home.clients.dynamodb, home.ledger, posts, 2 * taken, home.clock.now())
