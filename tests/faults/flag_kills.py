"""Runs of `redrive flags process` that are killed: small by `test_flags_kill.py`, and at full size by `python -m proof kills_flags`."""

import asyncio
import random
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import OperationalError

from redrive import Redrive
from redrive.systems.flags import Flags, FlagSettings, tables
from tests import forks

from .books import until
from .kill_proofs import PATIENCE_SECONDS, attempts
from .processes import Ground

LEASE_SECONDS = 1


def start(ground: Ground, name: str) -> forks.Process:
    """One run, as cron starts it."""
    environment = ground.environment | {"WORKER_LEASE": f"{LEASE_SECONDS}s"}
    return forks.run("flags", "process", folder=forks.ROOT, log=ground.folder / f"{name}.log", environment=environment)


def put(connection: Connection, amount: int, first: int = 0) -> None:
    """Schedules that were due a minute ago, each of a flag of its own."""
    now = datetime.now(UTC)
    stamps = {"created_at": now, "updated_at": now}
    keys = [f"flag-{number}" for number in range(first, first + amount)]
    connection.execute(insert(tables.flags), [{"flag_key": key, **stamps} for key in keys])
    rows = [
        {"flag_id": flag.id, "flag_key": flag.flag_key, "scheduled_at": now - timedelta(minutes=1),
         "updates": {"rolloutPercentage": 7}, "max_retries": 10, **stamps}
        for flag in connection.execute(select(tables.flags).where(tables.flags.c.flag_key.in_(keys)))
    ]  # fmt: skip
    connection.execute(insert(tables.schedules), rows)


def statuses(connection: Connection) -> Counter[str]:
    """How many schedules have which status."""
    t = tables.schedules
    counted = select(t.c.status, func.count().label("amount")).group_by(t.c.status)
    return Counter({row.status: row.amount for row in connection.execute(counted)})


def _newest(connection: Connection) -> int:
    return connection.execute(select(func.coalesce(func.max(tables.schedules.c.id), 0))).scalar_one()


def _under_way(connection: Connection, after: int) -> tuple[int, int]:
    """How many are held, and how many of the newest are applied: by the index and by number, since it is asked all the time."""
    t = tables.schedules
    held = select(func.count()).where(t.c.lease_until.is_not(None)).scalar_subquery()
    applied = select(func.count()).where(t.c.id > after, t.c.status == "applied").scalar_subquery()
    row = connection.execute(select(held, applied)).one()
    return row[0], row[1]


def _make_due(connection: Connection) -> None:
    """Let the minutes of backoff pass."""
    t = tables.schedules
    now = datetime.now(UTC)
    connection.execute(update(t).where(t.c.next_retry_at.is_not(None)).values(next_retry_at=now))


async def _in_the_midst(app: Redrive, held_least: int, applied_least: int, after: int) -> bool:
    """Whether so many are held and applied. Who stands still between two locks of SQLite lets nobody look: it must go on."""
    try:
        held, applied = await app.database.read(_under_way, after)
    except OperationalError:
        return False
    return held >= held_least and applied >= applied_least


async def flags(ground: Ground, rng: random.Random, *, tasks: int, kills: int) -> str:
    """SIGKILL in mid-run, with a second run right behind it: no schedule is lost, and none is applied twice.

    What the killed run held is charged as a lost try when its lease has run out, and comes through later.
    """
    per_kill = tasks // kills
    app = Redrive(ground.url)
    Flags(app, FlagSettings(_env_file=None))
    some = 1 if ground.url.startswith("sqlite") else 2  # PostgreSQL may finish a commit whose client is dead
    async with app:
        for kill in range(kills):
            before = await app.database.read(_newest)
            await app.database.write(put, per_kill, kill * per_kill)
            victim = other = start(ground, "victim")
            try:
                least = 1 + rng.randrange(per_kill // 2)

                async def far_enough(victim: forks.Process = victim, least: int = least, after: int = before) -> bool:
                    return await _in_the_midst(app, 0, least, after) or victim.poll() is not None

                async def midst(victim: forks.Process = victim, least: int = least, after: int = before) -> bool:
                    """From there it works in short turns, so that it dies in the midst: some are applied, and some are held."""
                    if await _in_the_midst(app, some, least, after):
                        return True
                    victim.send_signal(signal.SIGCONT)
                    await asyncio.sleep(0.005)
                    victim.send_signal(signal.SIGSTOP)
                    return victim.poll() is not None

                await until(far_enough, "it has applied some", PATIENCE_SECONDS, every=0.002)
                victim.send_signal(signal.SIGSTOP)
                await until(midst, "it is in the midst", PATIENCE_SECONDS, every=0)
                other = start(ground, "other")
                victim.kill()
                victim.wait()
                assert await asyncio.to_thread(other.wait, PATIENCE_SECONDS) == 0
            finally:
                for process in (victim, other):
                    process.kill()
                    process.wait()
            await app.database.write(_make_due)

        async def all_applied() -> bool:
            await asyncio.sleep(LEASE_SECONDS)
            run = start(ground, "rest")
            assert await asyncio.to_thread(run.wait, PATIENCE_SECONDS) == 0
            await app.database.write(_make_due)
            return (await app.database.read(statuses))["applied"] == kills * per_kill

        await until(all_applied, "all are applied", PATIENCE_SECONDS)
        entries = await app.database.read(
            lambda connection: [
                tuple(row) for row in connection.execute(select(tables.audit.c.schedule_id, tables.audit.c.action))
            ]
        )
        percentages = await app.database.read(
            lambda connection: set(connection.execute(select(tables.flags.c.rollout_percentage)).scalars())
        )
        outcomes = await app.database.read(attempts)
    applied = Counter(id_ for id_, action in entries if action == "flag_schedule.applied")
    assert len(applied) == kills * per_kill
    assert set(applied.values()) == {1}, f"applied twice: {[id_ for id_, amount in applied.items() if amount > 1][:3]}"
    assert percentages == {7}
    lost = Counter(action for _, action in entries)["flag_schedule.retried"]
    assert lost > 0, "the kills hit nothing: this shows nothing"
    return (
        f"{len(applied):,} schedules, each applied once, 0 lost; {kills} kills met {outcomes['lease_expired']:,} schedules held; "
        f"{outcomes.total():,} claims, one attempt each"
    )
