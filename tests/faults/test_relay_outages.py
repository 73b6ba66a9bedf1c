"""Relays, the broker and PostgreSQL die under load: no message is lost, and every duplicate is explained.

A node of RabbitMQ takes as long to start as forty tests take to run, so by default relays alone die. What a broker or a PostgreSQL that
is away costs is shown in short ways too: `systems/relay/test_broker.py`, `test_postgres_restart.py`.
"""

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


@pytest.mark.long_on("postgres")
async def test_nothing_is_lost_with_relays(ground: Ground, rabbitmq: str, rng: random.Random) -> None:
    """kill -9 of relays: what was confirmed to the producer arrives; at full size by `python -m proof kills_relay`."""
    print(await relay(ground, rng, tasks=120, kills=2, broker_url=rabbitmq, burst=3))


@pytest.mark.wide
@pytest.mark.timeout(600 + 60 * ROUNDS)
async def test_nothing_is_lost(server: OwnServer, tmp_path: Path, rng: random.Random) -> None:
    """The same while the broker is killed and PostgreSQL restarted."""
    database = open_database(server.url)
    await migrate(database, ["relay"])
    await database.close()
    kills = 3 * ROUNDS
    print(
        await relay(Ground(server.url, tmp_path), rng, tasks=80 * kills, kills=kills, broker_every=3, postgres=server)
    )
