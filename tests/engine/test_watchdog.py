"""Noticing a loop that stands still."""

import asyncio
import threading
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


async def test_its_thread_ends_with_what_it_watches():
    """It has a name for whoever looks at threads, holds up no end of a program, and ends soon after the block."""
    before = set(threading.enumerate())  # those of others may still be ending
    with Watchdog(lambda task: (), lambda *said: None):
        [thread] = [one for one in threading.enumerate() if one.name == "redrive-watchdog" and one not in before]
        assert thread.daemon
        await asyncio.sleep(0.05)
        assert thread.is_alive(), "a loop that goes round is asked again"
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


def test_a_loop_that_is_closed_needs_no_watch():
    """Whoever asks it for a sign of life learns that there is nobody to ask."""
    loop = asyncio.new_event_loop()
    assert watchdog._ask(loop, print)
    loop.close()
    assert not watchdog._ask(loop, print)
