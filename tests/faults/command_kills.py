"""Workers of commands that are killed: small by `test_commands_kill.py`, and at full size by `python -m proof kills_commands`."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, func, select

from redrive import Redrive
from redrive.systems.commands import Commands, NewCommand, Registry
from redrive.systems.commands.tables import make_tables
from tests import forks

from .books import until
from .kill_proofs import PATIENCE_SECONDS
from .processes import STOP_SECONDS, Ground

REPLIES = "faults__replies"


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


async def commands(ground: Ground, rng: random.Random, *, tasks: int, kills: int) -> str:
    """Workers killed at any moment: every command is completed with one reply, and the record of each is whole."""
    app = Redrive(ground.url)
    bus = Commands(app, handlers=Registry())
    t = make_tables(has_queues=ground.url.startswith("postgres"))
    per_kill = tasks // kills
    ids = [f"w-{number}" for number in range(per_kill * kills)]

    def completed(connection: Connection) -> int:
        return int(connection.execute(select(func.sum(t.batch.c.completed))).scalar() or 0)

    async with app:

        async def done(least: int) -> bool:
            return await app.database.read(completed) >= least

        for kill in range(kills):
            new = [
                NewCommand(
                    domain="faults", command_type="Work", command_id=one, data={"ms": 20, "fails": number % 3 == 0}, reply_to=REPLIES
                )
                for number, one in enumerate(ids[kill * per_kill : (kill + 1) * per_kill])
            ]  # fmt: skip
            await bus.create_batch("faults", new)
            with worker(ground):  # killed at the end of the block, in the middle of its work
                least = kill * per_kill + rng.randrange(1, max(2, per_kill // 2))
                await until(lambda least=least: done(least), "some are done", PATIENCE_SECONDS)
        with worker(ground) as process:
            await until(lambda: done(len(ids)), "all are done", PATIENCE_SECONDS)
            process.terminate()
            assert process.wait(STOP_SECONDS) == 0
        replies = []
        while taken := await bus.take_replies(REPLIES, limit=1000):
            replies += taken
        rows, events, batches = await app.database.read(_all, t)
    assert sorted(reply.command_id for reply in replies) == sorted(ids)
    assert {(reply.outcome, reply.result == reply.command_id) for reply in replies} == {("SUCCESS", True)}
    assert {(status, completed, failed) for status, completed, failed in batches} == {("COMPLETED", per_kill, 0)}
    started = starts(ground)
    assert {row.command_id for row in rows} == set(ids), "a command is lost"
    for row in rows:
        counted, runs = events[row.command_id], started[row.command_id]
        # A run that was lost beside others is on record, but it is no attempt.
        assert row.status == "COMPLETED", row
        assert 1 <= row.attempts <= counted["RECEIVED"], (row, counted)
        assert counted["FAILED"] == counted["RECEIVED"] - 1, "each try but the last is on record as failed"
        assert (counted["SENT"], counted["COMPLETED"]) == (1, 1), (row, counted)
        # Claimed and killed before it began is on record too, but no more starts than records.
        assert 1 <= runs <= counted["RECEIVED"], (row, counted, runs)
    failed_once = sum(number % 3 == 0 for _ in range(kills) for number in range(per_kill))
    hit = sum(counted["FAILED"] for counted in events.values()) - failed_once
    assert hit > 0, "the kills hit nothing: this shows nothing"
    return (
        f"{len(rows):,} commands completed, 0 lost, one reply each; {kills} kills met {hit:,} commands held; "
        f"{sum(counted['RECEIVED'] for counted in events.values()):,} claims, one end each on record"
    )


def _all(connection: Connection, t: Any) -> tuple[list[Any], dict[str, Counter[str]], list[Any]]:
    """Every command, what is on record of it, and the batches."""
    rows = connection.execute(select(t.command.c.command_id, t.command.c.status, t.command.c.attempts)).all()
    events: dict[str, Counter[str]] = {row.command_id: Counter() for row in rows}
    a = t.audit
    counted = select(a.c.command_id, a.c.event_type, func.count()).group_by(a.c.command_id, a.c.event_type)
    for id_, event, amount in connection.execute(counted):
        events[id_][event] = amount
    batches = connection.execute(select(t.batch.c.status, t.batch.c.completed, t.batch.c.failed)).all()
    return list(rows), events, list(batches)
