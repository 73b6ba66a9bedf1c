"""The broker, the relay and PostgreSQL die under load, each more than once: no message is lost, and every duplicate is explained."""

import os
import random
from pathlib import Path

import pytest

from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate

from .own_postgres import OwnServer
from .processes import Ground
from .relay_kills import relay

ROUNDS = int(os.environ.get("REDRIVE_TEST_ROUNDS", "1"))


@pytest.mark.timeout(600 + 60 * ROUNDS)
async def test_nothing_is_lost(server: OwnServer, tmp_path: Path, rng: random.Random) -> None:
    """What was confirmed to the producer arrives; of relays and broker at full size by `python -m proof kills_relay`."""
    database = open_database(server.url)
    await migrate(database, ["relay"])
    await database.close()
    kills = 3 * ROUNDS
    print(
        await relay(Ground(server.url, tmp_path), rng, tasks=80 * kills, kills=kills, broker_every=3, postgres=server)
    )
