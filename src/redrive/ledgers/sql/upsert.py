"""Storing a row of one of our own tables in the place of one with its key."""

from typing import Any

from sqlalchemy import ColumnElement, Table

from redrive.ledgers.sql.database import Database


def upsert(database: Database, table: Table, *, keep: bool = False, where: ColumnElement[bool] | None = None) -> Any:
    """The statement that does it. With `keep` the row that is there stays; with `where` also one of which this does not hold."""
    statement, key = database.insert(table), list(table.primary_key.columns)
    if keep:
        return statement.on_conflict_do_nothing(index_elements=key)
    names = [column.name for column in table.columns if not column.primary_key]
    values = {name: statement.excluded[name] for name in names}
    return statement.on_conflict_do_update(index_elements=key, set_=values, where=where)
