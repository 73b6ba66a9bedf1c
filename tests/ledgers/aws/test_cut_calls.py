"""Every call that a life of tasks makes, cut once before and once after its effect, or the last thing that its process did."""

from collections.abc import Mapping
from uuid import uuid4

import pytest

from redrive.core.durations import minutes
from redrive.core.outcome import Done, LeaseExpired
from redrive.core.task import Claim
from redrive.items import Part
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.queue import SqsQueue
from tests.breadth import WIDE
from tests.ledgers.aws.clock_sqs import VISIBILITY, ClockSqs
from tests.ledgers.aws.cutting import CutPlaces, CuttingClient, KilledError, Place
from tests.ledgers.aws.ends import check_the_end
from tests.ledgers.aws.homes import USER, ItemHome, make_ledger, new_event
from tests.ledgers.homes import ADA, BACKOFF, LEASE, PERMANENT, TRANSIENT, settlement

STORES = ("aws",)
Posts = list[tuple[str, str]]
ASKING = ("query", "get_item", "batch_get_item")
LIVES_MAX = 200
LIVES_OF_CUTS = 5
"""Over how many lives the cuts are dealt: each call is cut in one of them, and calls next to each other in different ones."""


class Life:
    """The life of an event with two deliveries, through a ledger whose calls have places over both services."""

    def __init__(self, home: ItemHome, id: str, cuts: Mapping[Place, str]) -> None:
        self._home, self._id, self.posts = home, id, Posts()
        self.cuts = CutPlaces(cuts)

        def cut(number: int, call: str) -> str | None:
            where = self.cuts(number, call)
            if where is not None and where.startswith("killed"):
                self._table.killed = self._queue.killed = where == "killed before"
            return where

        self.sqs = ClockSqs(home.clock)
        self._table = CuttingClient(home.clients.dynamodb, cut)
        self._queue = CuttingClient(self.sqs, cut)
        dynamo = Dynamo(self._table, home.ledger.dynamo.table)
        self.ledger: DynamoLedger = make_ledger(dynamo, SqsQueue(self._queue, "url"), home.clock)

    async def _claim(self, verb: str, **given: object) -> list[Claim]:
        self.cuts.doing = verb
        claims = await self.ledger.claim(100, LEASE, **given)  # type: ignore[arg-type]
        if not claims:  # the answer of the queue was lost, with the messages in it
            self._home.clock.advance(VISIBILITY)
            claims = await self.ledger.claim(100, LEASE, **given)  # type: ignore[arg-type]
        return await self._ours(claims)

    async def _ours(self, claims: list[Claim]) -> list[Claim]:
        """Those of this event. What others have left behind is ended on the way, as by any process."""
        others = [claim for claim in claims if not str(claim.task.id).startswith(self._id)]
        if others:
            self._post(*(claim for claim in others if claim.abandoned is None))
            ended = [settlement(claim, LeaseExpired() if claim.abandoned else Done()) for claim in others]
            assert await self.ledger.settle(ended, worker="w1") == []
        return [claim for claim in claims if claim not in others]

    def _post(self, *claims: Claim) -> None:
        self.posts += [(str(claim.task.id), str(claim.claim_id)) for claim in claims]

    async def live(self) -> None:
        """Taken in, claimed and recalled, one done and one failed, lost and found, run alone and dead, redriven, done: every verb."""
        now, ledger, fence = self._home.clock.now(), self.ledger, uuid4()
        parts = {f"{n:02}": Part(f"ep-{n}", due_at=now) for n in range(2)}
        self.cuts.doing = "take"
        await ledger.take(new_event(self._id, parts, now), counts={"received": 1})
        assert len(await self._claim("claim", fence=fence)) == 2
        self.cuts.doing = "recall"
        first, second = await ledger.recall(fence, LEASE)
        self._post(first, second)
        self.cuts.doing = "settle"
        assert await ledger.settle([settlement(first), settlement(second, TRANSIENT)], worker="w1") == []
        self._home.clock.advance(BACKOFF)
        self._post(*await self._claim("claim again"))
        self._home.clock.advance(LEASE)
        self.cuts.doing = "reclaim"
        [lost] = await self._ours(await ledger.reclaim(100, LEASE))
        self.cuts.doing = "settle the lost"
        assert await ledger.settle([settlement(lost, LeaseExpired())], worker="w1") == []
        self._home.clock.advance(BACKOFF)
        [again] = await self._claim("claim the lost")
        self.cuts.doing = "alone"
        alone = await ledger.run_alone(again)
        assert alone is not None
        self._post(alone)
        assert await ledger.extend([alone], LEASE) == []
        assert await ledger.settle([settlement(alone, PERMANENT)], worker="w1") == []
        self.cuts.doing = "redrive"
        assert await ledger.redrive([second.task.id], ADA) == [second.task.id]
        [last] = await self._claim("claim the redriven")
        self.cuts.doing = "end"
        self._post(last)
        assert await ledger.settle([settlement(last, Done())], worker="w1") == []


async def all_places(home: ItemHome) -> list[Place]:
    """The calls of a life that nothing happens to."""
    life = Life(home, "event-whole", {})
    await life.live()
    made = {call for _, call, _ in life.cuts.places}
    assert {"transact_write_items", "update_item", "batch_get_item", "query"} < made
    assert {"send_message_batch", "receive_message", "delete_message_batch"} < made
    return life.cuts.places


@pytest.mark.parametrize("where", [pytest.param("before", marks=pytest.mark.wide), "after"])
async def test_each_call_is_cut_once(home: ItemHome, where: str) -> None:
    """A life with cut calls is the same life: nothing is lost, nothing is written twice."""
    places = await all_places(home)
    posts = Posts()
    for number in range(LIVES_OF_CUTS):
        life = Life(home, f"event-{number:03}", dict.fromkeys(places[number::LIVES_OF_CUTS], where))
        await life.live()
        # Claims that ask for the limits of gates at once share an answer, so one question more or less is up to the loop.
        assert {(call, number > 0) for _, call, number in life.cuts.left} <= {("query", True)}
        posts += life.posts
    lives = LIVES_OF_CUTS + 1
    end = await check_the_end(home.clients.dynamodb, home.ledger, posts, 2 * lives, home.clock.now())
    assert end.outcomes == {"done": 2 * lives, "failed": 2 * lives, "lease_expired": lives}
    assert (await home.ledger.counters(USER))["delivered"] == lives
    deeds = [item for item in end.items if item["sk"]["S"].startswith("H#")]
    assert len(deeds) == lives


@pytest.mark.parametrize("where", [pytest.param("killed before", marks=pytest.mark.wide), "killed after"])
async def test_each_call_is_the_last(home: ItemHome, where: str) -> None:
    """A process that dies at any call leaves nothing that another does not find: each delivery ends, and each post is explained.

    Its messages are lost with it. Whoever finds what it left has every second of its own calls cut. Who dies after a question, or before a
    write, leaves what the write before has left; with all homes it is tried all the same. Of the questions to the shards of an index,
    which are all alike, one is the last.
    """
    places = [place for place in await all_places(home) if place[1] != "query" or place[2] == 0]
    if not WIDE:
        places = [place for place in places if place[1] not in ASKING]
    posts, taken = Posts(), 1
    for number, place in enumerate(places):
        id_ = f"event-{number:03}"
        life = Life(home, id_, {place: where})
        with pytest.raises(KilledError):
            await life.live()
            raise KilledError  # where it is told and not raised, because it was one head of many
        assert not life.cuts.left
        taken += id_ in await home.ledger.heads([id_])
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
