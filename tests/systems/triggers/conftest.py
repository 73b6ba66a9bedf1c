"""An application with triggers on each database, with a clock that the test moves, and a receiver on loopback."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import httpx
import pytest

from redrive import Filter, Redrive
from redrive.settings import Settings
from redrive.systems.triggers import Triggers, TriggerSettings
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.values import Endpoint, NewEvent
from redrive.testing import Drained, VirtualClock, drain
from redrive.web.app import make_web
from redrive.wiring import Service
from tests.servers import Migrated

from .receiver import Receiver

LOOPBACK = ip_network("127.0.0.0/8")


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
        found = await self.triggers.lane.find(Filter(), limit=1000)
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
async def url(migrated: Migrated) -> str:
    """The URL of a new database with the tables of triggers."""
    return await migrated(["triggers"])


@pytest.fixture
async def house(url: str, clock: VirtualClock) -> AsyncIterator[House]:
    app = Redrive(url, clock=clock, durable=False)
    triggers = Triggers(app, settings())
    async with app:
        yield House(app, triggers, clock)
        await triggers.outgoing.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as made:
        yield made
