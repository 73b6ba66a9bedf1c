"""What all of redrive's own tables have in common: how constraints are called, ids and payloads are kept, and partial indexes written."""

from typing import Any

from sqlalchemy import JSON, BigInteger, Integer, MetaData, text

from redrive.ledgers.sql.json_text import JsonText

NAMES = {
    "ix": "%(table_name)s_%(column_0_name)s_idx",
    "uq": "%(table_name)s_%(column_0_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}
"""How constraints and indexes are called, as PostgreSQL itself would."""

metadata = MetaData(naming_convention=NAMES)

ID = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite counts rows by itself only in a column that is INTEGER to the letter."""
PAYLOAD = JSON().with_variant(JsonText(), "sqlite")
"""SQLite would read a long number as a float, and 1.0 as 1."""


def where(condition: str) -> dict[str, Any]:
    """The condition of a partial index, for both databases."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}
