"""From a worker that fails to the sentence that names it, on both databases."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest

from redrive import Redrive, Task
from redrive.core.durations import hours, seconds
from redrive.ledgers.build import VERSION, build
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.kinds import WaitingKind
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.waiting import waiting_of
from redrive.operator.verdict import Rank, StoreNow, gather, judge, plain

TASKS = 12


async def test_what_fails_is_named_while_its_worker_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are written without a goodbye, so a killed worker leaves them: kind, line, version, who waits, and who is fine."""
    monkeypatch.setattr("redrive.signs.COUNTS_EVERY", seconds(0.01))
    monkeypatch.setenv(VERSION, "4f2a")
    build.cache_clear()
    app = Redrive(url, durable=False)

    @app.handler("mail.send", retries=3, wait=hours(1))
    async def send(task: Task) -> None:
        raise KeyError(task.payload["template"])

    @app.handler("order.confirm")
    async def confirm(task: Task) -> None: ...

    async with app:
        for number in range(TASKS):
            await app.add("mail.send", {"template": f"t{number}"})
            await app.add("order.confirm")
        working = asyncio.create_task(app.workers().run())
        while sum(one.failures for one in (await app.store.kinds.look()).causes) < TASKS:
            await asyncio.sleep(0.01)
        verdict = judge(await gather(app.store, list(app.lanes.values()), StoreNow()))
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
    build.cache_clear()
    [trouble] = verdict.troubles
    assert (trouble.rank, trouble.kind, trouble.version) == (Rank.DYING, "mail.send", "4f2a")
    assert trouble.at is not None
    assert trouble.at.startswith("tests/operator/verdict/test_gather.py:")
    assert f"100% of {TASKS} tries" in plain(trouble.told)
    assert f"0 dead, {TASKS} waiting; other kinds are fine." in plain(trouble.told)
    assert {one.kind: one.health for one in verdict.kinds} == {"mail.send": "Failing", "order.confirm": "Fine"}
    assert all(1 <= one.begun_a_minute <= TASKS for one in verdict.kinds)
    assert next(one for one in verdict.strip if one.name == "Waiting").value == str(TASKS)


async def test_waiting_tasks_are_counted_by_kind(ledger: SqlLedger) -> None:
    """First tries and those behind gates, and how late the oldest is; kinds without any are left out."""
    from tests.engine.workbench import add

    await add(ledger, "a", "b", kind="mail")
    await add(ledger, "c", kind="pay", gate="bank:DE")
    found = await waiting_of(ledger, ["mail", "pay", "none"])
    assert set(found) == {"mail", "pay"}
    assert (found["mail"].waiting, found["mail"].behind_gates) == (2, 0)
    assert (found["pay"].waiting, found["pay"].behind_gates) == (0, 1)
    assert found["mail"].oldest_due == seconds(0)


async def test_only_kinds_that_wait_cost_a_look(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty kinds whose tasks are all done are not looked up one by one for a first screen."""
    asked: list[str] = []
    waiting = SqlCensus.waiting

    async def spied(self: SqlCensus, kinds: Sequence[str]) -> Mapping[str, WaitingKind]:
        asked.extend(kinds)
        return await waiting(self, kinds)

    monkeypatch.setattr(SqlCensus, "waiting", spied)
    monkeypatch.setattr("redrive.signs.COUNTS_EVERY", seconds(0.01))
    app = Redrive(url, durable=False)

    @app.handler("done")
    async def done(task: Task) -> None: ...

    async with app:
        await app.add("done")
        await app.add("later", delay=hours(1))
        working = asyncio.create_task(app.workers().run())
        while not (await app.store.kinds.look()).kinds:
            await asyncio.sleep(0.01)
        await gather(app.store, list(app.lanes.values()), StoreNow())
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
    assert asked == ["later"]
