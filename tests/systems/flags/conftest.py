"""Flags on both databases with a clock that the test moves, and a database that refuses to change some flags."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, select, text

from redrive import Redrive
from redrive.app import WorkerSettings
from redrive.ledgers.sql.schema import deed as DEEDS  # noqa: N812
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.flags import Flags, FlagSchedule, FlagSettings, NewSchedule, tables
from redrive.testing import Drained, VirtualClock, drain
from redrive.web.app import make_web
from tests.servers import Migrated

MINUTE = timedelta(minutes=1)

BREAK = {
    "sqlite": [
        "CREATE TRIGGER broken BEFORE UPDATE ON feature_flags WHEN OLD.flag_key LIKE 'broken%' "
        "BEGIN SELECT RAISE(ABORT, 'the disk says no'); END"
    ],
    "postgres": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF OLD.flag_key LIKE 'broken%' THEN RAISE EXCEPTION 'the disk says no'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER broken BEFORE UPDATE ON feature_flags FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
}
"""The database itself refuses to change a flag whose key begins with `broken`, in the midst of the transaction."""
MEND = {"sqlite": ["DROP TRIGGER broken"], "postgres": ["DROP TRIGGER broken ON feature_flags", "DROP FUNCTION refuse"]}


async def execute(app: Redrive, *statements: str) -> None:
    """Run statements as text, in one transaction."""

    def run(connection: Connection) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    await app.database.write(run)


@pytest.fixture
async def url(migrated: Migrated) -> str:
    """The URL of a new database with our tables."""
    return await migrated(["flags"])


@dataclass(slots=True)
class Home:
    """Flags, and what tests do with them."""

    app: Redrive
    flags: Flags
    clock: VirtualClock
    store: str
    url: str

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def plan(self, key: str = "promo", after: timedelta = MINUTE, **given: Any) -> FlagSchedule:
        """A flag, if it is not there yet, with a schedule that turns it on."""
        await self.flags.put(key, actor="ada")
        updates = given.pop("updates", {"enabled": True})
        new = NewSchedule(scheduled_at=self.now + after, updates=updates, **given)
        [made] = await self.flags.schedule(key, new, actor="ada")
        return made

    async def plan_broken(self, key: str = "broken", **given: Any) -> FlagSchedule:
        """A schedule that fails whenever it is tried, until `mend`."""
        made = await self.plan(key, **given)
        await self.break_()
        return made

    async def break_(self) -> None:
        await execute(self.app, *BREAK[self.store])

    async def mend(self) -> None:
        await execute(self.app, *MEND[self.store])

    async def drain(self, until: datetime | timedelta | None = None) -> Drained:
        """Run all that comes, moving the clock."""
        return await drain(self.app, clock=self.clock, until=until)

    async def run_due(self) -> Drained:
        """Run what is due now; the clock stands still."""
        return await drain(self.app)

    async def move_to(self, instant: datetime) -> None:
        self.clock.advance(instant - self.now)

    async def schedule(self, id: int) -> FlagSchedule:
        return (await self.app.database.read(tables.read_by_id, [id]))[id]

    async def row(self, id: int) -> dict[str, Any]:
        """A schedule's row as it stands."""
        t = tables.schedules

        def look(connection: Connection) -> dict[str, Any]:
            return dict(connection.execute(select(t).where(t.c.id == id)).one()._mapping)

        return await self.app.database.read(look)

    async def audit(self, id: int | None = None, action: str | None = None) -> list[Any]:
        """What the audit says of a schedule, or of all."""
        t = tables.audit
        found = select(t).order_by(t.c.at, t.c.id)
        if id is not None:
            found = found.where(t.c.schedule_id == id)
        if action is not None:
            found = found.where(t.c.action == f"flag_schedule.{action}")
        return await self.app.database.read(lambda connection: list(connection.execute(found).all()))

    async def actions(self, id: int) -> list[str]:
        return [entry.action.removeprefix("flag_schedule.") for entry in await self.audit(id)]


MakeHome = Callable[..., Awaitable[Home]]


@pytest.fixture
async def make_home(url: str, store: str, clock: VirtualClock) -> AsyncIterator[MakeHome]:
    """Homes on one database, each as another process would have it."""
    made: list[Redrive] = []

    async def make(**settings: Any) -> Home:
        app = Redrive(url, clock=clock, durable=False)
        flags = Flags(app, FlagSettings(_env_file=None, **settings))
        made.append(app)
        await app.open()
        return Home(app=app, flags=flags, clock=clock, store=store, url=url)

    yield make
    for app in made:
        await app.close()


@pytest.fixture
async def home(make_home: MakeHome) -> Home:
    return await make_home()


@dataclass(slots=True)
class Api:
    """A client with a key of scope operator."""

    client: httpx.AsyncClient
    service: Service

    async def __call__(self, method: str, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return await self.client.request(method, path, json=json, **options)

    async def admin(self, method: str, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return await self(method, f"/api/admin/flags/{path}", json, **options)


@pytest.fixture
async def api(home: Home) -> AsyncIterator[Api]:
    service = Service(home.app, Settings(_env_file=None), WorkerSettings())
    key = await service.keys.create("ada", ["operator"])
    transport = httpx.ASGITransport(make_web(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers={"X-API-Key": key.secret}
    ) as client:
        yield Api(client, service)


async def count(app: Redrive, sql: str) -> int:
    found = await app.database.read(lambda connection: connection.execute(text(sql)).scalar_one())
    assert isinstance(found, int)
    return found


async def act(api: Api, path: str, ids: list[Any], reason: str = "the promotion is off", **more: Any) -> Any:
    answer = await api("POST", f"/api/flags/{path}", {"ids": ids, "reason": reason, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def deeds(home: Home) -> list[tuple[str, str, str, str, str]]:
    found = select(DEEDS).order_by(DEEDS.c.id)
    rows = await home.app.database.read(lambda connection: connection.execute(found).all())
    return [(row.ledger, row.task_id, row.act, row.actor, row.reason) for row in rows]


def of(lines: list[Any], event: str) -> list[dict[str, Any]]:
    """The log lines of one event."""
    return [line for line in lines if line["event"] == event]
