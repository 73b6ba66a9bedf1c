"""Workers that are killed at random, while hundreds of tasks run."""

import os
import random

import pytest

from .kill_proofs import engine
from .processes import Ground

KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 5)
TASKS_PER_KILL = 55


@pytest.mark.timeout(600 + KILLS)
async def test_none_is_lost_when_workers_are_killed(ground: Ground, rng: random.Random) -> None:
    """SIGKILL at any moment loses no task, and every extra run is on the books; at full size by `python -m proof kills_engine`."""
    print(await engine(ground, rng, tasks=KILLS * TASKS_PER_KILL, kills=KILLS))
