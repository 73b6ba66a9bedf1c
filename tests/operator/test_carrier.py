"""The loop that carries operations on: it outlives an outage, and leaves what it held to the next one."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest

from redrive.core.operation import OperationState
from redrive.errors import LedgerAwayError
from redrive.operator import carrier as module
from redrive.operator.carrier import Carrier
from redrive.operator.no_operations import NoOperations
from redrive.operator.operations import Moved


class Away(NoOperations):
    """A store that is away the first time, and keeps what it was asked."""

    def __init__(self, error, times_away=1):
        self.error, self.times_away = error, times_away
        self.asked, self.let_go_of = asyncio.Event(), []
        self.times = 0

    async def open(self):
        self.times += 1
        if self.times <= self.times_away:
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


async def test_an_odd_error_is_logged_once_however_long_it_lasts(monkeypatch, caplog):
    """One line when it begins, not one for each round."""
    monkeypatch.setattr(module, "IDLE", timedelta(milliseconds=1))
    kept = Away(RuntimeError("odd"), times_away=4)
    running = asyncio.create_task(Carrier(kept, dict, "worker-1").run())
    await asyncio.wait_for(kept.asked.wait(), 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("operations could not be carried on") == 1


class Two(NoOperations):
    """Two operations, the first of which no round succeeds for."""

    def __init__(self):
        self.advanced = []

    async def open(self):
        tally = SimpleNamespace(out=1)
        return [SimpleNamespace(id=one, ledger="tasks", state=OperationState.RUNNING, tally=tally) for one in "ab"]

    async def advance(self, id_, ledger, holder, *, after):
        self.advanced.append(id_)
        if id_ == "a":
            raise RuntimeError("odd")
        return Moved(operation=None, wait=timedelta(seconds=1), followed=after)


async def test_one_operation_in_trouble_holds_no_other_up(caplog):
    """The next one is carried on in the same round, and the trouble is logged once, not in each round."""

    class Lane:
        async def ledger(self):
            return None

        def tell(self, events):
            pass

    kept = Two()
    carrier = Carrier(kept, lambda: {"tasks": Lane()}, "worker-1")
    for _ in range(3):
        assert await carrier.round() == timedelta(seconds=1)
    assert kept.advanced == ["a", "b"] * 3
    assert caplog.text.count("operation a could not be carried on") == 1
