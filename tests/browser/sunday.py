"""A Sunday night as the pictures of the docs show it: a deploy broke a kind, a bank is away, a worker was killed, a kind has recovered.

What fails now fails on a real service; the hour before is written down as workers would have written it.
"""

import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, update

from redrive import Exponential, Policy, Redrive, Task, hours, minutes, seconds
from redrive.core.cause import cause_of
from redrive.core.histograms import RAN
from redrive.gates import Breaker
from redrive.ledgers.build import build
from redrive.ledgers.sql import schema
from redrive.operator.roster import WorkerSign
from redrive.operator.sql.kinds import SqlKinds
from redrive.stores.sql import SqlStore

from .site import Site, serving

MAIL = '''"""Mail of the shop."""


def template(order):
    return None


def render(order):
    found = template(order)
    return found.body.format(order=order)


async def send_mail(task):
    return render(task.payload["order"])
'''
KINDS = {
    "order.confirm": (240, 5),
    "webhook.deliver": (150, 6),
    "stock.reserve": (100, 4),
    "invoice.render": (52, 8),
    "refund.issue": (11, 6),
}
"""How many tries a minute, and how long most of them take: the bucket."""
DEPLOYED, HELD = 6, 12
"""How many minutes ago a version was deployed that breaks mail, and the gate of a bank began to hold."""
CRM, LEDGER, WORKER = "HTTPStatusError: 503 Service Unavailable", "redrive_task", "app-1:902"
RETRIES = Policy(Exponential(seconds(20), minutes(4)), retries=5, name="mail")


@asynccontextmanager
async def sunday(folder: Path) -> AsyncIterator[Site]:
    """The service in trouble."""
    (folder / "shop").mkdir()
    (folder / "shop" / "mail.py").write_text(MAIL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDRIVE_VERSION", "4f2a")
        build.cache_clear()
        patch.syspath_prepend(str(folder))
        try:
            async with serving(folder, join=_join) as site:
                await _stage(site)
                yield site
        finally:
            build.cache_clear()
            for name in ("shop.mail", "shop"):
                sys.modules.pop(name, None)


def _join(app: Redrive) -> None:
    from shop.mail import send_mail  # type: ignore[import-not-found]  # it was written a moment ago

    @app.handler("mail.send", policy=RETRIES)
    async def send(task: Task) -> None:
        if isinstance(task.payload, dict):
            await send_mail(task)

    @app.handler("payment.capture", policy=RETRIES)
    async def capture(task: Task) -> None:
        raise ConnectionRefusedError("pay.example:443")

    for kind in ("crm.sync", *KINDS):

        @app.handler(kind, policy=RETRIES)
        async def fine(task: Task) -> None:
            pass


async def _stage(site: Site) -> None:
    app, lane = site.app, site.app.tasks
    app.gate("bank:*", concurrency=5, rate="20/s", breaker=Breaker(failures=10))
    now = datetime.now(UTC)
    await app.database.write(lambda connection: _remember(connection, now))
    for number in range(46):
        await app.add("mail.send", {"order": 88_213 + number, "to": "ada@example.org"}, key=f"mail-{91_500 + number}")
    for number in range(12):
        await app.add("payment.capture", {"order": number}, key=f"pay-{number}", gate="bank:DE")

    async def holds() -> bool:
        view = await lane.gate_state("bank:DE")
        return view is not None and view.does == "holding"

    await site.until(holds, within=60)
    for number in range(120):
        await app.add("payment.capture", {"order": number}, key=f"parked-{number}", gate="bank:DE")
    await lane.pause_gate("endpoint:acme", actor="ada", reason="acme moves its server", span=hours(1))
    lost = WorkerSign(
        name="app-3:2217", host="app-3", pid=2217, version="4f2a", started_at=now - timedelta(minutes=7), slots=16,
        holds={LEDGER: {"mail.send": 3, "payment.capture": 2, "crm.sync": 1}},
        tries_a_minute=88, held_since=now - timedelta(seconds=72),
    )  # fmt: skip
    await app.store.roster.sign(lost)
    there = [(f"app-{host}:{pid}", host, pid) for host, pid in ((1, 902), (1, 904), (2, 1871), (3, 2219), (4, 3310))]
    for name, host, pid in there:
        await app.store.roster.sign(
            WorkerSign(name=name, host=f"app-{host}", pid=pid, version="4f2a", started_at=now - timedelta(minutes=7), slots=16, holds={LEDGER: {"order.confirm": 3 + pid % 4}},
                       tries_a_minute=94 + pid % 9, held_since=now - timedelta(milliseconds=pid))
        )  # fmt: skip
    gone = update(schema.worker).where(schema.worker.c.name == "app-3:2217").values(seen_at=now - timedelta(seconds=70))
    await app.database.write(lambda connection: connection.execute(gone) and None)

    async def seen() -> bool:
        return len((await app.store.kinds.look()).causes) >= 3

    await site.until(seen, within=60)
    await app.database.write(_since_a_while)
    store = app.store
    assert isinstance(store, SqlStore)
    store.kinds = SqlKinds(app.database)  # the one before has kept what older minutes were until now
    await site.count()


def _since_a_while(connection: Connection) -> None:
    """What has just begun began some minutes ago, as workers would have written it down."""
    f, g, s = schema.failing, schema.gate, schema.gate_span
    now = datetime.now(UTC)
    whole = now.replace(second=0, microsecond=0)
    for kind, minutes_ago, tries in (("mail.send", DEPLOYED, 130), ("payment.capture", HELD, 2)):
        [cause] = connection.execute(select(f.c.id).where(f.c.kind == kind)).scalars().all()
        since = whole - timedelta(minutes=minutes_ago)
        values = {"first_seen": since, "since": since, "since_hour": since.replace(minute=0, second=0)}
        connection.execute(update(f).where(f.c.id == cause).values(values))
        rows = [
            minute_of(whole - timedelta(minutes=back), kind, tries - back % 3, tries - back % 3, 3, cause=of, version="4f2a", dead=0)
            for back in range(minutes_ago, 0, -1)
            for of in ("", cause)
        ]  # fmt: skip
        connection.execute(insert(schema.kind_minute), rows)
    held = now - timedelta(minutes=HELD)
    connection.execute(update(g).where(g.c.name == "bank:DE").values(since=held, probes=2 * HELD))
    parked = [(whole - timedelta(minutes=back), round(120 * (HELD - back) / HELD)) for back in range(HELD - 1, 0, -1)]
    rows = [{"ledger": LEDGER, "name": "bank:DE", "minute": minute, "parked": amount} for minute, amount in parked]
    connection.execute(insert(schema.gate_parked), rows)
    connection.execute(delete(s).where(s.c.name == "bank:DE"))
    connection.execute(insert(s), [{"ledger": LEDGER, "name": "bank:DE", "began_at": held, "does": "holding"}])
    paused = now - timedelta(minutes=31)
    connection.execute(update(g).where(g.c.name == "endpoint:acme").values(paused_at=paused))
    connection.execute(delete(s).where(s.c.name == "endpoint:acme"))
    connection.execute(insert(s), [{"ledger": LEDGER, "name": "endpoint:acme", "began_at": paused, "does": "paused"}])


def _remember(connection: Connection, now: datetime) -> None:
    """The hour before: what each kind tried, the outage of a register that is over, and who is dead of it."""
    whole, rows, flows, samples, tasks = now.replace(second=0, microsecond=0), [], [], [], []
    down = cause_of(CRM, kind="crm.sync")
    for back in range(59, 0, -1):
        minute, wave = whole - timedelta(minutes=back), 1 + 0.08 * math.sin(back / 3)
        for kind, (amount, bucket) in KINDS.items():
            failed = 1 if back % 7 == 0 and kind == "webhook.deliver" else 0
            rows.append(minute_of(minute, kind, round(amount * wave), failed, bucket))
        if back > DEPLOYED:
            rows.append(minute_of(minute, "mail.send", round(33 * wave), 0, 3))
        if back > HELD:
            rows.append(minute_of(minute, "payment.capture", round(43 * wave), 0, 5))
        failed = round(128 * wave) if back > 29 else 0
        rows.append(minute_of(minute, "crm.sync", failed or round(36 * wave), failed, 6))
        if failed:
            rows.append(minute_of(minute, "crm.sync", failed, failed, 6, cause=down.id))
            tasks += [_dead(minute, back, number, down.id) for number in range(20)]
        done = round(660 * wave)
        flows.append(
            {
                "minute": minute,
                "ledger": LEDGER,
                "worker": WORKER,
                "added": done,
                "done": done,
                "dead": 20 if failed else 0,
                "tries_1": done,
                "took_05": done,
            }
        )
        samples.append(
            {
                "minute": minute,
                "ledger": LEDGER,
                "waiting": round(70 * wave),
                "claimed": 30,
                "done": 0,
                "dead": 0,
                "cancelled": 0,
                "oldest_due_seconds": 0.4,
            }
        )
    since, over = whole - timedelta(minutes=59), whole - timedelta(minutes=30)
    connection.execute(
        insert(schema.failing),
        [{"ledger": LEDGER, "id": down.id, "kind": "crm.sync", "text": down.text, "sample": CRM, "at": None, "first_seen": since, "since": since,
          "since_hour": since.replace(minute=0), "last_seen": over, "first_version": "9c1e", "last_version": "9c1e", "tries_max": 6, "lasts_seconds": 240.0}],
    )  # fmt: skip
    for table, some in (
        (schema.kind_minute, rows),
        (schema.task, tasks),
        (schema.minute, flows),
        (schema.sample, samples),
    ):
        connection.execute(insert(table), some)
    connection.execute(delete(schema.census))  # else all of them would be taken for tasks that somebody has just added


def minute_of(
    minute: datetime,
    kind: str,
    tries: int,
    failures: int,
    bucket: int,
    cause: str = "",
    version: str = "9c1e",
    dead: int = 20,
) -> dict[str, Any]:
    ended = minute + timedelta(seconds=50)
    ran = dict.fromkeys(RAN, 0) | {RAN[bucket]: tries - tries // 9, RAN[bucket + 1]: tries // 9}
    return {
        "ledger": LEDGER, "kind": kind, "cause": cause, "minute": minute, "version": version, "worker": WORKER, "begun": tries - failures, "tries": tries,
        "failures": failures, "done": tries - failures, "dead": dead if failures > 50 else 0, "first_failure": minute if failures else None,
        "last_failure": ended if failures else None, "first_success": None if failures == tries else minute,
        "last_success": None if failures == tries else ended, **ran,
    }  # fmt: skip


def _dead(minute: datetime, back: int, number: int, cause: str) -> dict[str, Any]:
    at = minute + timedelta(seconds=2 * number)
    return {
        "key": f"crm-{back}-{number}", "kind": "crm.sync", "payload": None, "state": "dead", "failures": 6, "created_at": at - timedelta(minutes=4),
        "updated_at": at, "ended_at": at, "last_error": CRM,
    }  # fmt: skip
