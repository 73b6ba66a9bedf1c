"""Tracebacks in a table of their own: what is wrong with that table costs no settlement."""

import pytest
from sqlalchemy import text

from redrive.core.outcome import Failed
from redrive.core.states import State
from redrive.ledgers.sql import schema
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
