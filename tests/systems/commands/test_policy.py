"""How often, and how long the waits are; who has the last word on that."""

import time

import pytest
from sqlalchemy import Connection, text

from redrive import Redrive
from redrive.app import WorkerSettings
from redrive.errors import UsageError
from redrive.systems.commands import Commands, CommandWorker, Registry, RetryPolicy, TransientCommandError
from redrive.testing import drain
from tests.systems.commands.conftest import DOMAIN, QUEUE, TYPE, Bench
from tests.systems.commands.waiting import run, until

SLOW = TransientCommandError("TIMEOUT", "slow")


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ([10, 60, 300], [60, 300, 300, 300]),
        ([10, 60], [60, 60, 60, 60]),
        ([10], [10, 10, 10, 10]),
        ([0, 0.5, 2, 8, 32], [0.5, 2, 8, 32]),
    ],
)
def test_backoff_schedule(backoff: list[float], waits: list[float]) -> None:
    """The list is indexed by the attempt to come, and its last entry holds for ever after."""
    policy = RetryPolicy(max_attempts=100, backoff=backoff)
    assert [policy.policy.delay(failures, "").total_seconds() for failures in (1, 2, 3, 4)] == waits
    assert policy.policy.delay(10**6, "").total_seconds() == (waits[-1] if len(backoff) < 5 else 32)


def test_the_defaults_are_the_published_ones() -> None:
    """Three attempts, 60 s before the second and 300 s before the third."""
    policy = RetryPolicy()
    assert (policy.max_attempts, list(policy.backoff)) == (3, [10, 60, 300])
    assert [policy.policy.delay(failures, "").total_seconds() for failures in (1, 2)] == [60, 300]


@pytest.mark.parametrize("given", [{"max_attempts": 0}, {"backoff": []}, {"backoff": "10"}, {"backoff": [10, -1]}])
def test_a_policy_that_makes_no_sense_is_refused(given: dict) -> None:
    """No attempts, no waits, or waits that are none."""
    with pytest.raises(UsageError):
        RetryPolicy(**given)


async def test_backoff_is_seen_in_the_queue(bench: Bench) -> None:
    """Sixty seconds after the first failure and three hundred after the second, in the message itself."""
    bench.raises = [SLOW, SLOW]
    await bench.send()
    for seconds in (60, 300):
        await bench.work()
        assert await bench.message() == f"queued for {seconds} s"
        bench.advance(seconds=seconds - 1)
        await bench.work()
        assert (await bench.get()).status == "PENDING"
        bench.advance(seconds=1)
    await bench.work()
    assert (await bench.get()).status == "COMPLETED"
    assert [attempt for _, attempt, _ in bench.calls] == [1, 2, 3]


@pytest.mark.parametrize(
    ("of_command", "of_handler", "of_worker", "expected"),
    [(5, 4, 2, 5), (1, 4, 2, 1), (None, 4, 2, 4), (None, None, 2, 2)],
)
async def test_who_has_the_last_word(
    bench: Bench, of_command: int | None, of_handler: int | None, of_worker: int, expected: int
) -> None:
    """The command's own number beats the handler's, the handler's beats the worker's."""
    tries = []

    async def fail(command, context):
        tries.append((context.attempt, context.max_attempts))
        raise SLOW

    policy = None if of_handler is None else RetryPolicy(of_handler, [0])
    bench.handlers.handler("shipping", "Pack", retry_policy=policy)(fail)
    await bench.bus.send("shipping", "Pack", "p-1", max_attempts=of_command)
    lane = bench.bus.lane.with_own_handlers()
    for registration in bench.handlers:
        bench.bus.take(lane, registration, RetryPolicy(of_worker, [0]))
    await bench.app.work_off(lane)
    found = await bench.bus.get_command("shipping", "p-1")
    assert found is not None
    assert (found.status, found.attempts) == ("IN_TROUBLESHOOTING_QUEUE", expected)
    assert tries == [(number + 1, expected) for number in range(expected)]


async def test_a_worker_brings_its_own_policy(bench: Bench) -> None:
    """`CommandWorker(bus, retry_policy=…)` is for handlers that have none of their own."""
    bench.raises = [SLOW] * 9
    await bench.send()
    worker = CommandWorker(bench.bus, DOMAIN, retry_policy=RetryPolicy(1))
    async with run(worker):
        await until(lambda: bench.bus.troubleshooting.count())
    assert (await bench.get()).attempts == 1
    assert bench.calls[0][2] == 1


async def test_drained_with_the_bus_policy(bench: Bench) -> None:
    """The bus's own policy holds where a worker is given none."""
    bench.raises = [SLOW] * 9
    await bench.send()
    drained = await drain(bench.app, clock=bench.clock)
    assert [one.delay.total_seconds() for one in drained.settlements if one.delay] == [60, 300]
    assert bench.calls[-1][1:] == (3, 3)
    assert bench.calls[0][0].command_type == TYPE


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_the_servers_own_clock(bus_url: str, store: str) -> None:
    """Without a clock of ours the server says what time it is: after the first failure the message is hidden for a minute."""
    app, handlers = Redrive(bus_url, durable=False), Registry()
    bus = Commands(app, handlers=handlers, retry_policy=RetryPolicy())

    @handlers.handler(DOMAIN, TYPE)
    async def fail(command):
        raise SLOW

    def left(connection: Connection) -> float:
        hidden = text(f"SELECT extract(epoch FROM vt - clock_timestamp()) FROM pgmq.q_{QUEUE}")
        return float(connection.execute(hidden).scalar_one())

    async with app:
        await bus.send(DOMAIN, TYPE, "c-1")
        before = time.monotonic()
        await app.work_off(bus.lane, WorkerSettings(concurrency=1))
        seconds = await app.database.read(left)
        assert 60 - (time.monotonic() - before) <= seconds <= 60
        row = await bus.get_command(DOMAIN, "c-1")
    assert row is not None
    assert (row.status, row.attempts) == ("PENDING", 1)
