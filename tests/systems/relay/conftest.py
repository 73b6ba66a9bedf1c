"""A broker for each test: queues of its own on the node of the run."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from redrive import Redrive, seconds
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay import system as relay_system
from tests.web.conftest import client_of

from .kit import NOWHERE, Broker, broker_at


@pytest.fixture
async def broker(rabbitmq: str) -> AsyncIterator[Broker]:
    """The other side of the broker."""
    async with broker_at(rabbitmq) as made:
        yield made


@pytest.fixture
def app(url: str) -> Redrive:
    """An application on the test's database."""
    return Redrive(url, durable=False)


@pytest.fixture(autouse=True)
def short_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a hundredth of a second instead of up to a second: nobody waits for it here but the one test of the real waits."""
    monkeypatch.setattr(relay_system, "JITTER", seconds(0.01))


@pytest.fixture
async def relay(app: Redrive) -> AsyncIterator[Relay]:
    """A relay on an open application, without a broker and without a worker."""
    made = Relay(app, RelaySettings(_env_file=None, rabbitmq_url=NOWHERE))
    async with app:
        yield made


@pytest.fixture
async def service(app: Redrive, relay: Relay) -> Service:
    """A service that answers and does not work."""
    made = Service(app, Settings(_env_file=None))
    made.is_open = True
    return made


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """An operator on another machine."""
    key = await service.keys.create("ada", ["operator"])
    async with client_of(service, client="192.0.2.7", base_url="http://redrive.example") as made:
        made.headers["X-API-Key"] = key.secret
        yield made


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in RelaySettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)
