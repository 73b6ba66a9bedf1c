"""Command handlers that kill their process, and workers that are killed: each try counts, nothing is lost or done by halves."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from redrive import Redrive
from redrive.systems.commands import Commands, CommandStatus, NewCommand, Registry
from tests import forks

from .books import until
from .processes import STOP_SECONDS, Ground

MAX_ATTEMPTS = 3
KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 2)
COMMANDS = min(50 * KILLS, 10_000)


@contextmanager
def worker(ground: Ground) -> Iterator[forks.Process]:
    """A `redrive worker` of the bus, ended with the block."""
    quick = {"COMMANDS_VISIBILITY_TIMEOUT": "1s", "COMMANDS_BACKOFF": "0", "COMMANDS_MAX_ATTEMPTS": "1000"}
    environment = ground.environment | quick | {"COMMAND_EVIDENCE": str(ground.folder / "commands.txt")}
    process = forks.run(
        "worker", "tests.faults.command_apps:app", "--concurrency", "20",
        folder=forks.ROOT, log=ground.folder / "worker.log", environment=environment,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def starts(ground: Ground) -> Counter[str]:
    """How often the handler of each command was started."""
    file = ground.folder / "commands.txt"
    return Counter(line.split()[0] for line in file.read_text().splitlines()) if file.exists() else Counter()


@pytest.mark.long_on("sqlite")
async def test_a_command_that_kills_its_process(ground: Ground) -> None:
    """Lost beside others it is free, lost alone it is charged: started once more than it has attempts, then it waits for a person."""
    app = Redrive(ground.url)
    bus = Commands(app, handlers=Registry())
    async with app:
        await bus.send("faults", "Poison", "poison", max_attempts=MAX_ATTEMPTS, reply_to="faults__replies")
        await bus.send_batch(
            [NewCommand(domain="faults", command_type="Work", command_id=f"w-{n}", data={"ms": 5}) for n in range(60)]
        )
        deaths = 0
        while (await bus.troubleshooting.count()) == 0:  # a supervisor: a new worker where one has died
            with worker(ground) as process:

                async def over() -> bool:
                    return process.poll() is not None or await bus.troubleshooting.count() > 0

                await until(over, "the worker dies, or a person is asked", timeout=150)
                deaths += process.poll() == -signal.SIGKILL
        with worker(ground):

            async def calm() -> bool:
                done = await bus.query_commands(status="COMPLETED", limit=100)
                return len(done.items) == 60

            await until(calm, "the others are done", timeout=150)
        row = await bus.get_command("faults", "poison")
        assert row is not None
        assert (row.status, row.attempts) == (CommandStatus.IN_TROUBLESHOOTING_QUEUE, MAX_ATTEMPTS)
        assert row.last_error_type == "WORKER_LOST"
        assert starts(ground)["poison"] == deaths == MAX_ATTEMPTS + 1
        events = [event.event_type for event in await bus.audit_trail("poison")]
        assert events == ["SENT", *["RECEIVED", "FAILED"] * (MAX_ATTEMPTS + 1), "MOVED_TO_TROUBLESHOOTING_QUEUE"]
        assert await bus.take_replies("faults__replies") == []


@pytest.mark.long_on("postgres")
async def test_killed_workers_lose_nothing(ground: Ground) -> None:
    """Workers killed at any moment: every command is completed with one reply, and the record of each is whole."""
    app = Redrive(ground.url)
    bus = Commands(app, handlers=Registry())
    async with app:
        ids = [f"w-{number}" for number in range(COMMANDS)]
        new = [
            NewCommand(
                domain="faults", command_type="Work", command_id=one, data={"ms": 20, "fails": number % 3 == 0},
                reply_to="faults__replies",
            )
            for number, one in enumerate(ids)
        ]  # fmt: skip
        batch = await bus.create_batch("faults", new)

        async def completed() -> int:
            found = await bus.get_batch("faults", batch)
            assert found is not None
            return found.completed

        for kill in range(KILLS):
            with worker(ground):  # killed at the end of the block, in the middle of its work
                goal = len(ids) * (kill + 1) // (KILLS + 2)
                await until(lambda goal=goal: _at_least(completed, goal), "some are done", timeout=150)
        with worker(ground) as process:
            await until(lambda: _at_least(completed, len(ids)), "all are done", timeout=150)
            process.terminate()
            assert process.wait(STOP_SECONDS) == 0
        replies = []
        while taken := await bus.take_replies("faults__replies", limit=1000):
            replies += taken
        assert sorted(reply.command_id for reply in replies) == sorted(ids)
        assert {(reply.outcome, reply.result == reply.command_id) for reply in replies} == {("SUCCESS", True)}
        found = await bus.get_batch("faults", batch)
        assert found is not None
        assert (found.status, found.completed, found.failed) == ("COMPLETED", len(ids), 0)
        started = starts(ground)
        for one in ids:
            row = await bus.get_command("faults", one)
            assert row is not None
            counted = Counter(event.event_type for event in await bus.audit_trail(one))
            # A run that was lost beside others is on record, but it is no attempt.
            assert row.status == "COMPLETED"
            assert 1 <= row.attempts <= counted["RECEIVED"]
            assert counted["FAILED"] == counted["RECEIVED"] - 1, "each try but the last is on record as failed"
            assert (counted["SENT"], counted["COMPLETED"]) == (1, 1)
            # Claimed and killed before it began is on record too, but no more starts than records.
            assert 1 <= started[one] <= counted["RECEIVED"]


async def _at_least(ask, amount: int) -> bool:
    return await ask() >= amount
