"""The broker, the relay and PostgreSQL die under load, each more than once: no message is lost, and every duplicate is explained."""

import asyncio
import os
import random
import time
from collections import Counter, defaultdict
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


@pytest.mark.timeout(600 + 60 * ROUNDS)
async def test_nothing_is_lost(server: OwnServer, tmp_path: Path, rng: random.Random) -> None:
    """kill -9 of relays and broker and restarts of PostgreSQL, again and again: what was confirmed to the producer arrives.

    A second publication of a message is explained by an attempt whose relay was lost, by a confirm that was cut, or by an
    acknowledgement that was cut, after which the message came back as a return and was done once more.
    """
    database = open_database(server.url)
    await migrate(database, ["relay"])
    await database.close()
    began = time.monotonic()
    with own_rabbitmq() as node, ExitStack() as stack:
        traffic = Traffic(node.url, "storm")
        await traffic.start()
        made: list[RelayProcess] = []

        def another() -> RelayProcess:
            made.append(RelayProcess(tmp_path, f"relay-{len(made)}", traffic, node.url, server.url))
            return stack.enter_context(made[-1])

        relays = [another(), another()]

        async def kill_relay() -> None:
            victim = rng.randrange(2)
            relays[victim].kill()
            relays[victim] = another()

        async def kill_broker() -> None:
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)

        async def restart_postgres() -> None:
            await server.restart(0.3)

        await until(lambda: len(traffic.came) > 50, "messages go round")
        for _ in range(ROUNDS):
            for fault in (kill_relay, restart_postgres, kill_relay, kill_broker, kill_relay):
                await fault()
                await asyncio.sleep(rng.uniform(0.3, 1.2))
        await traffic.stop_producing()
        stormed = time.monotonic() - began
        await until(lambda: not traffic.missing, "all that was confirmed has come", timeout=DRAIN_SECONDS)
        async with Redrive(server.url) as app:

            async def settled() -> bool:
                return set((await read_attempts(app))[0].values()) == {"retried"}

            await until(settled, "all is written down", timeout=DRAIN_SECONDS)
            states, attempts = await read_attempts(app)
        assert [relay.stop() for relay in relays] == [0, 0]
        await traffic.stop()
    duplicates = Duplicates(traffic, [relay.log for relay in made], attempts)
    outcomes = sum(attempts.values(), Counter())
    print(
        f"{len(traffic.sent)} messages in {stormed:.0f} s, {len(made) - 2} relays killed, all there after "
        f"{time.monotonic() - began:.0f} s; {sum(duplicates.extra.values())} duplicates, "
        f"{sum(duplicates.cut.values())} confirms cut, attempts {dict(outcomes)}"
    )
    assert set(traffic.sent) <= set(states)
    assert set(states.values()) == {"retried"}
    assert duplicates.unexplained == {}
    assert all("Traceback" not in relay.log for relay in made)
    for relay in relays:
        away, back = (len(events(relay.log, name)) for name in ("broker_away", "broker_connected"))
        assert away <= 2 * 2 * ROUNDS, "one line for each connection and outage, not one for each try"
        assert back >= 2
