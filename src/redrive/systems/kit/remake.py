"""Changing what SQLite cannot change in place, in a migration: the table is made anew and its rows are copied."""

from collections.abc import Callable, Mapping

from alembic import op


def remake(table: str, create: Callable[[str], None], values: Mapping[str, str]) -> None:
    """Make a table anew with `create(name)` and fill its columns with `values`, which are SQL over the old rows.

    The indexes go with the old table: make them afterwards.
    """
    new = f"{table}_new"
    create(new)
    op.execute(f"INSERT INTO {new} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {table}")  # noqa: S608 - our own names
    op.execute(f"DROP TABLE {table}")
    op.execute(f"ALTER TABLE {new} RENAME TO {table}")
