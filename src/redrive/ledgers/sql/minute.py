"""The counters of the present minute: one row for each minute, ledger and worker, to which everything is added."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Integer, Text, bindparam

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
