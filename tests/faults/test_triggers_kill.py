"""Services of triggers that are killed while events come in and go out."""

import os
import random

import pytest

from .processes import Ground
from .trigger_kills import triggers

KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 1)
EVENTS_PER_KILL = 15


@pytest.mark.long_on("postgres")
@pytest.mark.timeout(600 + 10 * KILLS)
async def test_no_accepted_event_is_lost(ground: Ground, rng: random.Random) -> None:
    """Every event that was accepted is delivered, and every extra delivery is explained; at full size by `python -m proof kills_triggers`."""
    del ground.environment["REDRIVE_SECRET_KEY"]  # which the tests have, and a proof has not
    print(await triggers(ground, rng, tasks=EVENTS_PER_KILL * (KILLS + 1), kills=KILLS))
