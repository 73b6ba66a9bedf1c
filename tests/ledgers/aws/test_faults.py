"""Many workers on one table while calls are cut, processes killed, and messages lost and doubled: what must hold in the end."""

import asyncio
import os
import random
from typing import Any

from redrive.core.decide import decide
from redrive.core.durations import seconds
from redrive.core.outcome import Done, LeaseExpired
from redrive.core.task import Claim
from redrive.ledgers.aws.client import Dynamo
from tests.ledgers.aws.cutting import CuttingClient, KilledError
from tests.ledgers.aws.ends import check_the_end
from tests.ledgers.aws.homes import ClockQueue, ItemHome, make_ledger
from tests.ledgers.homes import LEASE, PERMANENT, POLICY, TRANSIENT

STORES = ("aws",)
SEED = int(os.environ.get("REDRIVE_TEST_SEED", "20"))
ROUNDS = 44
WORKERS = 3
DELIVERIES = 24


class FaultyQueue(ClockQueue):
    """Loses some messages and doubles others."""

    random = random.Random(0)
    faulty = True

    async def send(self, messages: Any) -> None:
        for message in messages:
            drawn = self.random.random() if self.faulty else 1
            if drawn >= 0.05:
                await super().send([message] * (2 if drawn < 0.15 else 1))


class FaultyWorker:
    """Claims, runs and settles; when it is killed it forgets everything, and another takes its place."""

    def __init__(self, home: ItemHome, drawn: random.Random, posts: list[Claim], name: str) -> None:
        self._home, self._random, self._posts, self._name = home, drawn, posts, name
        self.kills = self.cuts = 0
        self.faulty = True
        self._begin()

    def _begin(self) -> None:
        self._client = CuttingClient(self._home.clients.dynamodb, self._cut)
        dynamo = Dynamo(self._client, self._home.ledger.dynamo.table)
        self._ledger = make_ledger(dynamo, self._home.ledger.queue, self._home.clock)

    def _cut(self, number: int, call: str) -> str | None:
        drawn = self._random.random() if self.faulty else 1
        cuts = (("before", 0.04), ("after", 0.08), ("killed before", 0.09), ("killed after", 0.1))
        return next((where for where, share in cuts if drawn < share), None)

    async def work(self) -> None:
        try:
            await self._work()
        except KilledError:
            assert self._client.killed
        if self._client.killed:
            self.kills += 1
            self.cuts += self._client.cuts
            self._begin()

    async def _work(self) -> None:
        lost = await self._ledger.reclaim(9, LEASE) if self._random.random() < 0.4 else []
        claims = await self._ledger.claim(self._random.randint(1, 9), LEASE)
        if self._client.killed:
            return
        settled = [decide(claim, LeaseExpired(), POLICY) for claim in lost]
        for claim in claims:
            if claim.abandoned is not None:
                settled.append(decide(claim, LeaseExpired(), POLICY))
                continue
            self._posts.append(claim)
            outcome = self._random.choice([Done(), Done(), TRANSIENT, TRANSIENT, PERMANENT])
            settled.append(decide(claim, outcome, POLICY))
        await self._ledger.settle(settled, worker=self._name)


async def test_nothing_is_lost_and_nothing_twice(home: ItemHome) -> None:
    """After cut calls, kills, lost and doubled messages all is as it must be, by seed `REDRIVE_TEST_SEED`.

    Everything has ended; each claim that was run has one attempt; nobody was charged more often than the budget allows; each event
    is what its deliveries come to; the counters are a count of everything; and neither index nor queue holds a left-over.
    """
    drawn = random.Random(SEED)
    queue = FaultyQueue(home.clock)
    queue.random = drawn
    home.ledger.queue = queue
    await home.put(DELIVERIES)
    posts: list[Claim] = []
    workers = [FaultyWorker(home, drawn, posts, f"w{number}") for number in range(WORKERS)]
    for turn in range(ROUNDS):
        if turn == ROUNDS // 2:  # from here on the world is well, and must come to rest
            queue.faulty = False
            for worker in workers:
                worker.faulty = False
        await asyncio.gather(*(worker.work() for worker in workers))
        home.clock.advance(seconds(30))
    posted = [(str(claim.task.id), str(claim.claim_id)) for claim in posts]
    await check_the_end(home.clients.dynamodb, home.ledger, posted, DELIVERIES, home.clock.now())
    assert await home.ledger.queue.depth() == 0
    assert sum(worker.kills for worker in workers) > 5
    assert sum(worker.cuts for worker in workers) > 5
