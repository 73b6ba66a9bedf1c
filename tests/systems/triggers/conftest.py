"""An application with triggers on each store, with a clock that the test moves, and a receiver on loopback.

A test that asks for a store runs on SQLite, PostgreSQL and DynamoDB; with the mark `on_sql` it is about tables, and runs where there are some.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest

from redrive import Filter, Redrive
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.triggers import Triggers, TriggerSettings
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.values import Endpoint, NewEvent, Taken
from redrive.testing import Drained, VirtualClock, drain
from redrive.web.app import make_web
from tests.ledgers.aws.homes import ClockQueue
from tests.servers import Migrated
from tests.stores.items import item_url

from .receiver import Receiver

HERE = Path(__file__).parent
LOOPBACK = ip_network("127.0.0.0/8")
SQL = ("sqlite", "postgres")
ITEMS = "dynamodb"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_sql: run the test only on databases, since it is about tables")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for a store on each; what is about tables, on databases: what cannot apply is not run, rather than skipped."""
    chosen = any("store" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    folders = metafunc.definition.path.relative_to(HERE).parts
    if "store" in metafunc.fixturenames and "aws" in folders:
        metafunc.parametrize("store", (ITEMS,), indirect=True)
    elif "store" in metafunc.fixturenames and not chosen:
        on_sql = metafunc.definition.get_closest_marker("on_sql") is not None or "sql" in folders
        metafunc.parametrize("store", SQL if on_sql else (*SQL, ITEMS), indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """Which store a test runs on."""
    return str(request.param)


def settings(**given: Any) -> TriggerSettings:
    """Settings that let deliveries go to this machine."""
    return TriggerSettings(_env_file=None, **{"delivery_allow_networks": (LOOPBACK,), **given})


@dataclass
class House:
    """An application with triggers, and short verbs."""

    app: Redrive
    triggers: Triggers
    clock: VirtualClock

    async def endpoint(self, url: str, *types: str, user: str = "ada", **given: Any) -> Endpoint:
        values = {
            "url": url,
            "event_types": list(types or ["*"]),
            "secret": new_secret(),
            "policy": {},
            "enabled": True,
        }
        return await self.triggers.endpoints.create({"user_id": user, **values, **given})

    async def post(
        self, event_type: str = "order.made", user: str = "ada", payload: str = '{"n": 1}', **given: Any
    ) -> str:
        new = NewEvent(user_id=user, event_type=event_type, payload=payload, correlation_id="c-1", **given)
        [taken] = await self.triggers.intake.take([new])
        return taken.id

    async def post_many(self, amount: int, event_type: str = "order.made", user: str = "ada") -> list[str]:
        """As many events at once, in the order of their ids."""
        new = NewEvent(user_id=user, event_type=event_type, payload='{"n": 1}', correlation_id="c-1")
        return sorted(one.id for one in await self.triggers.intake.take([new] * amount) if isinstance(one, Taken))

    async def event(self, id: str, user: str = "ada") -> Any:
        return await self.triggers.inbox.get(user, id)

    async def run(self, *, after: timedelta = timedelta(0)) -> Drained:
        """Move the clock, then run what is due."""
        self.clock.advance(after)
        return await drain(self.app)

    async def redrive(self, id: str, user: str = "ada") -> None:
        _, dead = await self.triggers.inbox.dead_deliveries(user, id)
        await self.triggers.lane.redrive(Filter(ids=dead), actor="ada")

    async def deliveries(self, id: str) -> list[Any]:
        asked = Filter() if self.app.store.keeps_tasks else Filter(ids=[f"{id}.{number:02}" for number in range(100)])
        found = await self.triggers.lane.find(asked, limit=1000)
        return [task for task in found.items if task.payload["event_id"] == id]

    async def key(self, *scopes: str, user: str = "ada", **given: Any) -> str:
        made = await self.service.keys.create(user, scopes or ["events:write", "events:read", "endpoints"], **given)
        return made.secret

    @property
    def service(self) -> Service:
        if not hasattr(self, "_service"):
            self._service = Service(self.app, Settings(_env_file=None))
        return self._service

    def client(self, key: str | None = None, **given: Any) -> httpx.AsyncClient:
        """A client of the API, without a port."""
        if not hasattr(self, "_web"):
            self._web = make_web(self.service)
        transport = httpx.ASGITransport(self._web, client=("192.0.2.7", 12345), **given)
        headers = {} if key is None else {"X-API-Key": key}
        return httpx.AsyncClient(transport=transport, base_url="http://redrive.example", headers=headers)


@pytest.fixture
async def url(store: str, migrated: Migrated, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The URL of a new store with what triggers needs."""
    async with AsyncExitStack() as stack:
        if store == ITEMS:
            yield await stack.enter_async_context(item_url(request.getfixturevalue("aws")))
        else:
            yield await migrated(["triggers"])


class Recorded:
    """A client of DynamoDB that keeps what was asked. Whoever reads a whole table fails: that is never right."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, call: str) -> Any:
        async def ask(**request: Any) -> Any:
            assert call != "scan", request
            self.asked.append((call, request))
            return await getattr(self._client, call)(**request)

        return ask


def make_app(url: str, clock: VirtualClock, **given: Any) -> tuple[Redrive, Triggers]:
    """An application that is not open yet. On items the queue obeys the clock, and what is due or over is found at once."""
    app = Redrive(url, clock=clock, durable=False)
    if app.store.keeps_tasks:
        return app, Triggers(app, settings(**given))
    items: Any = app.store
    items.queue = ClockQueue(clock)
    items.dynamo._client = Recorded(items.dynamo._client)
    triggers: Any = Triggers(app, settings(**given))
    ledger = triggers.stores.intake._ledger
    ledger._slack = ledger._grace = ledger._sweep_every = ledger._gates_fresh = timedelta(0)
    ledger._tell_within = timedelta(minutes=5)
    triggers.inbox._census._rest = lambda _: timedelta(0)
    return app, triggers


@pytest.fixture
async def house(url: str, clock: VirtualClock) -> AsyncIterator[House]:
    app, triggers = make_app(url, clock)
    async with app:
        yield House(app, triggers, clock)
        await triggers.outgoing.close()


@pytest.fixture
def asked(house: House) -> list[tuple[str, dict[str, Any]]]:
    """What is asked of DynamoDB from now on."""
    items: Any = house.app.store
    items.dynamo._client.asked.clear()
    asked: list[tuple[str, dict[str, Any]]] = items.dynamo._client.asked
    return asked


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as made:
        yield made
