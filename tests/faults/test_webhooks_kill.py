"""Servers of the inbox that are killed at random, while senders send and handlers run."""

import os
import random

import pytest

from .processes import Ground
from .webhook_kills import webhooks

KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 2)


@pytest.mark.long_on("sqlite")
@pytest.mark.timeout(600 + KILLS * 2)
async def test_nothing_accepted_is_lost_when_servers_are_killed(ground: Ground, rng: random.Random) -> None:
    """Every webhook answered with 2xx ends completed once for its key; at full size by `python -m proof kills_webhooks`."""
    print(await webhooks(ground, rng, tasks=10 * KILLS, kills=KILLS))
