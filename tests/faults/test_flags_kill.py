"""Runs of `redrive flags process` that are killed while they apply schedules."""

import asyncio
import os
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import OperationalError

from redrive import Redrive
from redrive.systems.flags import Flags, FlagSettings, tables
from tests import forks

from .processes import Ground

KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 1)
SCHEDULES_PER_KILL = 60
LEASE_SECONDS = 1
PATIENCE_SECONDS = 150


def start(ground: Ground, name: str) -> forks.Process:
    """One run, as cron starts it."""
    environment = ground.environment | {"WORKER_LEASE": f"{LEASE_SECONDS}s"}
    return forks.run("flags", "process", folder=forks.ROOT, log=ground.folder / f"{name}.log", environment=environment)


def put(connection: Connection, amount: int) -> None:
    """Schedules that were due a minute ago, each of a flag of its own."""
    now = datetime.now(UTC)
    stamps = {"created_at": now, "updated_at": now}
    connection.execute(insert(tables.flags), [{"flag_key": f"flag-{number}", **stamps} for number in range(amount)])
    rows = [
        {"flag_id": flag.id, "flag_key": flag.flag_key, "scheduled_at": now - timedelta(minutes=1),
         "updates": {"rolloutPercentage": 7}, "max_retries": 10, **stamps}
        for flag in connection.execute(select(tables.flags))
    ]  # fmt: skip
    connection.execute(insert(tables.schedules), rows)


def statuses(connection: Connection) -> Counter[str]:
    t = tables.schedules
    counted = select(t.c.status, func.count().label("amount")).group_by(t.c.status)
    return Counter({row.status: row.amount for row in connection.execute(counted)})


def held(connection: Connection) -> int:
    return connection.execute(select(func.count()).where(tables.schedules.c.claim_id.is_not(None))).scalar_one()


def make_due(connection: Connection) -> None:
    """Let the minutes of backoff pass."""
    t = tables.schedules
    now = datetime.now(UTC)
    connection.execute(update(t).where(t.c.next_retry_at.is_not(None)).values(next_retry_at=now))


async def in_the_midst(app: Redrive, held_least: int, applied_least: int) -> bool:
    """Whether so many are held and applied. Who stands still between two locks of SQLite lets nobody look: it must go on."""
    try:
        enough = await app.database.read(held) >= held_least
        return enough and (await app.database.read(statuses))["applied"] >= applied_least
    except OperationalError:
        return False


@pytest.mark.long_on("postgres")
@pytest.mark.timeout(600 + 20 * KILLS)
async def test_each_schedule_once_though_runs_are_killed(ground: Ground) -> None:
    """SIGKILL in mid-run, with a second run right behind it: no schedule is lost, and none is applied twice.

    What the killed run held is charged as a lost try when its lease has run out, and comes through later.
    """
    amount = SCHEDULES_PER_KILL * KILLS
    app = Redrive(ground.url)
    Flags(app, FlagSettings(_env_file=None))
    ends = time.monotonic() + PATIENCE_SECONDS + 20 * KILLS
    some = 1 if ground.url.startswith("sqlite") else 2  # PostgreSQL may finish a commit whose client is dead
    async with app:
        await app.database.write(put, amount)
        for kill in range(KILLS):
            before = (await app.database.read(statuses))["applied"]
            victim = other = start(ground, f"victim-{kill}")
            try:
                # It works in short turns, so that it dies in the midst: some are applied, and some are held.
                while not await in_the_midst(app, some, before + 9):
                    assert time.monotonic() < ends
                    victim.send_signal(signal.SIGCONT)
                    await asyncio.sleep(0.005)
                    victim.send_signal(signal.SIGSTOP)
                other = start(ground, f"other-{kill}")
                victim.kill()
                assert victim.wait() == -9
                assert await asyncio.to_thread(other.wait, PATIENCE_SECONDS) == 0
            finally:
                for process in (victim, other):
                    process.kill()
                    process.wait()
        while (await app.database.read(statuses))["applied"] < amount:
            assert time.monotonic() < ends, await app.database.read(statuses)
            await asyncio.sleep(LEASE_SECONDS)
            run = start(ground, "rest")
            assert await asyncio.to_thread(run.wait, PATIENCE_SECONDS) == 0
            await app.database.write(make_due)
        entries = await app.database.read(
            lambda connection: [
                tuple(row) for row in connection.execute(select(tables.audit.c.schedule_id, tables.audit.c.action))
            ]
        )
        applied = Counter(id_ for id_, action in entries if action == "flag_schedule.applied")
        assert len(applied) == amount
        assert set(applied.values()) == {1}
        percentages = await app.database.read(
            lambda connection: set(connection.execute(select(tables.flags.c.rollout_percentage)).scalars())
        )
        assert percentages == {7}
        lost = Counter(action for _, action in entries)["flag_schedule.retried"]
        print(f"{KILLS} kills, {amount} schedules, {lost} tries lost and made up for")
        assert lost > 0, "the kills hit nothing: this test shows nothing"


@pytest.mark.long_on("sqlite")
async def test_sigterm_charges_nothing(ground: Ground) -> None:
    """A run that is told to stop finishes what it has begun, gives the rest back, and no try is charged."""
    app = Redrive(ground.url)
    Flags(app, FlagSettings(_env_file=None))
    ends = time.monotonic() + PATIENCE_SECONDS
    async with app:
        await app.database.write(put, 400)
        run = start(ground, "run")
        try:
            while (await app.database.read(statuses))["applied"] < 10:
                assert time.monotonic() < ends
                await asyncio.sleep(0.005)
            run.terminate()
            assert await asyncio.to_thread(run.wait, PATIENCE_SECONDS) == 128 + signal.SIGTERM
        finally:
            run.kill()
            run.wait()
        t = tables.schedules
        rows = await app.database.read(lambda connection: connection.execute(select(t)).all())
        assert {row.status for row in rows} == {"pending", "applied"}, "it was not stopped in mid-run"
        assert {(row.retry_count, row.lease_until, row.claim_id) for row in rows} == {(0, None, None)}
