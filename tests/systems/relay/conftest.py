"""A broker for each test: queues of its own on the node of the run."""

from collections.abc import AsyncIterator

import pytest

from redrive import Redrive, seconds
from redrive.systems.relay import system as service

from .kit import Broker, broker_at


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
    monkeypatch.setattr(service, "JITTER", seconds(0.01))
