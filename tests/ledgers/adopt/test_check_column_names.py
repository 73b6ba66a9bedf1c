"""Columns of an adopted table may have any name, also one that redrive's own statements use for a parameter."""

from datetime import timedelta

from redrive.core.durations import hours, seconds
from redrive.core.states import State
from redrive.core.table import LedgerTable
from redrive.errors import TableError
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ports import Return
from redrive.testing import VirtualClock
from tests.ledgers.homes import ADA, LEASE, PERMANENT, execute, settlement

TAKEN = (
    "amount", "amounts", "batch", "limit", "fence", "lease", "ledger", "worker", "ids", "kinds", "kind_0", "age",
    "retry_share", "run_seconds", "now_instant", "sifted",
)  # fmt: skip
PARCELS = LedgerTable("parcels", ended_at="ended", last_error="error")


async def test_no_column_is_taken_for_a_parameter(database: Database, store: str, clock: VirtualClock) -> None:
    """Claiming, extending, settling, acting and pruning leave columns called like their parameters alone."""
    instant = "TEXT" if store == "sqlite" else "timestamptz"
    own = f"id integer PRIMARY KEY, status text NOT NULL, due_at {instant}, failures integer NOT NULL DEFAULT 0"
    others = ", ".join(f'"{name}" integer DEFAULT 7' for name in TAKEN)
    await execute(database, [f"CREATE TABLE parcels ({own}, ended {instant}, error text, {others})"])
    try:
        await open_ledger(database, PARCELS)
    except TableError as error:
        await execute(database, error.migration)
    ledger = await open_ledger(database, PARCELS)
    await execute(database, [f"INSERT INTO parcels (id, status) VALUES ({id_}, 'waiting')" for id_ in range(1, 5)])
    claims = await ledger.claim(9, LEASE)
    assert await ledger.extend(claims, LEASE) == []
    assert await ledger.settle([settlement(claim, PERMANENT) for claim in claims[:2]], worker="w") == []
    clock.advance(hours(1))
    lost = await ledger.reclaim(9, LEASE)
    assert await ledger.settle([settlement(claim) for claim in lost], worker="w") == []
    assert await ledger.redrive([claims[0].task.id], ADA) == [claims[0].task.id]
    back = Return(id=claims[1].task.id, failures=2, delay=seconds(1))
    assert await ledger.return_([back], ADA) == [claims[1].task.id]
    for id_ in range(1, 5):
        task = await ledger.get(id_)
        assert task is not None
        assert {name: task.payload[name] for name in TAKEN} == dict.fromkeys(TAKEN, 7)
    assert await ledger.prune([State.DONE], timedelta(0)) == 2
