"""Workers over DynamoDB and SQS that are killed at random, while calls are cut and events come in."""

import asyncio
import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from redrive.items import Part
from redrive.ledgers.aws.clock import machine_now
from redrive.ledgers.aws.expressions import put
from redrive.ledgers.aws.heads import OPEN, head_from, task_id
from redrive.ledgers.aws.open import AwsClients, open_clients
from redrive.ledgers.aws.table import definition
from tests import forks
from tests.ledgers.aws.ends import check_the_end, read_all
from tests.ledgers.aws.homes import USER, new_event
from tests.ledgers.aws.servers import AWS

from . import evidence
from .aws_worker import HANGING, ledger_of

KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 2)
WORKERS = 2 if KILLS < 100 else 4
EVENTS_PER_ROUND = 3 if KILLS < 100 else 1
SERVER = os.environ.get("REDRIVE_TEST_AWS", "moto")


@pytest.mark.timeout(900 + 10 * KILLS)
async def test_none_is_lost_when_workers_are_killed(
    aws: str, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL at any moment, two calls of a hundred cut: every delivery ends, and every post is explained by an attempt.

    There is no fifth post without an attempt that explains it: one that failed, or one that was lost with its worker and charged
    nothing. Events, counters and indexes are in the end what the deliveries come to.
    """
    with ExitStack() as stack:
        surroundings = {
            **AWS, "AWS_ENDPOINT_URL": aws, "TEST_TABLE": "storm", "TEST_SEED": str(rng.randrange(2**31)),
            evidence.VARIABLE: str(tmp_path / "evidence.jsonl"), "PYTHONPATH": str(forks.ROOT),
        }  # fmt: skip
        for name, value in surroundings.items():
            monkeypatch.setenv(name, value)
        async with open_clients(region="us-east-1", endpoint_url=aws) as clients:
            await clients.dynamodb.create_table(**definition("storm"))
            made = await clients.sqs.create_queue(QueueName="storm", Attributes={"VisibilityTimeout": "2"})
            monkeypatch.setenv("TEST_QUEUE", made["QueueUrl"])
            ledger = ledger_of(clients)
            await ledger.dynamo.write([put((f"U#{USER}", "U"), {"listing": "users", "listing_at": USER})])
            numbers, log = count(), tmp_path / "workers.log"

            def another() -> forks.Process:
                process = forks.run(folder=forks.ROOT, log=log, module="tests.faults.aws_worker")
                stack.callback(process.kill)
                return process

            def posts() -> list[tuple[str, str]]:
                lines = evidence.read(tmp_path / "evidence.jsonl")
                return [(line.task, line.claim) for line in lines if line.what == "start"]

            async def take(amount: int, name: str = "event") -> int:
                parts = 0
                for number in (next(numbers) for _ in range(amount)):
                    now = machine_now()
                    some = {f"{n:02}": Part(f"ep-{n}", due_at=now) for n in range(rng.randint(1, 3))}
                    await ledger.take(new_event(f"{name}-{number:05}", some, now), counts={"received": 1})
                    parts += len(some)
                return parts

            async def wait_until(true: Callable[[], bool]) -> None:
                for _ in range(7500):  # however slow the machine is
                    if true():
                        return
                    await asyncio.sleep(0.02)
                raise AssertionError(f"nothing is posted:\n{log.read_text()[-3000:]}")

            def kill(victim: int) -> None:
                assert workers[victim].poll() is None, f"a worker ended by itself:\n{log.read_text()[-3000:]}"
                workers[victim].kill()
                workers[victim] = another()

            started = time.monotonic()
            workers, deliveries, kills = [another() for _ in range(WORKERS)], 0, 0
            while kills < KILLS:
                before = len(posts())
                deliveries += await take(EVENTS_PER_ROUND)
                # A kill of workers that have just begun would show little.
                await wait_until(lambda before=before: len(posts()) > before)
                await asyncio.sleep(rng.uniform(0, 0.15))
                for victim in rng.sample(range(WORKERS), rng.randint(1, WORKERS)):
                    kill(victim)
                    kills += 1
            # The others hit by chance. This one hits for certain: a post is under way until its worker is killed.
            hanging = await take(1, HANGING)
            deliveries += hanging
            await wait_until(lambda: len({task for task, _ in posts() if HANGING in task}) == hanging)
            for victim in range(WORKERS):
                kill(victim)
                kills += 1
            stormed = time.monotonic() - started
            await _all_ended(clients, log)
            for worker in workers:
                worker.terminate()
            assert [worker.wait(150) for worker in workers] == [0] * WORKERS, log.read_text()[-3000:]
            end = await check_the_end(clients.dynamodb, ledger, posts(), deliveries, machine_now())
        posted = len(posts())
        print(
            f"{SERVER}: {kills} kills in {stormed:.1f} s, {len(end.heads)} events, {deliveries} deliveries, {posted} posts, "
            f"{dict(end.outcomes)}, all ended after {time.monotonic() - started:.1f} s"
        )
        assert end.outcomes["lease_expired"], "the kills hit nothing: this test shows nothing"


async def _all_ended(clients: AwsClients, log: Path) -> None:
    ends = time.monotonic() + 400  # a busy machine is no fault
    while time.monotonic() < ends:
        open_ = await _open(clients)
        if not open_:
            return
        await asyncio.sleep(0.3)
    raise AssertionError(f"still open: {open_[:5]}\n{log.read_text()[-3000:]}")


async def _open(clients: AwsClients) -> list[str]:
    items = await read_all(clients.dynamodb, "storm")
    heads = [head_from(item) for item in items if item["sk"]["S"] == "E"]
    return [task_id(head.id, n) for head in heads for n, part in head.parts.items() if part.state in OPEN]
