"""Health, readiness and metrics."""

import asyncio
import re
import sqlite3
from contextlib import closing

import httpx
import pytest
from sqlalchemy import update

from redrive import Redrive
from redrive.ledgers.sql import schema
from redrive.ledgers.sqlite import write_lock
from redrive.operator.sql.figures import SqlFigures
from redrive.running import Service
from redrive.settings import Settings
from redrive.testing import VirtualClock
from redrive.web import health

from .conftest import client_of, running
from .standing import standing

AWAY = "postgresql://nobody@127.0.0.1:1/none"


async def test_health_says_that_the_database_answers(local: httpx.AsyncClient):
    """Liveness: status, uptime, checks."""
    answer = await local.get("/health")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["checks"]) == ("ok", {"database": "ok"})
    assert body["uptime_seconds"] >= 0


async def test_health_and_ready_are_open_to_all(remote: httpx.AsyncClient):
    """A load balancer needs no key."""
    assert (await remote.get("/health")).status_code == 200
    assert (await remote.get("/ready")).status_code == 200


async def test_health_is_503_while_the_database_is_away():
    """And nothing but the word `away` is told."""
    app = Redrive(AWAY)
    async with client_of(Service(app, Settings(_env_file=None))) as client:
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["checks"] == {"database": "away"}
    await app.close()


async def test_health_asks_the_database_at_most_once_a_second(service: Service, monkeypatch: pytest.MonkeyPatch):
    """However many ask, the database is asked once."""
    asked = 0

    async def answers() -> bool:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return True

    monkeypatch.setattr(service, "store_answers", answers)
    monkeypatch.setattr(health, "HEALTH_FRESH_SECONDS", 1000)
    async with client_of(service) as client:
        await asyncio.gather(*(client.get("/health") for _ in range(20)))
    assert asked == 1


async def test_ready_follows_the_life_of_the_service(app: Redrive):
    """503 before the store is open and the loop runs, 200 while it does, 503 when stopping."""
    before = Service(app, Settings(_env_file=None))
    async with client_of(before) as client:
        answer = await client.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["checks"] == {"store": "not open", "worker": "not running"}
    async with running(app) as service, client_of(service) as client:
        assert (await client.get("/ready")).json() == {
            "status": "ready",
            "checks": {"store": "open", "worker": "running"},
        }
        service.stop()
        assert (await client.get("/ready")).status_code == 503


async def test_metrics_count_what_happened(app: Redrive, local: httpx.AsyncClient):
    """Counters from the facts, depths and ages from the ledger."""
    await app.add("mail", key="a")
    await app.add("unknown", key="b")
    while (await app.tasks.get("a")).state != "done":
        await asyncio.sleep(0.01)
    text = (await local.get("/metrics")).text
    assert re.search(
        r'^redrive_attempts_total\{kind="mail",ledger="redrive_task",outcome="done"\} 1.0$', text, re.MULTILINE
    )
    assert re.search(r'^redrive_tasks\{ledger="redrive_task",state="waiting"\} 1.0$', text, re.MULTILINE)
    assert re.search(r'^redrive_tasks\{ledger="redrive_task",state="dead"\} 0.0$', text, re.MULTILINE)
    assert float(re.search(r'^redrive_oldest_due_seconds\{ledger="redrive_task"\} (\S+)$', text, re.MULTILINE)[1]) > 0
    assert re.search(r'^redrive_ledger_up\{ledger="redrive_task"\} 1.0$', text, re.MULTILINE)


async def test_depths_come_from_the_census(url: str, clock: VirtualClock):
    """A scrape reads no table, so it shows also what would take long to count, and whole."""
    async with standing(url, clock) as web:
        await web.put(2)
        await web.count()
        await web.app.database.write(
            lambda connection: connection.execute(update(schema.census).values(done=7_000_000))
        )
        await web.done(1)
        text = (await web.local.get("/metrics")).text
    assert 'redrive_tasks{ledger="redrive_task",state="done"} 7.000001e+06' in text
    assert 'redrive_tasks{ledger="redrive_task",state="waiting"} 2.0' in text


async def test_depths_are_counted_at_most_every_few_seconds(
    app: Redrive, local: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    """A scrape storm does not count the tables each time."""
    counted = 0

    class Counting(SqlFigures):
        async def states(self):
            nonlocal counted
            counted += 1
            return await super().states()

    monkeypatch.setattr(app.store, "figures", Counting(app.database))
    monkeypatch.setattr(health, "GAUGES_FRESH_SECONDS", 1000)
    await asyncio.gather(*(local.get("/metrics") for _ in range(5)))
    assert counted == 1


async def test_metrics_of_a_store_that_went_away(
    app: Redrive, local: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    """Counters are still served, and the ledger is not up."""

    class Away(SqlFigures):
        async def states(self):
            raise OSError("gone")

    monkeypatch.setattr(app.store, "figures", Away(app.database))
    answer = await local.get("/metrics")
    assert answer.status_code == 200
    assert 'redrive_ledger_up{ledger="redrive_task"} 0.0' in answer.text


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_health_tells_of_a_write_lock_that_stays(
    app: Redrive, url: str, local: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    """Reads are answered all the while, yet nothing is done: the service is unwell, says why, and is well again afterwards."""
    monkeypatch.setattr(write_lock, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(health, "HEALTH_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(health, "GAUGES_FRESH_SECONDS", 0.0)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        while app.database.trouble() is None:  # the worker asks for work all the time
            await asyncio.sleep(0.01)
        answer = await local.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "unwell")
        assert re.fullmatch(
            r"waiting for the write lock of test\.db for \S+: another process holds it",
            answer.json()["checks"]["database"],
        )
        assert 'redrive_ledger_up{ledger="redrive_task"} 0.0' in (await local.get("/metrics")).text
        other.execute("ROLLBACK")
    while (await local.get("/health")).status_code != 200:
        await asyncio.sleep(0.01)
