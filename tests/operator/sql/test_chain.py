"""The chain of the audit in tables, on both databases."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from redrive.access.sql.keys import SqlKeys
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.audit_lines import write_line
from redrive.ledgers.sql.database import Database
from redrive.operator.audit import AuditEntry
from redrive.operator.sql.audit import SqlAudit
from redrive.operator.sql.chain import SqlChain
from redrive.ports import Actor
from redrive.testing import VirtualClock

ADA = Actor(name="ada", reason="tidy")
_a = schema.audit


@pytest.fixture
def chain(database: Database) -> SqlChain:
    """The chain of an empty database."""
    return SqlChain(database)


async def act(database: Database, amount: int) -> None:
    """So many acts, which nobody has linked."""
    keys = SqlKeys(database)
    for number in range(amount):
        await keys.create(f"user {number}", ["viewer"], by=ADA)


async def do(database: Database, *statements: Any) -> None:
    """What somebody does who has the database in hand."""

    def run(connection: Any) -> None:
        for one in statements:
            connection.execute(one)

    await database.write(run)


async def test_lines_are_linked_in_order_and_can_be_verified(database: Database, chain: SqlChain):
    """Until then they are counted as not protected; linking again changes nothing."""
    await act(database, 3)
    before = await chain.verify()
    assert (before.lines, before.unlinked, before.is_whole) == (0, 3, True)
    assert [await chain.link(), await chain.link()] == [3, 0]
    after = await chain.verify(head=str(await chain.head()))
    assert (after.lines, after.unlinked, after.head.number, after.findings) == (3, 0, 3, [])
    numbers = [one.number for one in (await SqlAudit(database).page()).items]
    assert sorted(number or 0 for number in numbers) == [1, 2, 3]


@pytest.mark.parametrize("change", [{"actor": "eve"}, {"things": "[]"}, {"hash": "0" * 64}, {"previous": "0" * 64}])
async def test_a_changed_line_is_found_and_named(database: Database, chain: SqlChain, change: dict[str, str]):
    """Whatever of it was changed."""
    await act(database, 3)
    await chain.link()
    await do(database, update(_a).where(_a.c.number == 2).values(change))
    found = await chain.verify()
    assert not found.is_whole
    assert found.findings[0].number == 2
    assert "line 2 (created by " in found.findings[0].sentence


async def test_a_removed_line_is_found_and_named(database: Database, chain: SqlChain):
    """In between always; at the end by a head that was kept. What comes later does not hide it."""
    await act(database, 3)
    await chain.link()
    kept = str(await chain.head())
    await do(database, delete(_a).where(_a.c.number == 3))
    assert (await chain.verify()).is_whole
    [end] = (await chain.verify(head=kept)).findings
    assert end.sentence == "line 3 is missing at the end: the head that you kept is line 3"
    await act(database, 1)
    await chain.link()
    [other] = (await chain.verify(head=kept)).findings
    assert other.sentence.startswith("line 3 has another hash")
    await do(database, delete(_a).where(_a.c.number == 2))
    [between] = (await chain.verify()).findings
    assert between.sentence.startswith("line 2 is missing, between line 1 (created by ada")


async def test_many_linkers_at_once_make_one_chain(database: Database, monkeypatch: pytest.MonkeyPatch):
    """Each line gets one place, though each of them reads the same lines, while others go on acting."""
    monkeypatch.setattr("redrive.operator.sql.chain.LINKED_AT_ONCE", 3)
    await act(database, 10)
    await asyncio.gather(act(database, 5), *(SqlChain(database).link() for _ in range(6)))
    chain = SqlChain(database)
    await chain.link()
    found = await chain.verify()
    assert (found.lines, found.unlinked, found.head.number, found.findings) == (15, 0, 15, [])


@pytest.mark.parametrize("store", ["postgres"])
async def test_an_act_that_is_not_committed_yet_holds_nobody_up(database: Database, chain: SqlChain):
    """Later lines are linked before it, and it is linked behind them when it is there: nobody waits for anybody."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow_act() -> None:
        async with database.transaction() as transaction:
            at = database.now()
            told = {"ledger": "t", "act": "slow", "things": ["1"], "actor": ADA, "at": at}
            await transaction.connection.run_sync(lambda connection: write_line(connection, **told))
            begun.set()
            await go_on.wait()

    slow = loop.create_task(slow_act())
    await begun.wait()
    await act(database, 2)
    assert await chain.link() == 2
    go_on.set()
    await slow
    assert await chain.link() == 1
    found = await chain.verify()
    assert (found.lines, found.findings) == (3, [])
    [entry] = [one for one in (await SqlAudit(database).page()).items if one.act == "slow"]
    assert entry.number == 3


async def test_deeds_without_a_line_are_folded_by_act_and_named_as_such(
    database: Database, chain: SqlChain, monkeypatch: pytest.MonkeyPatch
):
    """Older code and strange systems write deeds alone: an act of theirs is one entry, also if it is folded in two goes."""
    monkeypatch.setattr("redrive.operator.sql.chain._ALONE", _alone(3))
    at = database.now()
    deed = {"ledger": "redrive_task", "at": at, "act": "redrive", "actor": "bob", "reason": "old"}
    await do(database, insert(schema.deed).values([deed | {"task_id": str(number)} for number in range(5)]))
    await do(database, insert(schema.deed).values(deed | {"task_id": "9", "act": "cancel"}))
    await chain.link()
    entries = {one.act: one for one in (await SqlAudit(database).page()).items}
    assert {name: (one.amount, one.folded, one.reason) for name, one in entries.items()} == {
        "redrive": (5, True, "old"),
        "cancel": (1, True, "old"),
    }
    things = await SqlAudit(database).things(str(entries["redrive"].id))
    assert things.items == ["0", "1", "2", "3", "4"]
    found = await chain.verify()
    assert (found.folded, found.unlinked, found.findings) == (3, 0, [])


def _alone(limit: int) -> Any:
    from redrive.operator.sql import chain as module

    return module._ALONE.limit(limit)


async def test_old_lines_are_pruned_and_the_chain_holds(database: Database, chain: SqlChain, clock: VirtualClock):
    """A line says who did it and why. Heads from after it can be compared, and what is missing later is found as before."""
    await act(database, 3)
    clock.advance(timedelta(days=10))
    await act(database, 2)
    await chain.link()
    kept = str(await chain.head())
    assert await chain.prune(timedelta(days=5), by=ADA) == 3
    assert await chain.prune(timedelta(days=5), by=ADA) == 0
    found = await chain.verify(head=kept)
    assert (found.lines, found.begins.number, found.findings) == (3, 3, [])
    entries: list[AuditEntry] = (await SqlAudit(database).page("redrive_audit")).items
    assert [(one.act, one.amount, one.actor, one.reason) for one in entries] == [("pruned", 3, "ada", "tidy")]
    await do(database, delete(_a).where(_a.c.number == 4))
    [gone] = (await chain.verify()).findings
    assert gone.sentence.startswith("lines 1 to 4 are missing at the beginning")
