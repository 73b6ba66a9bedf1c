"""Which form a database has, and what both say of ids with it."""

from sqlalchemy import Connection

from redrive.ledgers.adopt.form import SURROGATE, Form, primary_key, quoted_table
from redrive.ledgers.adopt.on_postgres import OnPostgres
from redrive.ledgers.adopt.on_sqlite import OnSqlite

_FORMS: dict[str, Form] = {"sqlite": OnSqlite(), "postgresql": OnPostgres()}


def form_of(connection: Connection) -> Form:
    """The form of the database that a connection leads to."""
    return _FORMS[connection.dialect.name]


def is_unique(connection: Connection, name: str, schema: str | None, column: str) -> bool:
    """Whether no two rows can have the same value in a column."""
    alone = primary_key(connection, name, schema) == [column]
    return alone or form_of(connection).has_unique_index(connection, name, schema, column)


def surrogate(connection: Connection, name: str, schema: str | None, column: str = SURROGATE) -> list[str]:
    """The statements that give each row an id of its own, in this column; none where that cannot be done."""
    quote = connection.dialect.identifier_preparer.quote
    together = [quote(one) for one in primary_key(connection, name, schema)]
    index = quote(f"{name[:45]}_{column}_key")
    return form_of(connection).surrogate(quoted_table(connection.dialect, name, schema), index, column, together)
