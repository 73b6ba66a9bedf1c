"""Waiting at the queue, and what it costs."""

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

from redrive.core.durations import minutes, seconds
from redrive.core.outcome import Done
from redrive.core.policy import Policy
from redrive.core.task import Claim
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.ledgers.aws.arrivals import Arrivals
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.queue import Message, ReceivedMessage, SqsQueue
from redrive.systems.triggers.aws.follow import EventFollower
from tests.engine.workbench import handlers_of
from tests.ledgers.aws.clock_sqs import ClockSqs
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.aws.homes import DELIVERIES, ItemHome
from tests.ledgers.homes import LEASE

STORES = ("aws",)
LOOKS = 30


async def test_a_nap_that_is_cut_short_loses_nothing() -> None:
    """The question goes on, nobody asks a second one meanwhile, and what it brings is taken next; in the end nobody asks."""
    asked: list[asyncio.Future[list[ReceivedMessage]]] = []
    limits: list[int] = []

    async def receive(limit: int, wait: timedelta) -> list[ReceivedMessage]:
        limits.append(limit)
        asked.append(asyncio.get_running_loop().create_future())
        return await asked[-1]

    arrivals = Arrivals(receive)
    with arrivals.waiting():
        for _ in range(3):
            assert await arrivals.wait(timedelta(milliseconds=1)) is False
            assert await arrivals.take(10) == []
        assert len(asked) == 1
        messages = [ReceivedMessage(str(n), Message("e", n)) for n in range(10)]
        asked[0].set_result(messages)
        assert await arrivals.wait(minutes(1)) is True
        assert await arrivals.take(4) == messages[:4]
        assert await arrivals.take(7) == messages[4:]
        assert await arrivals.wait(timedelta(milliseconds=1)) is False
    await asyncio.sleep(0)
    assert asked[1].cancelled()
    assert limits == [10, 7], "no more is asked for than can be claimed"


def counting(home: ItemHome) -> tuple[DynamoLedger, CuttingClient, CuttingClient, ClockSqs]:
    """The ledger as it is deployed, and clients that count."""
    sqs = ClockSqs(home.clock)
    table, queue = CuttingClient(home.ledger.dynamo._client), CuttingClient(sqs)
    dynamo = Dynamo(table, home.ledger.dynamo.table)
    ledger = DynamoLedger(dynamo, SqsQueue(queue, "url"), DELIVERIES.table, clock=home.clock, follower=EventFollower())
    return ledger, table, queue, sqs


async def test_an_idle_worker_costs_next_to_nothing(home: ItemHome) -> None:
    """However often it looks: one long question to the queue, and a sweep every ten seconds, which only one of all workers makes. Beside
    that at most two questions in half a second: what people have paused and limited, and which lines of gates are to be looked at.

    So a minute without work is three questions to the queue, six looks at the turn, and for one of all workers six sweeps of seventeen
    calls; and where it looks every second, sixty times two small questions to the table.
    """
    ledger, table, queue, _ = counting(home)
    looked, enough, began = [0], asyncio.Event(), time.monotonic()
    claim = ledger.claim

    async def counted(*given: Any, **named: Any) -> list[Claim]:
        looked[0] += 1
        if looked[0] > LOOKS:
            enough.set()
        return await claim(*given, **named)

    ledger.claim = counted  # type: ignore[method-assign]
    worker = Worker(
        ledger, handlers_of(trigger_deliveries=lambda _: None), WorkerSettings(poll=timedelta(milliseconds=10))
    )
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        await enough.wait()
        worker.stop()
        await running
    # The long question, and a short one for each claim before it is out: the first, and one where a sweep ends meanwhile and wakes the worker.
    assert set(queue.calls) == {"receive_message"}
    assert 2 <= queue.calls["receive_message"] <= 5, f"{LOOKS} looks"
    halves = 1 + int((time.monotonic() - began) / 0.5)
    assert not table.calls - Counter({"get_item": 1, "update_item": 1, "query": 16 + 2 * halves}), table.calls


async def test_what_a_stopped_worker_held_is_anothers_at_once(home: ItemHome) -> None:
    """What it runs is released with a message of its own, and what it never started too."""
    ledger, _, _, sqs = counting(home)
    home.ledger = ledger
    ids = await home.put(3)
    started, never = asyncio.Event(), asyncio.Event()

    async def hang(task: Any) -> Done:
        started.set()
        await never.wait()
        return Done()

    worker = Worker(
        ledger, handlers_of(policy=Policy(retries=3), trigger_deliveries=hang), WorkerSettings(grace=timedelta(0))
    )
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        await started.wait()
        worker.stop()
        await running
    other = DynamoLedger(ledger.dynamo, sqs.queue(), DELIVERIES.table, clock=home.clock, follower=EventFollower())
    home.clock.advance(seconds(1))
    claims = await other.claim(9, LEASE)
    assert sorted(claim.task.id for claim in claims) == ids
    assert {claim.number for claim in claims} == {1}
    assert all(claim.abandoned is None for claim in claims)
    assert not any(claim.suspect for claim in claims)
