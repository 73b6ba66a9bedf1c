"""Relays, the broker and PostgreSQL die under load: small by `test_relay_outages.py`, and at full size by `python -m proof kills_relay`."""

import asyncio
import random
import secrets
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import Any

from sqlalchemy import select

from redrive import Redrive
from redrive.ledgers.sql import schema
from redrive.systems.relay.tables import retry_queue
from tests.servers import own_rabbitmq

from .books import until
from .kill_proofs import PATIENCE_SECONDS
from .own_postgres import OwnServer
from .processes import Ground, events
from .traffic import RelayProcess, Traffic


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


async def relay(
    ground: Ground,
    rng: random.Random,
    *,
    tasks: int,
    kills: int,
    broker_every: int = 0,
    broker_url: str | None = None,
    postgres: OwnServer | None = None,
    busy: int = 1,
    burst: int = 10,
) -> str:
    """kill -9 of relays, after each `broker_every` of them also of a broker of its own, and restarts of a PostgreSQL: what was confirmed
    to the producer arrives.

    A second publication of a message is explained by an attempt whose relay was lost, by a confirm that was cut, or by an
    acknowledgement that was cut, after which the message came back as a return and was done once more.
    """
    with ExitStack() as stack:
        node = None if broker_url is not None else stack.enter_context(own_rabbitmq())
        broker = node.url if node is not None else str(broker_url)
        traffic = Traffic(broker, f"storm-{secrets.token_hex(4)}", bursts_per_second=8 * busy, burst=burst * busy)
        await traffic.start()
        made: list[RelayProcess] = []

        def another() -> RelayProcess:
            made.append(RelayProcess(ground.folder, f"relay-{len(made)}", traffic, broker, ground.url))
            return stack.enter_context(made[-1])

        relays = [another(), another()]
        broker_kills = restarts = 0
        for kill in range(kills):
            least = tasks * (kill + 1) // (kills + 1)
            await until(lambda least=least: len(traffic.came) >= least, "more messages go round", PATIENCE_SECONDS)
            await asyncio.sleep(rng.uniform(0, 0.5))
            victim = rng.randrange(2)
            relays[victim].kill()
            relays[victim] = another()
            if node is not None and broker_every and kill % broker_every == broker_every - 1:
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
                broker_kills += 1
            if postgres is not None and kill % 3 == 0:
                await postgres.restart(0.3)
                restarts += 1
        await until(lambda: len(traffic.sent) >= tasks, "all were sent", PATIENCE_SECONDS)
        await traffic.stop_producing()
        await until(lambda: not traffic.missing, "all that was confirmed has come", PATIENCE_SECONDS)
        async with Redrive(ground.url) as app:

            async def written() -> bool:
                return set((await read_attempts(app))[0].values()) == {"retried"}

            await until(written, "all is written down", PATIENCE_SECONDS, every=1)
            states, attempts = await read_attempts(app)
        assert [one.stop() for one in relays] == [0, 0]
        await traffic.stop()
    duplicates = Duplicates(traffic, [one.log for one in made], attempts)
    outcomes = sum(attempts.values(), Counter())
    assert set(traffic.sent) <= set(states), "a confirmed message is lost"
    assert duplicates.unexplained == {}
    assert all("Traceback" not in one.log for one in made)
    for one in relays:
        away, back = (len(events(one.log, name)) for name in ("broker_away", "broker_connected"))
        assert away <= 2 * 2 * max(1, broker_kills), "one line for each connection and outage, not one for each try"
        assert back >= (2 if broker_kills else 1)
    beside = f", {restarts} restarts of PostgreSQL" if restarts else ""
    return (
        f"{len(traffic.sent):,} messages confirmed, 0 lost; {kills} kills of relays, {broker_kills} of the broker{beside} met "
        f"{outcomes['lease_expired']:,} messages held and cut {sum(duplicates.cut.values()):,} confirms; "
        f"{sum(duplicates.extra.values()):,} came once more, each explained; {outcomes.total():,} claims, one attempt each"
    )
