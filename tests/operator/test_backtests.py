"""A policy is tried on the history of a ledger, read in pages."""

from datetime import timedelta

import pytest

from redrive.core import jitter
from redrive.core.backoff import Fixed
from redrive.core.durations import days, minutes, seconds
from redrive.core.outcome import Done, Failed
from redrive.core.policy import Policy
from redrive.core.table import TASKS
from redrive.errors import TransientError, UsageError
from redrive.operator.backtests import Tried, try_policy
from redrive.operator.sql.history import SqlHistory
from redrive.ports import Actor
from tests.ledgers.homes import Home

pytestmark = pytest.mark.homes(lambda table: table.name == TASKS.name)

FAILED = Failed(TransientError("away"))
PLAIN = Policy(Fixed(seconds(10)), attempts=2, jitter=jitter.none)


async def tried(home: Home, policy: Policy = PLAIN, *, kind: str | None = None, tries_max: int = 10**6) -> Tried:
    """What a policy would have made of the last week."""
    since = home.clock.now() - days(7)
    return await try_policy(home.ledger, SqlHistory(home.ledger), policy, since, kind=kind, tries_max=tries_max)


async def live(home: Home, *outcomes: object, kind: str = "mail") -> None:
    """One task with these outcomes, one after the other."""
    await home.put(1, kind=kind)
    for outcome in outcomes:
        await home.run(outcome)
        home.clock.advance(minutes(30))


async def test_the_history_is_replayed_page_by_page(home: Home, monkeypatch: pytest.MonkeyPatch):
    """However small the pages; each life of a task for itself, and of one kind only where that is asked for."""
    await live(home, FAILED, FAILED, Done())
    await live(home, FAILED, Done(), kind="other")
    await live(home, Done())
    whole = await tried(home)
    assert (whole.test.tasks, whole.test.happened.tries, whole.test.happened.deaths) == (3, 6, 0)
    assert (whole.test.would.tries, whole.test.would.deaths, whole.test.tasks_cut) == (5, 1, 1)
    monkeypatch.setattr("redrive.operator.sql.history.ROWS_AT_ONCE", 1)
    assert (await tried(home)).test == whole.test
    assert (await tried(home, kind="other")).test.would.tries == 2
    assert any("gives them up" in one for one in whole.sentences())


async def test_no_more_is_read_than_was_allowed(home: Home, monkeypatch: pytest.MonkeyPatch):
    """And that is said."""
    monkeypatch.setattr("redrive.operator.sql.history.ROWS_AT_ONCE", 2)
    for _ in range(4):
        await live(home, Done())
    some = await tried(home, tries_max=1)
    assert (some.complete, some.test.tasks) == (False, 1)
    assert any("only the first tries" in one for one in some.sentences())
    with pytest.raises(UsageError, match="at least one"):
        await tried(home, tries_max=0)


async def test_no_more_of_what_is_older_is_passed_over_than_was_allowed(home: Home, monkeypatch: pytest.MonkeyPatch):
    """Years of history before the week that was asked for do not make it read for hours; what was passed over is said."""
    monkeypatch.setattr("redrive.operator.sql.history.ROWS_AT_ONCE", 2)
    monkeypatch.setattr("redrive.operator.backtests.PASSED_OVER_TIMES", 2)
    for _ in range(6):
        await live(home, Done())
    home.clock.advance(days(8))
    await live(home, Done())
    some = await tried(home, tries_max=1)
    assert (some.complete, some.test.tasks, some.passed_over) == (False, 0, 2)
    assert any("2 older ones passed over" in one for one in some.sentences())
    whole = await tried(home)
    assert (whole.complete, whole.test.tasks, whole.passed_over) == (True, 1, 6)


async def test_what_is_older_is_left_out(home: Home):
    """Of a task that began before, only the tries since then, with the failures that it had."""
    await home.put(1)
    await home.run(FAILED)
    home.clock.advance(timedelta(days=7, minutes=1))
    await home.run(FAILED)
    found = await tried(home)
    assert (found.test.happened.tries, found.test.would.tries, found.test.would.deaths) == (1, 1, 1)


async def test_a_redriven_task_has_two_lives(home: Home):
    """Its second one begins with a fresh budget."""
    once = Policy(Fixed(seconds(10)), attempts=1, jitter=jitter.none)
    [id_] = await home.put(1, failures_max=1)
    await home.run(FAILED)
    await home.ledger.redrive([id_], Actor(name="ada"))
    await home.run(Done())
    found = (await tried(home, once)).test
    assert (found.tasks, found.would.tries, found.would.deaths, found.tasks_open) == (2, 2, 1, 0)
