"""Tracebacks in a table of their own: what is wrong with that table costs no settlement."""

import pytest
from sqlalchemy import select, text

from redrive.core.durations import days
from redrive.core.outcome import Failed
from redrive.core.states import State
from redrive.ledgers.open import own_ledger
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.stacks import KEPT, forget_stacks, read_stacks, write_stacks
from redrive.testing import VirtualClock
from tests.ledgers.homes import Home
from tests.ledgers.shapes import OWN


@pytest.mark.homes(lambda table: table.name == OWN.name)
async def test_a_table_that_cannot_be_written_costs_no_settlement(home: Home) -> None:
    """Where tracebacks cannot be kept, the try is settled without; where they can again, they are kept again."""
    [first, second] = await home.put(2)
    claims = [await home.claim_one() for _ in range(2)]

    def fails() -> Failed:
        try:
            raise ValueError("no body")
        except ValueError as error:
            return Failed(error)

    async def rename(old: str, new: str) -> None:
        await home.database.write(lambda connection: connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}")))

    await rename(schema.stack.name, "elsewhere")
    assert await home.settle(claims[0], fails()) == []
    await rename("elsewhere", schema.stack.name)
    assert await home.settle(claims[1], fails()) == []
    kept = [(await home.ledger.attempts(claim.task.id))[0].stack for claim in claims]
    assert [(await home.ledger.get(id_)).state for id_ in (first, second)] == [State.WAITING] * 2  # type: ignore[union-attr]
    assert kept[1]


async def test_a_stack_that_is_named_again_is_kept_and_one_that_is_not_goes(
    database: Database, clock: VirtualClock
) -> None:
    """Its day is moved on whenever a process writes it anew; what nobody has named for a quarter of a year is forgotten."""
    stacks = {"a" * 16: "[]", "b" * 16: "[]"}
    await database.write(write_stacks, database, stacks)
    clock.advance(KEPT - days(1))
    await database.write(write_stacks, database, {"a" * 16: "[]"})
    clock.advance(days(2))
    ledger = own_ledger(database)
    await ledger.keep_history()
    assert set(await database.read(read_stacks, stacks)) == {"a" * 16}


@pytest.mark.parametrize("store", ["postgres"])
async def test_a_stack_that_somebody_has_locked_keeps_nobody_waiting(database: Database, clock: VirtualClock) -> None:
    """It is neither refreshed nor forgotten while it is locked: both come round again."""
    id_ = "a" * 16
    await database.write(write_stacks, database, {id_: "[]"})
    clock.advance(KEPT + days(1))
    async with database.transaction() as other:
        lock = select(schema.stack.c.id).where(schema.stack.c.id == id_).with_for_update()
        await other.connection.run_sync(lambda connection: connection.execute(lock))
        await database.write(write_stacks, database, {id_: "[]"})
        assert await database.write(forget_stacks, database) == 0
    assert await database.write(forget_stacks, database) == 1
