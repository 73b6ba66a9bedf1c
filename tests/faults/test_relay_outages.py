"""Relays, the broker and PostgreSQL die under load: no message is lost, and every duplicate is explained.

A node of RabbitMQ takes as long to start as forty tests take to run, so by default relays alone die. What a broker or a PostgreSQL that
is away costs is shown in short ways too: `systems/relay/test_broker.py`, `test_postgres_restart.py`.
"""

import asyncio
import os
import random
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from redrive import Redrive
from redrive.ledgers.open import open_database
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.relay.tables import retry_queue
from tests.servers import own_rabbitmq

from .books import until
from .own_postgres import OwnServer
from .processes import events
from .traffic import RelayProcess, Traffic

ROUNDS = int(os.environ.get("REDRIVE_TEST_ROUNDS", "1"))
DRAIN_SECONDS = 150


class Duplicates:
    """Every publication of a message beyond its first, and what explains it."""

    def __init__(self, traffic: Traffic, logs: list[str], attempts: dict[str, Counter[str]]) -> None:
        self.extra = {key: len(came) - 1 for key, came in traffic.came.items() if len(came) > 1}
        self.cut = Counter(line.get("message_id") for log in logs for line in events(log, "retry_confirm_lost"))
        self.unexplained = {}
        for key, came in traffic.came.items():
            known = attempts[key]
            # Each of these may have put one publication on the wire; a confirm that was cut, one more.
            most = known["done"] + known["lease_expired"] + known["released"] + self.cut[key]
            if len(came) > most:
                self.unexplained[key] = (len(came), dict(known), self.cut[key])


async def read_attempts(app: Redrive) -> tuple[dict[str, str], dict[str, Counter[str]]]:
    """The status of each message, and the outcomes of its attempts."""

    def look(connection: Any) -> tuple[list[Any], list[Any]]:
        rows = connection.execute(select(retry_queue.c.id, retry_queue.c.message_id, retry_queue.c.status)).all()
        return list(rows), list(connection.execute(select(schema.attempt.c.task_id, schema.attempt.c.outcome)).all())

    rows, attempts = await app.database.read(look)
    key_of = {str(row.id): row.message_id for row in rows}
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for attempt in attempts:
        counted[key_of[attempt.task_id]][attempt.outcome] += 1
    return {row.message_id: row.status for row in rows}, counted


@pytest.mark.long_on("postgres")
async def test_nothing_is_lost_with_relays(url: str, rabbitmq: str, tmp_path: Path, rng: random.Random) -> None:
    """kill -9 of relays under load: what was confirmed to the producer arrives, and every duplicate is explained as below."""
    storm = Storm(url, rabbitmq, tmp_path, rng)
    await storm.run((storm.kill_relay,) * 2)


@pytest.mark.wide
@pytest.mark.timeout(600 + 60 * ROUNDS)
async def test_nothing_is_lost(server: OwnServer, tmp_path: Path, rng: random.Random) -> None:
    """kill -9 of relays and broker and restarts of PostgreSQL, again and again: what was confirmed to the producer arrives.

    A second publication of a message is explained by an attempt whose relay was lost, by a confirm that was cut, or by an
    acknowledgement that was cut, after which the message came back as a return and was done once more.
    """
    database = open_database(server.url)
    await migrate(database, ["relay"])
    await database.close()
    with own_rabbitmq() as node:
        storm = Storm(server.url, node.url, tmp_path, rng)

        async def kill_broker() -> None:
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)

        async def restart_postgres() -> None:
            await server.restart(0.3)

        kill = storm.kill_relay
        await storm.run((kill, restart_postgres, kill, kill_broker, kill) * ROUNDS)
    for relay in storm.relays:
        away, back = (len(events(relay.log, name)) for name in ("broker_away", "broker_connected"))
        assert away <= 2 * 2 * ROUNDS, "one line for each connection and outage, not one for each try"
        assert back >= 2


class Storm:
    """Two relays under load, and what becomes of the messages whatever dies."""

    def __init__(self, url: str, broker_url: str, folder: Path, rng: random.Random) -> None:
        self._url = url
        self._broker_url = broker_url
        self._folder = folder
        self._rng = rng
        self._traffic = Traffic(broker_url, f"storm-{secrets.token_hex(4)}")
        self._stack = ExitStack()
        self._made: list[RelayProcess] = []
        self.relays: list[RelayProcess] = []

    def _another(self) -> RelayProcess:
        name = f"relay-{len(self._made)}"
        self._made.append(RelayProcess(self._folder, name, self._traffic, self._broker_url, self._url))
        return self._stack.enter_context(self._made[-1])

    async def kill_relay(self) -> None:
        """One of the two, and another in its place."""
        victim = self._rng.randrange(2)
        self.relays[victim].kill()
        self.relays[victim] = self._another()

    async def run(self, faults: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """One fault after the other while messages go round; then all must be there."""
        began = time.monotonic()
        traffic = self._traffic
        with self._stack:
            await traffic.start()
            self.relays = [self._another(), self._another()]
            await until(lambda: len(traffic.came) > 50, "messages go round")
            for fault in faults:
                await fault()
                await asyncio.sleep(self._rng.uniform(0.3, 1.2))
            await traffic.stop_producing()
            stormed = time.monotonic() - began
            await until(lambda: not traffic.missing, "all that was confirmed has come", timeout=DRAIN_SECONDS)
            async with Redrive(self._url) as app:

                async def settled() -> bool:
                    return set((await read_attempts(app))[0].values()) == {"retried"}

                await until(settled, "all is written down", timeout=DRAIN_SECONDS)
                states, attempts = await read_attempts(app)
            assert [relay.stop() for relay in self.relays] == [0, 0]
            await traffic.stop()
        duplicates = Duplicates(traffic, [relay.log for relay in self._made], attempts)
        outcomes = sum(attempts.values(), Counter())
        print(
            f"{len(traffic.sent)} messages in {stormed:.0f} s, {len(self._made) - 2} relays killed, all there after "
            f"{time.monotonic() - began:.0f} s; {sum(duplicates.extra.values())} duplicates, "
            f"{sum(duplicates.cut.values())} confirms cut, attempts {dict(outcomes)}"
        )
        assert set(traffic.sent) <= set(states)
        assert set(states.values()) == {"retried"}
        assert duplicates.unexplained == {}
        assert all("Traceback" not in relay.log for relay in self._made)
