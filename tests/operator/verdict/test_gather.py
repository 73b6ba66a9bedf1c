"""From a worker that fails to the sentence that names it, on both databases."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, Uuid, insert, text

from redrive import LedgerTable, PermanentError, Redrive, Task, Words
from redrive.core.durations import hours, seconds
from redrive.extend import When, ledger_indexes
from redrive.ledgers.build import VERSION, build
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.kinds import WaitingKind
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.waiting import waiting_of
from redrive.operator.verdict import Rank, StoreNow, gather, judge, plain
from redrive.ports import Filter

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


@pytest.mark.parametrize("kept", ["all", "message", "nothing"])
async def test_a_cause_is_one_where_the_table_keeps_less_than_the_history(
    url: str, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Without a column for kinds, and with the message of an error alone or none of it: what fails and who is dead of it are one row."""
    monkeypatch.setattr("redrive.signs.COUNTS_EVERY", seconds(0.01))
    app = Redrive(url, durable=False)
    lane = app.adopt(LETTERS)

    @lane.handler
    async def send(task: Task) -> None:
        raise PermanentError(f"letter {task.key} has no address")

    await app.database.open()
    await app.database.write(_make_letters)
    async with app:
        working = asyncio.create_task(app.workers().run())
        while sum(one.failures for one in (await app.store.kinds.look()).causes) < TASKS:
            await asyncio.sleep(0.01)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        if kept != "all":
            text_ = "'letter ' || id || ' has no address'" if kept == "message" else "NULL"
            await app.database.write(
                lambda connection: connection.execute(text(f"UPDATE letters SET problem = {text_}")) and None
            )
        await (await lane.census()).take_if_due()
        verdict = judge(await gather(app.store, list(app.lanes.values()), StoreNow()))
        [trouble] = [one for one in verdict.troubles if one.cause]
        assert (trouble.kind, trouble.ledger) == ("letters", "letters")
        assert f"{TASKS} dead" in plain(trouble.told)
        [group] = await app.store.figures.groups(["letters"], limit=10)
        assert (group.id, group.kind, group.amount) == (trouble.cause, "letters", TASKS)
        found = await (await lane.pages()).page(Filter(kind="letters", cause=group.id), limit=100)
        assert len(found.items) == TASKS


LETTERS = LedgerTable(
    "letters", words=Words(waiting="open", claimed="sending", done="sent", dead="stuck", cancelled="void"),
    due="send_at", count="failures", last_error="problem",
)  # fmt: skip


def _make_letters(connection: Connection) -> None:
    table = Table(
        LETTERS.name, MetaData(), Column("id", Integer, primary_key=True), Column("status", Text, nullable=False, server_default="open"),
        Column("failures", Integer, nullable=False, server_default="0"), Column("problem", Text), Column("send_at", When),
        Column("lease_until", When), Column("claim_id", Uuid().with_variant(Text(), "sqlite")),
    )  # fmt: skip
    ledger_indexes(LETTERS, table)
    table.create(connection)
    connection.execute(insert(table), [{"id": number} for number in range(1, TASKS + 1)])
