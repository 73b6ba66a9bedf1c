"""`make demo`: everything on its pages has something to show within a minute, it wants a database of its own, and it forgets."""

import asyncio
import re
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, func, select

from examples import demo
from examples.demo import traffic
from redrive import State, seconds
from redrive.settings import Settings
from redrive.systems.commands.tables import make_tables as command_tables
from redrive.systems.triggers.sql.tables import events

from .said import Started, until
from .test_serve import address

Start = Callable[..., Started]

LEDGERS = {"redrive_task", "demo_invoice", "commands", "feature_flag_schedules", "trigger_deliveries", "events"}
SPEED = "12"
"""Beats, waits and outages are a sixth as long."""
LOOK_EVERY_SECONDS = 0.5
"""Looking costs, too: up to two dozen requests at a time."""
PATIENCE_SECONDS = 400


def questions(ledgers: set[str]) -> dict[str, Callable[[Callable[[str], Any]], bool]]:
    """All that the pages show: has it something to show yet? Each asks for what it needs alone."""

    def states(get: Any, ledger: str) -> Any:
        return next(one["states"] for one in get("overview")["by_ledger"] if one["ledger"] == ledger)

    asked: dict[str, Callable[[Any], bool]] = {
        "states": lambda get: all(get("overview")["states"][name] for name in ("waiting", "done", "dead", "cancelled")),
        "per minute": lambda get: all(
            any(one[name] for one in get("series")["points"]) for name in ("added", "done", "retried", "dead")
        ),
        "success": lambda get: (rate := get("overview")["success_rate"]) is not None and rate < 1,
        "failures": lambda get: sum(one["amount"] > 0 for one in get("overview")["tries"]) >= 4,
        "time to done": lambda get: get("overview")["took"]["p99"] is not None,
        "depth": lambda get: any(one["waiting"] for one in get("series")["depth"]),
        "oldest due": lambda get: get("overview")["oldest_due_seconds"] is not None,
        "drift": lambda get: get("overview")["drift"] is not None,
        "without handler": lambda get: any(one["without_handler"] for one in get("overview")["by_ledger"]),
        "audit": lambda get: {one["act"] for one in get("audit")["acts"]} >= {"redrive", "cancel"},
        "alerts": lambda get: {one["rule"] for one in get("alerts")} >= {"failed_share", "new_group", "endpoint_disabled"},
        "troubleshooting": lambda get: bool(get("commands/troubleshooting")["commands"]),
        "endpoints": lambda get: "disabled" in {one["state"] for one in get("triggers/endpoints")["endpoints"]},
    }  # fmt: skip
    for ledger in ledgers:
        asked[f"{ledger} states"] = lambda get, of=ledger: bool(states(get, of)["done"] and states(get, of)["dead"])
        asked[f"{ledger} groups"] = lambda get, of=ledger: bool(get(f"groups?ledger={of}"))
    for section in ("pending", "retrying", "failed", "applied", "cancelled"):
        path = f"flags/schedules?status={section}"
        asked[f"flags {section}"] = lambda get, path=path: bool(get(path)["schedules"])
    if "retry_queue" in ledgers:
        asked["review"] = lambda get: bool(get("relay/review")["messages"])
    return asked


def lives(service: Started, ledgers: set[str]) -> None:
    """Come back when everything has had something to show; what has had it is not asked for again."""
    with httpx.Client(base_url=address(service), timeout=60) as client:
        until(lambda: client.get("/ready").status_code == 200, lambda: service.said)
        left, ends = questions(ledgers), time.monotonic() + PATIENCE_SECONDS
        while True:
            get = cache(lambda path: client.get(f"/api/{path}").raise_for_status().json())
            left = {name: has_data for name, has_data in left.items() if not has_data(get)}
            if not left:
                return
            assert time.monotonic() < ends, f"nothing to show for {sorted(left)}; {service.said}"
            time.sleep(LOOK_EVERY_SECONDS)


def ended_well(service: Started) -> None:
    """It stops when told to, and its traffic never stumbled."""
    assert service.end(signal.SIGTERM) == 0, service.said
    assert "demo_traffic_failed" not in service.said
    assert "Traceback" not in service.said


def started_on_sqlite(start: Start, folder: Path) -> Started:
    """As `make demo` starts it, without any server."""
    return start(
        module="examples.demo", HTTP_PORT="0", DATABASE_URL=f"sqlite:///{folder / 'demo.db'}", DEMO_SPEED=SPEED,
        LOG_FORMAT="pretty",
    )  # fmt: skip


def test_a_visitor_acts_with_the_key_that_it_prints(start: Start, folder: Path):
    """It lets a visitor act, and is no admin; nothing scrolls it away."""
    service = started_on_sqlite(start, folder)
    service.wait_for("Ctrl-C stops")
    [key] = re.findall(r"rdk_[\w-]+", service.said)
    with httpx.Client(base_url=address(service), headers={"X-API-Key": key}, timeout=60) as client:

        def dead() -> list[Any]:
            found = client.get("/api/tasks", params={"ledger": "redrive_task", "state": "dead"})
            return list(found.json()["tasks"]) if found.status_code == 200 else []

        until(lambda: bool(dead()), lambda: service.said, every=LOOK_EVERY_SECONDS)
        act = {"ledger": "redrive_task", "ids": [dead()[0]["id"]], "reason": "a visitor tries it"}
        assert client.post("/api/tasks/redrive", json=act).json()["changed"] == 1
        deeds = client.get("/api/audit", params={"ledger": "redrive_task"}).json()["acts"]
        assert "demo visitor" in {deed["actor"] for deed in deeds}
        assert client.post("/v1/events", json={}).status_code == 403  # it is no admin
    ended_well(service)
    assert "{" not in service.said


# By default `test_it_forgets_what_has_ended` shows that every kind of traffic runs until tasks of it have died.


@pytest.mark.wide
def test_everything_lives_on_sqlite(start: Start, folder: Path):
    """All that the pages show has something to show. Chance and the clock decide when: some runs take minutes."""
    service = started_on_sqlite(start, folder)
    lives(service, LEDGERS)
    ended_well(service)


@pytest.mark.wide
def test_everything_lives_on_servers(start: Start, postgres: Any, rabbitmq: str):
    """As an application of `redrive serve`, on an empty PostgreSQL that it migrates itself, and with a broker for the relay."""
    service = start(
        "serve", "--app", "examples.demo:app", "--port", "0",
        DATABASE_URL=asyncio.run(postgres.create()), RABBITMQ_URL=rabbitmq, DEMO_SPEED=SPEED, LOG_LEVEL="error",
    )  # fmt: skip
    lives(service, LEDGERS | {"retry_queue"})
    ended_well(service)


def test_a_database_with_other_tables_is_refused(start: Start, folder: Path):
    """It would be filled with traffic, and what has ended there would be forgotten."""
    other = folder / "work.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    service = start(module="examples.demo", HTTP_PORT="0", DATABASE_URL=f"sqlite:///{other}")
    assert service.process.wait(PATIENCE_SECONDS) == 2
    assert "wants a database of its own" in service.said
    with sqlite3.connect(other) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [("orders",)]
    connection.close()


def test_no_key_is_shown_to_the_network(start: Start, folder: Path):
    """Who listens on all addresses makes a key on purpose."""
    service = start(
        module="examples.demo", HTTP_HOST="0.0.0.0", HTTP_PORT="0", DATABASE_URL=f"sqlite:///{folder / 'demo.db'}"
    )
    service.wait_for("Ctrl-C stops")
    assert "rdk_" not in service.said
    assert service.end(signal.SIGTERM) == 0


@asynccontextmanager
async def running(app: demo.DemoApp) -> AsyncIterator[None]:
    """The application's workers and its traffic."""
    workers = app.workers()
    work = asyncio.create_task(workers.run())
    try:
        yield
    finally:
        workers.stop()
        await work


@pytest.mark.long_on("sqlite")
async def test_it_forgets_what_has_ended(empty_url: str, monkeypatch: pytest.MonkeyPatch):
    """In every table that grows, but for the audits of flags and commands, which are for ever: it must not fill the disk over night."""
    monkeypatch.setattr(traffic, "SPEED", 20.0)
    app = demo.make_app(Settings(_env_file=None, database_url=empty_url))

    async def all_died() -> bool:
        return all([(await lane.counts())[State.DEAD] for lane in app.lanes.values()])

    async with running(app), asyncio.timeout(PATIENCE_SECONDS):
        while not await all_died():
            await asyncio.sleep(0.05)
    await app.open()
    await demo.Broom(app).forget(seconds(0))
    for name, lane in app.lanes.items():
        counts = await lane.counts()
        assert (name, counts[State.DONE], counts[State.DEAD], counts[State.CANCELLED]) == (name, 0, 0, 0)
    assert await app.database.read(_left) == {}
    await app.close()


def _left(connection: Connection) -> dict[str, int]:
    """How much is left in the tables beside the ledgers."""
    commands = command_tables(has_queues=connection.dialect.name == "postgresql")
    counted = {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in (commands.batch, events)
    }
    return {name: amount for name, amount in counted.items() if amount}


@pytest.mark.parametrize(("running_seconds", "is_out"), [(0, False), (20, True), (39, True), (41, False), (140, True)])
def test_the_outage_begins_and_heals(running_seconds: float, is_out: bool):
    """Within the first minute, and again every two."""
    assert demo.is_out(running_seconds) is is_out
