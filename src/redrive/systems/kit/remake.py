"""Changing what SQLite cannot change in place, in a migration: the table is made anew and its rows are copied.

What its owner has added stays: columns of their own with their values, indexes and triggers.
"""

from collections.abc import Callable, Mapping

from alembic import context, op


def remake(table: str, create: Callable[[str], None], values: Mapping[str, str], index: Callable[[], None]) -> None:
    """Make a table anew with `create(name)`, fill its columns with `values`, which are SQL over the old rows, and `index` it."""
    new = f"{table}_new"
    added = {} if context.is_offline_mode() else _added(table, values)
    beside = [] if context.is_offline_mode() else _beside(table)
    create(new)
    for name, kind in added.items():
        op.get_bind().exec_driver_sql(f"ALTER TABLE {new} ADD COLUMN {name} {kind}")
    columns = [*values, *added]
    op.execute(f"INSERT INTO {new} ({', '.join(columns)}) SELECT {', '.join([*values.values(), *added])} FROM {table}")  # noqa: S608 - names of columns
    op.execute(f"DROP TABLE {table}")
    op.execute(f"ALTER TABLE {new} RENAME TO {table}")
    index()
    made = set() if context.is_offline_mode() else {name for name, _ in _beside(table)}
    for name, sql in beside:
        if name not in made:
            op.get_bind().exec_driver_sql(sql)


def _added(table: str, known: Mapping[str, str]) -> dict[str, str]:
    """The columns that are not ours, quoted, and what they are. A default that is computed cannot be added to a table."""
    found = op.get_bind().exec_driver_sql(f"PRAGMA table_info({table})").all()
    return {
        '"{}"'.format(column.name.replace('"', '""')): column.type
        + (f" DEFAULT {column.dflt_value}" if _is_plain(column.dflt_value) else "")
        for column in found
        if column.name not in known
    }


def _is_plain(default: str | None) -> bool:
    return default is not None and not default.upper().startswith(("CURRENT", "("))


def _beside(table: str) -> list[tuple[str, str]]:
    """The indexes and triggers of a table, by name, as they were made."""
    asked = f"SELECT name, sql FROM sqlite_schema WHERE type IN ('index', 'trigger') AND tbl_name = '{table}' AND sql IS NOT NULL"  # noqa: S608 - our own name
    return [(name, sql) for name, sql in op.get_bind().exec_driver_sql(asked)]
