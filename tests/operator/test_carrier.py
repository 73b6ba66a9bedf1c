"""The loop that carries operations on: it outlives an outage, and leaves what it held to the next one."""

import asyncio
from datetime import timedelta

import pytest

from redrive.errors import LedgerAwayError
from redrive.operator import carrier as module
from redrive.operator.carrier import Carrier
from redrive.operator.no_operations import NoOperations


class Away(NoOperations):
    """A store that is away the first time, and keeps what it was asked."""

    def __init__(self, error):
        self.error = error
        self.asked, self.let_go_of = asyncio.Event(), []
        self.times = 0

    async def open(self):
        self.times += 1
        if self.times == 1:
            raise self.error
        self.asked.set()
        return []

    async def let_go(self, holder):
        self.let_go_of.append(holder)


@pytest.mark.parametrize("error", [LedgerAwayError("gone"), RuntimeError("odd")], ids=["away", "odd"])
async def test_an_outage_is_waited_for_and_the_end_is_told(monkeypatch, error):
    """The next round comes whatever the store said, and who is cancelled lets go of what it held."""
    monkeypatch.setattr(module, "IDLE", timedelta(milliseconds=1))
    kept = Away(error)
    carrier = Carrier(kept, dict, "worker-1")
    carrier._followed["7c2f"] = -1
    running = asyncio.create_task(carrier.run())
    await asyncio.wait_for(kept.asked.wait(), 60)
    carrier._followed["7c2f"] = -1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert kept.times >= 2
    [holder] = kept.let_go_of
    assert holder.startswith("worker-1 ")
