"""Pruning tables of others: what cannot be deleted, or has no time of its end, is said once and keeps nothing else."""

import asyncio
import logging
from datetime import timedelta

import pytest

from redrive.core.durations import days
from redrive.core.states import State
from redrive.core.table import LedgerTable, Words
from redrive.engine import keeper as module
from redrive.engine.handlers import Handlers
from redrive.engine.keeper import Keeper
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.errors import TableError
from redrive.events import Event, LedgerAway
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from tests.ledgers.homes import execute

PARCELS = LedgerTable("parcels", words=Words(cancelled="cancelled"), done_at="sent_at")
RETENTION = dict.fromkeys((State.CANCELLED, State.DONE), days(7))


async def opened(database: Database, store: str, table: LedgerTable, *more: str) -> SqlLedger:
    """Six parcels that were sent, and one that was taken back, long ago; then what else is given."""
    instant = "TEXT" if store == "sqlite" else "timestamptz"
    statements = [
        f"CREATE TABLE parcels (id integer PRIMARY KEY, status text NOT NULL, due_at {instant}, sent_at {instant},"
        " failures integer NOT NULL DEFAULT 0)",
        *(
            f"INSERT INTO parcels (id, status, sent_at) VALUES ({id_}, 'done', '2020-01-01T00:00:00Z')"
            for id_ in range(1, 7)
        ),
        "INSERT INTO parcels (id, status) VALUES (7, 'cancelled')",
    ]
    await execute(database, [*statements, *more])
    try:
        await open_ledger(database, table)
    except TableError as error:
        await execute(database, error.migration)
    return await open_ledger(database, table)


def keeper_of(ledger: SqlLedger, told: list[Event]) -> Keeper:
    """A keeper with a retention."""
    patience = Patience(ledger.name, told.extend)
    settler = Settler(ledger, "keeper", patience, told.extend, batch=100)
    return Keeper(
        ledger, Handlers(), settler, patience, told.extend, retention=RETENTION, prune_every=timedelta(hours=1)
    )


async def left(database: Database) -> list[int]:
    """The ids that are still there."""
    return await database.read(
        lambda connection: list(connection.exec_driver_sql("SELECT id FROM parcels ORDER BY id").scalars())
    )


async def test_a_state_without_a_time_of_its_end(
    database: Database, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once with the remedy, the keeper goes on, and the other states are pruned."""
    told: list[Event] = []
    ledger = await opened(database, store, PARCELS)
    rounds = asyncio.Event()
    looked = 0

    async def settle_expired(self: Keeper) -> int:
        nonlocal looked
        looked += 1
        if looked == 5:
            rounds.set()
        return 0

    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(Keeper, "settle_expired", settle_expired)
    with caplog.at_level(logging.WARNING, logger="redrive"):
        keeping = asyncio.create_task(keeper_of(ledger, told).run())
        await asyncio.wait_for(rounds.wait(), 120)
        keeping.cancel()
    assert await left(database) == [7]
    assert not [event for event in told if isinstance(event, LedgerAway)]
    [said] = caplog.messages
    assert "parcels: tasks that are cancelled are not pruned" in said
    assert "name one as ended_at or updated_at in its LedgerTable" in said


async def test_a_state_without_a_word_is_no_trouble(database: Database, store: str) -> None:
    """A table without a word for cancelled has nothing cancelled to prune."""
    table = LedgerTable("parcels", done_at="sent_at")
    ledger = await opened(database, store, table, "DELETE FROM parcels WHERE id = 7")
    assert ledger.unprunable(State.CANCELLED) is None
    assert await ledger.prune([State.DONE, State.CANCELLED], days(7)) == 6


async def test_rows_that_a_foreign_key_keeps(database: Database, store: str) -> None:
    """What an invoice points at stays, everything else goes; many that stay do not stand before those that may go."""
    invoices = "CREATE TABLE invoices (id integer PRIMARY KEY, parcel integer NOT NULL REFERENCES parcels (id))"
    bills = "CREATE TABLE bills (parcel integer REFERENCES parcels (id) ON DELETE SET NULL)"
    rows = ["INSERT INTO invoices VALUES (1, 1), (2, 2), (3, 4)", "INSERT INTO bills VALUES (5)"]
    ledger = await opened(database, store, PARCELS, invoices, bills, *rows)
    assert [str(key) for key in ledger.kept_by] == ["invoices.parcel"]
    assert await ledger.prune([State.DONE], days(7), limit=2) == 2
    assert await ledger.prune([State.DONE], days(7), limit=2) == 1
    assert await ledger.prune([State.DONE], days(7), limit=2) == 0
    assert await left(database) == [1, 2, 4, 7]


REFUSE = {
    "sqlite": [
        "CREATE TRIGGER keep BEFORE DELETE ON parcels WHEN old.id = 3 BEGIN SELECT RAISE(ABORT, 'kept by law'); END"
    ],
    "postgres": [
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF old.id = 3 THEN RAISE 'kept by law'; END IF;"
        " RETURN old; END $$",
        "CREATE TRIGGER keep BEFORE DELETE ON parcels FOR EACH ROW EXECUTE FUNCTION keep()",
    ],
}


async def test_a_row_that_cannot_be_deleted(database: Database, store: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever forbids to delete one row, the others go; when only it is left, that is said once."""
    ledger = await opened(database, store, PARCELS, *REFUSE[store])
    assert await ledger.prune([State.DONE], days(7)) == 5
    assert await left(database) == [3, 7]
    keeper = keeper_of(ledger, [])
    with caplog.at_level(logging.WARNING, logger="redrive"):
        for _ in range(3):
            assert await keeper.prune() == 0
    assert [said for said in caplog.messages if "kept by law" in said] == [
        said for said in caplog.messages if "tasks that are done" in said
    ]
    assert len([said for said in caplog.messages if "kept by law" in said]) == 1
