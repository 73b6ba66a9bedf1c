"""The portable claim: promises of a ledger that hang on locks elsewhere, kept by serializable transactions alone.

All tests of all shapes run with it where `REDRIVE_TEST_PORTABLE` is set.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text

from redrive.core.durations import days, seconds
from redrive.core.gate_rules import GateRule
from redrive.core.outcome import Done
from redrive.core.states import State
from redrive.core.task import ClaimLocked
from redrive.errors import SettingsError
from redrive.ledgers.open import open_database
from redrive.ledgers.postgres.portable import PortableDatabase
from redrive.ledgers.sql.predicates import columns_of
from tests.ledgers.homes import ADA, LEASE, Home, settlement
from tests.ledgers.test_conformance import (  # noqa: F401 - run here with another claim
    test_a_hundred_concurrent_adds_of_one_key,
    test_a_keeper_that_dies_leaves_no_trace,
    test_concurrent_batches_in_opposite_order,
    test_concurrent_claims_are_disjoint,
    test_late_and_current_claim_in_one_batch,
    test_prune_takes_what_ended_long_ago_with_its_history,
    test_recall_finds_what_a_claim_took,
    test_reclaim_of_many_at_once_is_disjoint,
    test_two_operators_press_the_same_button,
)
from tests.ledgers.test_gates import (  # noqa: F401 - the same
    test_a_full_gate_is_woken_by_a_settlement,
    test_a_gate_sleeps_until_its_next_task_is_due,
    test_an_outage_costs_one_probe_at_a_time,
    test_no_more_are_held_than_a_gate_allows,
    test_tenants_take_turns_inside_a_gate_that_they_share,
    test_what_nobody_told_of_is_discovered,
)
from tests.servers import PostgresServer

OTHER_HOMES = "portable"
STORES = ("postgres",)
_WRITES = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b(?! SET)")
_OURS_ALONE = re.compile(r"\bFOR (NO KEY )?(UPDATE|SHARE)|SKIP LOCKED|pg_notify|NOTIFY|LISTEN|advisory", re.IGNORECASE)


@contextmanager
def said(home: Home) -> Iterator[list[str]]:
    """What is sent to the database meanwhile."""
    statements: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        statements.append(statement)

    assert isinstance(home.database, PortableDatabase)
    engine = home.database._here.engine.sync_engine
    event.listen(engine, "before_cursor_execute", hear)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", hear)


async def test_no_means_that_only_postgresql_has(home: Home) -> None:
    """On a whole way of tasks, behind a gate and without: no row lock, no NOTIFY, no advisory lock, one write in a statement."""
    gated = {"gate": "bank"} if home.table.gate else {"tenant": "bank"}
    with said(home) as statements:
        await home.ledger.set_rule("*bank", GateRule(concurrency=5), ADA)
        await home.ledger.add([*(home.new() for _ in range(6)), *(home.new(**gated) for _ in range(6))])
        await home.ledger.discover()
        claims = await home.ledger.claim(12, LEASE)
        assert len(claims) == 11
        await home.ledger.extend(claims, LEASE)
        await home.ledger.settle([settlement(claim, Done()) for claim in claims[:9]], worker="w1")
        await home.ledger.pause_gate("bank", ADA)
        await home.ledger.keep_gates(recount=True)
        home.clock.advance(LEASE * 2)
        assert len(await home.expire()) == 2
        await home.dead()
        await home.ledger.redrive([(await home.dead())[0]], ADA)
        home.clock.advance(days(2))
        assert await home.ledger.prune([State.DONE], days(1)) == 9
    assert len(statements) > 30
    assert [one for one in statements if _OURS_ALONE.search(one)] == []
    assert [one for one in statements if len(_WRITES.findall(one.replace("DO UPDATE", ""))) > 1] == []


async def test_every_write_is_serializable(home: Home) -> None:
    """Statements, transactions of ours and those of handlers say their isolation themselves, whatever the server's default is."""
    asked = text("SHOW transaction_isolation")
    for run in (home.database.statement, home.database.write):
        assert await run(lambda connection: connection.execute(asked).scalar()) == "serializable"
    async with home.database.transaction() as transaction:
        assert (await transaction.connection.execute(asked)).scalar() == "serializable"


async def test_workers_that_claim_at_once_never_share(home: Home) -> None:
    """Four that claim, settle and add at the same time: each task is run once, and none is lost."""
    ids = await home.put(60)
    others = [await home.another() for _ in range(4)]

    async def work(ledger: Any) -> list[Any]:
        ran = []
        while claims := await ledger.claim(4, LEASE):
            assert await ledger.settle([settlement(claim, Done()) for claim in claims], worker="w") == []
            ran += [claim.task.id for claim in claims]
        return ran

    ran = await asyncio.gather(*(work(other) for other in others), home.put(5))
    assert sorted(id_ for each in ran[:-1] for id_ in each if id_ in ids) == sorted(ids)


async def test_a_locked_row_costs_no_other(home: Home) -> None:
    """While a stranger holds one row, the leases of the others are extended and they are settled; then it is settled too."""
    await home.put(4)
    ledger = await home.another()
    claims = sorted(await ledger.claim(4, LEASE), key=lambda claim: claim.task.id)
    ended = [settlement(claim, Done()) for claim in claims]
    table = home.sql_table
    async with home.database.transaction() as stranger:
        locked = table.select().where(columns_of(table)[home.table.id_column] == claims[1].task.id)
        await stranger.connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        await stranger.connection.execute(text(f"{locked.compile(compile_kwargs={'literal_binds': True})} FOR UPDATE"))
        assert await ledger.extend(claims, LEASE) == [ClaimLocked(claims[1])]
        assert await ledger.settle(ended, worker="w") == [ClaimLocked(claim) for claim in claims]
        waits = [await ledger.settle([one], worker="w", wait=seconds(0.05)) for one in ended]
        assert waits == [[], [ClaimLocked(claims[1])], [], []]
    assert await ledger.settle([ended[1]], worker="w") == []


async def test_nobody_is_asked_to_listen(home: Home) -> None:
    """No connection hears announcements, and nothing advises to give them a way: that is what was chosen."""
    assert isinstance(home.database, PortableDatabase)
    assert await home.database.find_listen() is None
    assert await home.database.advice() == []
    assert "portable" in await home.database.describe()


def test_an_unknown_claim_is_refused(postgres: PostgresServer) -> None:
    """What the URL asks for is known, or refused with what is."""
    with pytest.raises(SettingsError, match="native or portable"):
        open_database(f"{postgres.url}&claim=quick" if "?" in postgres.url else f"{postgres.url}?claim=quick")
