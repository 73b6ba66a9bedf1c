"""Waiting out a ledger that is away."""

import asyncio
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from redrive.engine import patience as module
from redrive.engine.patience import Patience
from redrive.errors import LedgerAwayError
from redrive.events import LedgerAway, LedgerBack


@pytest.fixture
def pauses(monkeypatch):
    """The lengths of all pauses, which take no time."""
    slept = []
    real = asyncio.sleep

    async def sleep(seconds):
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return slept


def failing(times, error=LedgerAwayError("gone: postgresql://app:hunter2@db/x")):
    left = [times]

    async def call():
        if left[0]:
            left[0] -= 1
            raise error
        return "answer"

    return call


async def test_one_event_when_it_goes_and_one_when_it_is_back(heard, pauses):
    """However many tries an outage takes, it is announced once, and its end once."""
    patience = Patience("work", heard.tell)
    assert await patience.until_answered(failing(7)) == "answer"
    assert [type(event) for event in heard.events] == [LedgerAway, LedgerBack]
    assert len(pauses) == 7


async def test_all_parts_share_one_outage(heard, pauses):
    """Calls that fail at the same time are one outage, not several."""
    patience = Patience("work", heard.tell)
    held = asyncio.Event()

    async def call():
        if not held.is_set():
            raise LedgerAwayError("gone")
        return "answer"

    calls = [asyncio.create_task(patience.until_answered(call)) for _ in range(5)]
    while len(pauses) < 10:
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0)
    held.set()
    assert await asyncio.gather(*calls) == ["answer"] * 5
    assert [type(event) for event in heard.events] == [LedgerAway, LedgerBack]


async def test_old_news_is_no_news(heard):
    """What was asked before an outage and answered during it does not end it, nor does a late failure begin another."""
    patience = Patience("work", heard.tell)
    before = time.monotonic()
    patience.away(LedgerAwayError("gone"), asked_at=before)
    patience.back(asked_at=before)
    assert [type(event) for event in heard.events] == [LedgerAway]
    during = time.monotonic()
    patience.back(asked_at=time.monotonic())
    patience.away(LedgerAwayError("gone"), asked_at=during)
    assert [type(event) for event in heard.events] == [LedgerAway, LedgerBack]


async def test_the_next_outage_is_announced_again(heard, pauses):
    """Two outages are two pairs of events."""
    patience = Patience("work", heard.tell)
    await patience.until_answered(failing(1))
    await patience.until_answered(failing(0))
    await patience.until_answered(failing(2))
    assert [type(event) for event in heard.events] == [LedgerAway, LedgerBack] * 2


async def test_nothing_is_announced_while_all_is_well(heard):
    """A ledger that answers makes no noise."""
    assert await Patience("work", heard.tell).until_answered(failing(0)) == "answer"
    assert heard.events == []


async def test_other_errors_are_raised(heard):
    """Only an absent ledger is waited for; any other error is the caller's."""
    patience = Patience("work", heard.tell)
    with pytest.raises(ValueError, match="odd"):
        await patience.until_answered(failing(1, ValueError("odd")))
    assert heard.events == []


async def test_the_announcement_holds_no_password(heard, pauses):
    """The error of an outage is redacted before anybody sees it."""
    await Patience("work", heard.tell).until_answered(failing(1))
    assert "hunter2" not in heard.events[0].error
    assert "gone" in heard.events[0].error


async def test_pauses_grow_to_a_cap_and_are_never_in_step(pauses):
    """Each pause lies in the upper half of a ceiling that doubles up to two seconds."""
    for tries in (1, 2, 3, 20, 10_000):
        for _ in range(50):
            await Patience.pause(tries)
    groups = [pauses[start : start + 50] for start in range(0, 250, 50)]
    for group, ceiling in zip(groups, (0.1, 0.2, 0.4, 2.0, 2.0), strict=True):
        assert all(ceiling / 2 <= pause <= ceiling for pause in group)
        assert len(set(group)) > 1


async def test_a_cancelled_wait_ends(heard):
    """Patience ends when the one who waits is cancelled."""
    waiting = asyncio.create_task(Patience("work", heard.tell).until_answered(failing(10**9)))
    await heard.amount(LedgerAway, 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_outage_says_how_long_it_was(heard, monkeypatch):
    """From the first call that failed to the first that was answered; what was asked at the very instant of a change counts."""
    clock = SimpleNamespace(at=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.at))
    patience = Patience("work", heard.tell)
    patience.away(LedgerAwayError("gone"), asked_at=100.0)
    clock.at = 107.5
    patience.back(asked_at=100.0)
    assert heard.events == [
        LedgerAway("work", "LedgerAwayError: gone"),
        LedgerBack("work", timedelta(seconds=7.5)),
    ]


async def test_each_pause_of_an_outage_is_longer(heard, monkeypatch):
    """The tries are counted from one, and anew for each call."""
    counted = []

    async def pause(tries):
        counted.append(tries)

    patience = Patience("work", heard.tell)
    monkeypatch.setattr(patience, "pause", pause)
    for _ in range(2):
        assert await patience.until_answered(failing(3)) == "answer"
    assert counted == [1, 2, 3] * 2
