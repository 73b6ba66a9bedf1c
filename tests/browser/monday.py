"""The Monday morning after: nothing fails, nothing is late, nothing is dead. What the first screen shows then is as much a promise as the bad night."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, insert

from redrive import Redrive, Task
from redrive.ledgers.build import build
from redrive.ledgers.sql import schema
from redrive.operator.roster import WorkerSign
from redrive.operator.sql.kinds import SqlKinds
from redrive.stores.sql import SqlStore

from .site import Site, serving
from .sunday import KINDS, LEDGER, RETRIES, WORKER, minute_of

FINE = KINDS | {"payment.capture": (96, 6), "crm.sync": (40, 7), "mail.send": (32, 5), "report.build": (3, 9)}
VERSION = "51bd"


@asynccontextmanager
async def monday(folder: Path) -> AsyncIterator[Site]:
    """The service at rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDRIVE_VERSION", VERSION)
        build.cache_clear()
        try:
            async with serving(folder, join=_join) as site:
                await _stage(site)
                yield site
        finally:
            build.cache_clear()


def _join(app: Redrive) -> None:
    for kind in FINE:

        @app.handler(kind, policy=RETRIES)
        async def fine(task: Task) -> None:
            pass


async def _stage(site: Site) -> None:
    app, now = site.app, datetime.now(UTC)
    app.gate("bank:*", concurrency=5, rate="20/s")
    await app.database.write(lambda connection: _remember(connection, now))
    for number in range(3):
        await app.add("order.confirm", key=f"order-{number}", gate="bank:DE")
    there = [(f"app-{host}:{pid}", host, pid) for host, pid in ((1, 902), (1, 904), (2, 1871), (3, 2219))]
    for name, host, pid in there:
        sign = WorkerSign(
            name=name, host=f"app-{host}", pid=pid, version=VERSION, started_at=now - timedelta(minutes=44), slots=16,
            holds={LEDGER: {"order.confirm": 3 + pid % 4}},
            tries_a_minute=94 + pid % 9, held_since=now - timedelta(milliseconds=pid),
        )  # fmt: skip
        await app.store.roster.sign(sign)

    async def done() -> bool:
        return (await app.tasks.get("order-2")).state == "done"

    await site.until(done, within=60)
    await app.tasks.pause_gate("bank:FR", actor="ada", reason="the bank moves its server")
    await app.tasks.resume_gate("bank:FR", actor="ada", reason="it has moved")
    store = app.store
    assert isinstance(store, SqlStore)
    store.kinds = SqlKinds(app.database)  # the one before has kept what older minutes were until now
    await site.count()


def _remember(connection: Connection, now: datetime) -> None:
    """The hour before: every kind at its usual pace, some tries failed and went through at the next."""
    whole, rows, flows, samples = now.replace(second=0, microsecond=0), [], [], []
    for back in range(59, 0, -1):
        minute, wave = whole - timedelta(minutes=back), 1 + 0.08 * math.sin(back / 3)
        for number, (kind, (amount, bucket)) in enumerate(FINE.items()):
            failed = 1 if (back + number) % 7 == 0 and amount > 30 else 0
            rows.append(minute_of(minute, kind, round(amount * wave), failed, bucket, version=VERSION))
        done = round(660 * wave)
        flows.append(
            {"minute": minute, "ledger": LEDGER, "worker": WORKER, "added": done, "done": done, "dead": 0, "tries_1": done, "took_05": done}
        )  # fmt: skip
        samples.append(
            {"minute": minute, "ledger": LEDGER, "waiting": round(70 * wave), "claimed": 30, "done": 0, "dead": 0, "cancelled": 0, "oldest_due_seconds": 0.2}
        )  # fmt: skip
    for table, some in ((schema.kind_minute, rows), (schema.minute, flows), (schema.sample, samples)):
        connection.execute(insert(table), some)
    connection.execute(delete(schema.census))  # else all of them would be taken for tasks that somebody has just added
