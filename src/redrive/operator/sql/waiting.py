"""How many tasks of each kind wait, and how late the oldest is: read from the indexes that claims need anyway, up to a limit."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Integer, Select, Text, bindparam, func, literal_column, select

from redrive.errors import TooSlowError
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.gates import PARKED_MAX
from redrive.operator.kinds import WaitingKind
from redrive.operator.sql.reads import LOOK_WITHIN

KINDS_MAX = 50
CLOSELY_MAX = 5
"""So many are counted up to ten thousand, the others up to a thousand: fifty times ten thousand would be a wait."""
ROUGHLY_MAX = 1_000


async def waiting_of(ledger: SqlLedger, kinds: Iterable[str]) -> Mapping[str, WaitingKind]:
    """Those of these kinds of which any task waits, as far as a look for somebody who waits goes; the first ones are counted closely."""
    if ledger.table.kind is None:
        return {}
    try:
        return await ledger.database.look(LOOK_WITHIN, _look, ledger, list(kinds)[:KINDS_MAX])
    except TooSlowError:
        return {}


def _look(connection: Connection, ledger: SqlLedger, kinds: list[str]) -> dict[str, WaitingKind]:
    statement, found = _statement(ledger), {}
    for position, kind in enumerate(kinds):
        most = PARKED_MAX if position < CLOSELY_MAX else ROUGHLY_MAX
        amounts = [int(one) for one in connection.execute(statement, {"kind": kind, "most": most + 1}).one()]
        if any(amounts):
            first, again, behind_gates = amounts
            oldest = ledger.oldest_due_of(connection, [kind]) if first or again else None
            found[kind] = WaitingKind(
                waiting=min(first + again, most), behind_gates=min(behind_gates, most), more=max(first + again, behind_gates) > most,
                oldest_due=oldest,
            )  # fmt: skip
    return found


def _statement(ledger: SqlLedger) -> Select[Any]:
    """Three counts of one kind: first tries, retries, and those behind gates. Each goes over one index and stops at a limit."""
    rows = ledger.predicates
    this = rows.column("kind") == bindparam("kind", type_=Text)

    def few(which: Any) -> Any:
        some: Select[Any] = (
            select(literal_column("1"))
            .select_from(ledger.sql_table)
            .where(this, which)
            .limit(bindparam("most", type_=Integer))
        )
        return select(func.count()).select_from(some.subquery()).scalar_subquery()

    gated = few(rows.parked()) if rows.has_gates else literal_column("0")
    return select(few(rows.first_tries()), few(rows.retries()), gated)
