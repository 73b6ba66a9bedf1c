"""The counters of the present minute: one row for each minute, ledger and worker, to which everything is added."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import FromClause, Integer, Text, bindparam, func, select

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.seam import Dialect


def add_up(statement: Any, names: Sequence[str]) -> Any:
    """An insert into the minutes that adds these columns to the row that is there."""
    table, new = schema.minute, statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[table.c.minute, table.c.ledger, table.c.worker],
        set_={name: table.c[name] + new[name] for name in names},
    )


def count_flow(dialect: Dialect, name: str) -> Any:
    """Add an `amount` to a column of the present minute: what was added, pruned, or ended by an act."""
    row = {
        "minute": dialect.minute(),
        "ledger": bindparam("ledger", type_=Text),
        "worker": bindparam("worker", type_=Text),
        name: bindparam("amount", type_=Integer),
    }
    return add_up(dialect.insert(schema.minute).values(row), [name])


def count_rows(dialect: Dialect, name: str, rows: FromClause) -> Any:
    """The same with the number of these rows, if there are any."""
    counted = select(func.count().label("amount")).select_from(rows).subquery("counted_rows")
    row = select(
        dialect.minute(), bindparam("ledger", type_=Text), bindparam("worker", type_=Text), counted.c.amount
    ).where(counted.c.amount > 0)
    return add_up(dialect.insert(schema.minute).from_select(["minute", "ledger", "worker", name], row), [name])
