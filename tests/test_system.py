"""What every system gets from the application and the service that it stands on."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Gauge

from redrive import LedgerTable, Redrive, State, Task, Words
from redrive.app import WorkerSettings
from redrive.errors import NotMigratedError, TableError, UsageError
from redrive.events import Event
from redrive.ledgers.open import open_database, open_ledger
from redrive.ledgers.sql.migrate import check, heads, migrate, systems_with_tables, versions
from redrive.observe.logs import LogObserver
from redrive.running import Service
from redrive.settings import Settings
from redrive.system import System
from tests.ledgers.homes import execute
from tests.web.conftest import client_of, running

NOTES = LedgerTable("notes", words=Words(waiting="new", done="read", dead="lost"), due="due", count="tries")


class Greeter(System):
    """A system that does a little of everything."""

    name = "greeter"

    def __init__(self, app: Redrive) -> None:
        super().__init__(app)
        self.well = True
        self.started = asyncio.Event()
        self.ended = False
        self.scraped = 0

    def routes(self) -> list[APIRouter]:
        router = APIRouter()

        @router.get("/greeting")
        async def greet() -> str:
            return "hello"

        return [router]

    def measure(self, registry: CollectorRegistry) -> None:
        self.gauge = Gauge("greeter_scraped", "How often", registry=registry)

    async def refresh(self) -> None:
        self.scraped += 1
        self.gauge.set(self.scraped)

    async def checks(self) -> Mapping[str, bool]:
        return {"voice": self.well}

    @property
    def ready(self) -> bool:
        return self.started.is_set()

    async def run(self, stopped: asyncio.Event) -> None:
        self.started.set()
        await stopped.wait()
        self.ended = True


class Broken(System):
    """A system whose loop ends with an error."""

    name = "broken"

    async def run(self, stopped: asyncio.Event) -> None:
        raise RuntimeError("no voice")


class Listener:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def observe(self, events: list[Event]) -> None:
        self.heard += events


class LaneLog(LogObserver):
    """A lane's own words."""

    def __init__(self) -> None:
        super().__init__(system="notes")
        self.heard: list[Event] = []

    def observe(self, events: list[Event]) -> None:
        self.heard += events


async def make_notes(url: str) -> None:
    """A table of the user's, migrated by what the error prints."""
    database = open_database(url, durable=False)
    try:
        await open_ledger(database, NOTES)
    except TableError as error:
        await execute(database, error.migration)
    finally:
        await database.close()


async def test_the_service_runs_shows_and_stops_its_systems(url: str) -> None:
    """Routes, metrics, checks and the loop of an attached system are the service's own."""
    app = Redrive(url, durable=False)
    greeter = Greeter(app)
    async with running(app) as service:
        await greeter.started.wait()
        async with client_of(service) as client:
            assert (await client.get("/greeting")).json() == "hello"
            assert (await client.get("/health")).json()["checks"] == {"database": "ok", "voice": "ok"}
            assert (await client.get("/ready")).status_code == 200
            assert "greeter_scraped 1.0" in (await client.get("/metrics")).text
    assert greeter.ended


async def test_a_system_that_is_unwell_shows_in_health(url: str) -> None:
    """One failing check makes the service unwell, by name."""
    app = Redrive(url, durable=False)
    Greeter(app).well = False
    async with running(app) as service, client_of(service) as client:
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["checks"] == {"database": "ok", "voice": "away"}


async def test_a_system_that_breaks_stops_the_service(url: str) -> None:
    """Its error is the service's, and the others are stopped gracefully."""
    app = Redrive(url, durable=False)
    greeter = Greeter(app)
    Broken(app)
    service = Service(app, Settings(_env_file=None))
    try:
        with pytest.raises(RuntimeError, match="no voice"):
            await service.run()
        assert greeter.ended
    finally:
        await app.close()


async def test_attaching_is_once_and_before_opening(url: str) -> None:
    """A second system of a name, or one that comes too late for its tables to be checked, is refused."""
    async with Redrive(url, durable=False) as app:
        with pytest.raises(UsageError, match="before the application is opened"):
            Greeter(app)
    Greeter(app)
    with pytest.raises(UsageError, match="already"):
        Greeter(app)


async def test_a_lane_has_observers_and_a_worker_of_its_own(url: str) -> None:
    """Its own observers hear this lane alone, and `tune` changes how its worker works."""
    await make_notes(url)
    here = Listener()
    seen: list[WorkerSettings] = []

    def tune(settings: WorkerSettings) -> WorkerSettings:
        seen.append(replace(settings, concurrency=3))
        return seen[-1]

    async with Redrive(url, durable=False) as app:
        lane = app.adopt(NOTES, observers=[here], tune=tune)

        @lane.handler()
        async def read(task: Task) -> None: ...

        @app.handler("mail")
        async def mail(task: Task) -> None: ...

        await app.add("mail", key="m")
        await execute(app.database, ["INSERT INTO notes (id, status, tries) VALUES ('n', 'new', 0)"])
        workers = app.workers(WorkerSettings(concurrency=7))
        working = asyncio.create_task(workers.run())
        async with asyncio.timeout(60):
            while {(await app.tasks.get("m")).state, (await lane.get("n")).state} != {State.DONE}:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        workers.stop()
        await working
        assert [settings.concurrency for settings in seen] == [3]
        assert {event.ledger for event in here.heard} == {"notes"}


def test_a_lane_tells_its_story_in_its_own_words(tmp_path) -> None:
    """A log of the lane takes the place of the application's, and is silent where the application logs nothing."""
    words, other = LaneLog(), Listener()
    logged = LogObserver()
    app = Redrive(f"sqlite:///{tmp_path / 'a.db'}", observers=[logged, other])
    assert app.adopt(NOTES, observers=[words]).observers == [other, words]
    assert app.observers == [logged, other]
    quiet = Redrive(f"sqlite:///{tmp_path / 'b.db'}", observers=[other])
    assert quiet.adopt(NOTES, observers=[words]).observers == [other]


@pytest.mark.every_store
async def test_a_system_gets_its_tables_and_no_other(empty_url: str) -> None:
    """Migrating for one system makes the engine's tables and its own; the rest is not there and not missed."""
    [first, second, *_] = systems_with_tables()
    database = open_database(empty_url)
    try:
        before, after = await migrate(database, [first])
        assert (before, after) == ({}, heads([first]))
        assert await versions(database) == heads([first])
        await check(database)
        await check(database, [first])
        with pytest.raises(NotMigratedError, match=f"{second}.*redrive migrate"):
            await check(database, [first, second])
        await migrate(database, [second])
        await check(database, [first, second])
    finally:
        await database.close()


@pytest.mark.every_store
async def test_a_table_that_is_in_the_way_is_named(empty_url: str) -> None:
    """A table of the user's with the name of a system's is left alone, and the error says what can be done."""
    database = open_database(empty_url)
    try:
        await execute(database, ["CREATE TABLE events (mine integer)", "INSERT INTO events VALUES (1)"])
        with pytest.raises(NotMigratedError, match=r"not redrive's.*REDRIVE_SYSTEMS"):
            await migrate(database, ["webhooks"])
        await migrate(database)
        await check(database)
    finally:
        await database.close()


async def test_systems_without_tables_are_refused_by_name(empty_url: str) -> None:
    """A name that nobody knows is no migration."""
    database = open_database(empty_url)
    try:
        with pytest.raises(UsageError, match="no systems nonsense"):
            await migrate(database, ["nonsense"])
    finally:
        await database.close()


def test_retention_is_for_ended_tasks() -> None:
    """What still waits is never pruned, whatever the settings say."""
    assert WorkerSettings(retention={State.DEAD: timedelta(days=1)}).retention == {State.DEAD: timedelta(days=1)}
    with pytest.raises(UsageError, match="ended"):
        WorkerSettings(retention={State.WAITING: timedelta(days=1)})
