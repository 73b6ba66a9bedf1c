"""Runs of `redrive flags process` that are killed or stopped while they apply schedules."""

import asyncio
import os
import random
import signal
import time

import pytest
from sqlalchemy import select

from redrive import Redrive
from redrive.systems.flags import Flags, FlagSettings, tables

from .flag_kills import flags, put, start, statuses
from .processes import Ground

KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 1)
SCHEDULES_PER_KILL = 60
PATIENCE_SECONDS = 150


@pytest.mark.long_on("postgres")
@pytest.mark.timeout(600 + 20 * KILLS)
async def test_each_schedule_once_though_runs_are_killed(ground: Ground, rng: random.Random) -> None:
    """SIGKILL in mid-run: no schedule is lost, and none is applied twice; at full size by `python -m proof kills_flags`."""
    print(await flags(ground, rng, tasks=SCHEDULES_PER_KILL * KILLS, kills=KILLS))


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
