"""What is known of the dead tasks that a filter asks for, before anybody touches them: one look at the table, one at the list of causes."""

from typing import Any

from sqlalchemy import Connection, Text, cast, func, literal_column, select

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.operations import DeadSet
from redrive.ports import Filter

GROUPS_MAX = 50


def dead_set(connection: Connection, ledger: SqlLedger, asked: Filter) -> DeadSet:
    """How many, of which kinds, how old, and what they died of as of the last census."""
    rows, roles = ledger.predicates, ledger.table.columns()
    where = ledger.conditions.of(asked, lambda: ledger.present(connection))
    role = next((one for one in ("ended_at", "updated_at", "created_at") if one in roles), None)
    at: Any = literal_column("NULL") if role is None else rows.column(role)
    kind: Any = rows.column("kind") if "kind" in roles else literal_column("NULL")
    counted = select(kind, func.count(), func.min(at), func.max(at)).select_from(ledger.sql_table).where(*where)
    if "kind" in roles:  # PostgreSQL groups by no constant
        counted = counted.group_by(kind).order_by(func.count().desc())
    kinds = [row for row in connection.execute(counted) if row[1]]
    d, c = schema.dead, schema.cause
    ids = select(cast(rows.column("id"), Text)).where(*where)
    died = select(d.c.cause, func.count()).where(d.c.ledger == ledger.name, d.c.task_id.in_(ids)).group_by(d.c.cause)
    amounts = connection.execute(died.order_by(func.count().desc()).limit(GROUPS_MAX)).all()
    known = select(c.c.id, c.c.sample).where(c.c.ledger == ledger.name, c.c.id.in_([cause for cause, _ in amounts]))
    samples = {row.id: row.sample for row in connection.execute(known)}
    return DeadSet(
        amount=sum(row[1] for row in kinds),
        kinds=[(row[0] or ledger.table.name, row[1]) for row in kinds[:GROUPS_MAX]],
        causes=[(cause, samples.get(cause, ""), amount) for cause, amount in amounts],
        oldest=min((row[2] for row in kinds if row[2] is not None), default=None),
        newest=max((row[3] for row in kinds if row[3] is not None), default=None),
    )
