"""Noticing a loop that stands still."""

import asyncio
from datetime import timedelta

import pytest

from redrive.engine import watchdog
from redrive.engine.watchdog import Watchdog


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(watchdog, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "LIMIT_SECONDS", 0.05)


async def test_the_task_that_blocks_is_named():
    """The one that the loop runs while it stands still, once, with the time that it took."""
    told, heard = [], asyncio.Event()

    def tell(who, span):
        told.append((who, span))
        heard.set()

    with Watchdog(lambda task: (task.get_name(),), tell) as dog:

        async def block():
            assert dog.noticed.wait(60)

        await asyncio.create_task(block(), name="pay")
        async with asyncio.timeout(60):
            await heard.wait()
    [(who, span), *_] = told
    assert who == ("pay",)
    assert span >= timedelta(seconds=0.05)


async def test_who_belongs_to_nobody_is_not_told():
    """A loop that somebody else blocks is not our handlers' doing."""
    told = []
    with Watchdog(lambda task: (), lambda *said: told.append(said)) as dog:
        assert dog.noticed.wait(60)
        async with asyncio.timeout(60):
            while dog.noticed.is_set():
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
    assert told == []
