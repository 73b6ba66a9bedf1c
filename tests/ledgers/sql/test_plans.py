"""What keeps a claim flat however large the table grows: every hot statement is served by its index.

Twenty thousand rows are parked, a few are due. The plans are those of the very statements that ran, under the engine's own
settings; on PostgreSQL also the generic plans, which a prepared statement ends with.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, event

from redrive.core.durations import days, hours
from redrive.core.outcome import Done
from redrive.core.states import State
from redrive.operator.sql.index_order import IndexOrder
from redrive.operator.sql.reads import Reads
from redrive.ports import Filter
from tests.ledgers.homes import LEASE, POLICY, TRANSIENT, Home, execute, settlement
from tests.ledgers.shapes import OWN

EVERY_HOME = True
"""A plan is of one table on one database."""
PARKED = int(os.environ.get("REDRIVE_TEST_ROWS") or 7_000)


async def park(home: Home) -> None:
    """Thousands of rows each that wait for their first try, wait for a retry, and are done; and three that are due."""
    first = await home.put(delay=days(30))
    retried, done = await home.put(), await home.put()
    await home.put()
    for claim in await home.ledger.claim(3, LEASE):
        outcome = TRANSIENT if claim.task.id in retried else Done()
        if claim.task.id in (*retried, *done):
            await home.settle(claim, outcome, POLICY)
    quote = home.database.dialect.sqlalchemy.identifier_preparer
    table, key, id_ = quote.format_table(home.sql_table), home.table.key, home.table.id_column
    kept = [name for column in home.sql_table.columns if (name := column.name) not in (key, id_)]
    columns = ", ".join(quote.quote(name) for name in kept)
    series = f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {PARKED}) SELECT n FROM s)"
    new_key = ""
    if key != id_:
        new_key = f"CAST({quote.quote(key)} AS text) || '-' || series.n"
    elif home.shape.uuid_keys:
        new_key = "gen_random_uuid()" if home.store == "postgres" else "lower(hex(randomblob(16)))"
    for [row] in (first, retried, done):
        literal = row if isinstance(row, int) else f"'{row}'"
        target = columns + (f", {quote.quote(key)}" if new_key else "")
        source = columns + (f", {new_key}" if new_key else "")
        where = f"{quote.quote(id_)} = {literal}"
        await execute(
            home.database,
            [f"INSERT INTO {table} ({target}) SELECT {source} FROM {table}, {series} AS series WHERE {where}"],
        )
    await execute(home.database, ["ANALYZE"])
    await home.put(3)


async def plans(home: Home, run: Callable[..., Any], *args: Any, kept: bool = False) -> tuple[str, Any]:
    """The plans of all statements on the ledger's table that a function executes, or only those that are `kept`, and what it returned."""

    def explain(connection: Connection) -> tuple[list[str], list[str], Any]:
        seen: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            seen.append((statement, parameters))

        event.listen(connection, "before_cursor_execute", note)
        try:
            result = run(connection, *args)
        finally:
            event.remove(connection, "before_cursor_execute", note)
        prefix = "EXPLAIN QUERY PLAN " if home.store == "sqlite" else "EXPLAIN (COSTS OFF) "
        shown = []
        for statement, parameters in seen:
            if home.sql_table.name in statement:
                rows = connection.exec_driver_sql(prefix + statement, parameters)
                shown += [str(row[-1]) for row in rows]
        return shown, [statement for statement, _ in seen if home.sql_table.name in statement], result

    shown, statements, result = await home.database.write(explain)
    assert statements
    if home.store == "postgres":
        shown = [] if kept else shown
        async with await psycopg.AsyncConnection.connect(home.url) as connection:
            await connection.execute("SET enable_seqscan = off")
            for statement in statements:
                generic = await connection.execute("EXPLAIN (GENERIC_PLAN, COSTS OFF) " + statement)  # type: ignore[arg-type]
                shown += [row[0] for row in await generic.fetchall()]
    return "\n".join(shown), result


def assert_flat(home: Home, plan: str, *indexes: str, may_sort: bool = False) -> None:
    """No whole table is read or sorted, nor an index of all rows walked, and each of the indexes is used."""
    table = home.sql_table.name
    partial = {f"{table}_{name}_idx" for name in ("first", "retry", "lease", "gate", "turn", "parked")}
    lines = plan.splitlines()
    batches = {at for at, line in enumerate(lines) if "Function Scan" in line}
    for at, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        # A batch may be sorted, to be joined: it is what was asked for.
        assert may_sort or "Sort" not in line or {at + 1, at + 2} & batches, plan
        assert may_sort or "TEMP B-TREE FOR ORDER BY" not in line, plan
        if "Seq Scan" in line or line.strip().startswith("SCAN "):
            of_table = table in line or f'"{table}"' in line
            assert not of_table or any(name in line for name in partial), plan
        if f"Scan using {table}_pkey" in line:
            assert "Index Cond" in following, plan
    for index in indexes:
        assert f"{table}_{index}_idx" in plan, plan


# Commands are copied with difficulty; `test_pgmq.py` looks at the plans of their claims and pages.
@pytest.mark.homes(lambda table: table.name not in ("command", "commandbus_command"))
async def test_hot_statements_are_served_by_indexes(home: Home) -> None:
    """Claim, next due, extend, settle, reclaim: each uses the index that is made for it and reads no more."""
    await park(home)
    assert sum((await home.ledger.counts()).values()) > 3 * PARKED
    ledger = home.ledger
    kinds = ["mail", "print"] if home.table.kind else None
    claim, claims = await plans(home, ledger._claim, 10, LEASE, kinds, 1, uuid4())
    assert_flat(home, claim, "first", "retry")
    assert len(claims) == 3
    due, _ = await plans(home, ledger._next_due, kinds)
    assert_flat(home, due, "first", "retry")
    extend, _ = await plans(home, ledger._extend, claims, LEASE)
    assert_flat(home, extend)
    recall, again = await plans(home, ledger._recall, claims[0].claim_id, LEASE)
    assert_flat(home, recall, "lease", may_sort=True)  # what is held is few
    assert len(again) == 3
    settle, _ = await plans(home, ledger._settle, [settlement(one) for one in claims[:2]], "w1")
    assert_flat(home, settle)
    home.clock.advance(hours(1))
    reclaim, found = await plans(home, ledger._reclaim, 10, LEASE, kinds)
    assert_flat(home, reclaim, "lease")
    assert found
    if kinds:
        found_kinds, result = await plans(home, ledger._list_kinds)
        assert result.items == ["mail"]
        assert_flat(home, found_kinds, "first", "retry", "lease", may_sort=True)  # what is held is few
        for asked in (("ma", None), ("", "ma")):
            some_kinds, result = await plans(home, ledger._list_kinds, *asked)
            assert result.items == ["mail"]
            assert_flat(home, some_kinds, "first", "retry", may_sort=True)
        many = [*(f"kind-{number}" for number in range(60)), "mail"]
        due_kinds, result = await plans(home, ledger._due_kinds, many, 40)
        assert result == ["mail"]
        assert_flat(home, due_kinds, "first", "retry")
        next_due, _ = await plans(home, ledger._next_due, many)
        assert_flat(home, next_due, "first", "retry")


@pytest.mark.homes(lambda table: table.gated_by is not None and table.payload is not None)
async def test_claims_behind_gates_are_served_by_their_index(home: Home) -> None:
    """Claiming and discovering read the rows of their gates by the index that is made for them, whatever is parked."""
    await park(home)
    gated = {home.table.gated_by or "gate": "49"}
    await home.ledger.add(
        [*(home.new(**gated) for _ in range(2)), *(home.new(**gated, delay=days(30)) for _ in range(500))]
    )
    kinds = ["mail"] if home.table.kind else None
    for known in (False, True):  # right after many came, PostgreSQL knows nothing of them
        if known:
            await execute(home.database, ["ANALYZE"])
        plan, claims = await plans(home, home.ledger._claim_behind_gates, 1, LEASE, kinds, uuid4(), ())
        assert [claim.task.gate for claim in claims] == ["49"]
        assert_flat(home, plan, "gate", may_sort=True)
        plan, _ = await plans(home, home.ledger._overlooked)
        assert_flat(home, plan, "gate", may_sort=True)


@pytest.mark.homes(lambda table: table.gated_by is not None and table.payload is not None)
async def test_what_is_parked_is_counted_in_indexes(home: Home) -> None:
    """Behind a gate, before a task, of a kind and of all: no look reads the table, whatever is parked or done there."""
    await park(home)
    gated = {home.table.gated_by or "gate": "49"}
    added = await home.ledger.add([home.new(**gated), *(home.new(**gated, delay=days(30)) for _ in range(500))])
    await execute(home.database, ["ANALYZE"])
    plan, amount = await plans(home, home.ledger.parked_behind, "49", 100)
    assert amount == 1
    assert_flat(home, plan)
    plan, amount = await plans(home, home.ledger.parked_before, "49", added[-1].id, 1000)
    assert amount == 1
    assert_flat(home, plan)
    for kind in ("mail", None) if home.table.kind else (None,):
        plan, amount = await plans(home, home.ledger.parked_kinds, kind, 20 * PARKED)
        assert amount >= 4
        assert_flat(home, plan)


@pytest.mark.homes(lambda table: table.name == "redrive_task")
async def test_large_batches_read_their_rows_alone(home: Home) -> None:
    """Nor is a table read for many rows at once, though PostgreSQL may think that it comes cheaper."""
    await park(home)
    await home.put(400)
    claims = await home.ledger.claim(400, LEASE)
    assert len(claims) == 400
    extend, _ = await plans(home, home.ledger._extend, claims, LEASE)
    assert_flat(home, extend)
    settle, _ = await plans(home, home.ledger._settle, [settlement(one) for one in claims], "w1")
    assert_flat(home, settle)


@pytest.mark.homes(lambda table: table.name == "redrive_task")
async def test_batches_are_not_compared_each_with_each(home: Home) -> None:
    """A plan that is kept serves batches of any size: one that takes them for small would grow with their square."""
    await park(home)
    await home.put(37)
    claims = [claim for _ in range(2) for claim in await home.ledger.claim(20, LEASE)]
    for batch in (claims[:20], claims):  # of one fence, and of two
        extend, _ = await plans(home, home.ledger._extend, batch, LEASE, kept=True)
        assert "Nested Loop" not in extend, extend
        for ends in ([TRANSIENT, Done()], [Done()]):  # of two ends, to which the tasks are joined, and of one
            ended = [settlement(one, ends[at % len(ends)]) for at, one in enumerate(batch)]
            settle, _ = await plans(home, home.ledger._settle, ended, "w1", kept=True)
            assert "Nested Loop" not in settle, settle
            assert ("CTE ends" in settle) == (home.store == "postgres" and len(ends) > 1), settle


@pytest.mark.homes(lambda table: table.name == "redrive_task")
async def test_what_is_old_is_found_without_a_look_at_what_is_not(home: Home) -> None:
    """What may go is read from the index by kind, state and instant, of however many kinds, and what has ended since is not looked at."""
    await park(home)
    for kinds in (["mail"], ["mail", "print", "scan"]):
        old = home.ledger._acting.old([State.DONE], kinds)
        plan, gone = await plans(home, home.ledger._prune, old, hours(1), 10)
        assert gone == 0, "nothing is that old"
        assert_flat(home, plan, "kind")
        if home.store == "postgres":
            found = [line for line in plan.splitlines() if "Index Cond" in line and "state" in line]
            assert found, plan
            assert all(
                f"({column}" in line or f" {column}" in line for line in found for column in ("kind", "ended_at")
            ), plan
        else:
            assert "(kind=? AND state=? AND ended_at<?)" in plan, plan


@pytest.mark.homes(lambda table: table.kind is not None and table.name not in ("command", "commandbus_command"))
async def test_pages_for_people_are_served_by_indexes(home: Home) -> None:
    """Pages of each state and kind read the index that holds just their rows, whatever else is in the table."""
    await park(home)
    pages = IndexOrder(home.ledger, Reads(home.database, limited=True))
    asked = [(Filter(state=State.WAITING), ("first", "retry")), (Filter(state=State.CLAIMED), ("lease",))]
    if home.shape is OWN:
        # Of those that have ended only the done ones are many here.
        asked += [(Filter(state=State.DONE), ("kind",)), (Filter(kind="mail"), ("first", "retry", "lease", "kind"))]
        asked += [(Filter(state=State.DONE, older_than=hours(1)), ("kind",))]
    for one, indexes in asked:
        for newest_first in (False, True):
            heads = partial(pages._heads, newest_first=newest_first)
            first, places = await plans(home, heads, one, ["mail"], None, 5)
            assert_page(home, first, *indexes)
            if places:
                behind, _ = await plans(home, heads, one, ["mail"], places[-1], 5)
                assert_page(home, behind, *indexes)


def assert_page(home: Home, plan: str, *indexes: str) -> None:
    """Flat, and only few rows are sorted: the heads of the branches, and rows that share an instant."""
    assert_flat(home, plan, *indexes, may_sort=True)
    lines = [line.strip().removeprefix("->").strip() for line in plan.splitlines()]
    for before, line, following in zip(["", *lines], lines, lines[1:], strict=False):
        if home.store == "sqlite":
            assert not (line.startswith("SEARCH") and following == "USE TEMP B-TREE FOR ORDER BY"), plan
        else:
            read = following.startswith(("Index Scan", "Index Only Scan", "Bitmap"))
            few = "_lease_idx" in following or "_dead_idx" in following
            assert not (line.startswith("Sort Key") and read and not few and "Incremental Sort" not in before), plan
