"""A worker over items while AWS is too busy for every call, and while messages come twice and out of order."""

import asyncio
import random
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from redrive.core.backoff import Fixed
from redrive.core.jitter import none
from redrive.core.policy import Policy
from redrive.core.task import Task
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import TransientError
from redrive.ledgers.aws import asking
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.queue import SqsQueue
from tests.engine.workbench import handlers_of
from tests.ledgers.aws.clock_sqs import ClockSqs
from tests.ledgers.aws.ends import check_the_end
from tests.ledgers.aws.homes import DELIVERIES, ItemHome, make_ledger

STORES = ("aws",)
KIND = DELIVERIES.table.name
AT_ONCE = Policy(Fixed(timedelta(0)), retries=3, jitter=none, name="test")
REFUSALS = 12
"""So often each call is refused."""


class BusyClient:
    """Refuses each call so often, and from then on none."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.refused: Counter[str] = Counter()

    def __getattr__(self, call: str) -> Any:
        async def asked(**request: Any) -> Any:
            if self.refused[call] < REFUSALS:
                self.refused[call] += 1
                raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, call)
            return await getattr(self._client, call)(**request)

        return asked


class ShufflingSqs(ClockSqs):
    """Sends every message twice, and hands them out in any order."""

    drawn = random.Random(7)

    async def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        return await super().send_message_batch(QueueUrl=QueueUrl, Entries=2 * Entries)

    def _visible(self) -> list[str]:
        visible = super()._visible()
        self.drawn.shuffle(visible)
        return visible


async def work_off(ledger: Any, handler: Any) -> None:
    """Run a worker until nothing is due."""
    settings = WorkerSettings(poll=timedelta(milliseconds=50))
    async with asyncio.timeout(120):
        await Worker(ledger, handlers_of(policy=AT_ONCE, **{KIND: handler}), settings).run(until_idle=True)


async def test_all_calls_are_throttled_for_a_while(home: ItemHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost and nothing is posted twice. Each call waits before it is made again, longer and longer: nobody hammers."""
    sqs, waits, posted = ClockSqs(home.clock), list[float](), Counter[str]()
    home.ledger.queue = sqs.queue()
    await home.put(9)
    table, queue = BusyClient(home.clients.dynamodb), BusyClient(sqs)

    async def nap(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(asking, "asyncio", SimpleNamespace(sleep=nap, get_running_loop=asyncio.get_running_loop))
    monkeypatch.setattr(asking, "random", SimpleNamespace(random=lambda: 1.0))
    ledger = make_ledger(Dynamo(table, home.ledger.dynamo.table), SqsQueue(queue, "url"), home.clock)

    async def post(task: Task) -> None:
        posted[str(task.id)] += 1

    await work_off(ledger, post)
    refused = table.refused + queue.refused
    assert {"get_item", "query", "batch_get_item", "transact_write_items", "receive_message"} <= refused.keys()
    assert set(refused.values()) == {REFUSALS}
    assert (len(waits) >= refused.total(), max(waits)) == (True, asking.WAIT_SECONDS_MAX)
    assert set(posted.values()) == {1}
    end = await check_the_end(home.clients.dynamodb, home.ledger, [], 9, home.clock.now())
    assert end.outcomes == {"done": 9}


async def test_messages_come_twice_and_out_of_order(home: ItemHome) -> None:
    """Each delivery is posted as often as it must be: once, and again after it has failed."""
    sqs, posted = ShufflingSqs(home.clock), Counter[str]()
    home.ledger.queue = sqs.queue()
    await home.put(9)

    async def post(task: Task) -> None:
        posted[str(task.id)] += 1
        if posted[str(task.id)] == 1:
            raise TransientError("not yet")

    await work_off(home.ledger, post)
    assert (len(posted), set(posted.values())) == (9, {2})
    end = await check_the_end(home.clients.dynamodb, home.ledger, [], 9, home.clock.now())
    assert end.outcomes == {"done": 9, "failed": 9}
