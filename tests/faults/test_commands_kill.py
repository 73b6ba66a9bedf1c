"""Command handlers that kill their process, and workers that are killed: each try counts, nothing is lost or done by halves."""

import os
import random
import signal

import pytest

from redrive import Redrive
from redrive.systems.commands import Commands, CommandStatus, NewCommand, Registry

from .books import until
from .command_kills import commands, starts, worker
from .processes import Ground

MAX_ATTEMPTS = 3
KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 2)
COMMANDS = min(50 * KILLS, 10_000)


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
async def test_killed_workers_lose_nothing(ground: Ground, rng: random.Random) -> None:
    """Every command is completed with one reply, and the record of each is whole; at full size by `python -m proof kills_commands`."""
    print(await commands(ground, rng, tasks=COMMANDS, kills=KILLS))
