"""Tables of somebody's on SQLite: any column may hold anything, and none can be changed."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import JSON, Connection, Dialect, Integer, String, Text, text
from sqlalchemy.sql.sqltypes import NULLTYPE, DateTime
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.core.table import LedgerTable
from redrive.ledgers.adopt.form import Findings, Form, Mend, Read, UuidText
from redrive.ledgers.sql.json_text import JsonText
from redrive.ledgers.sql.mapped import ForeignKey
from redrive.ledgers.sql.times import IsoText, SqliteDatetime


class WholeNumber(TypeDecorator[int]):
    """A count on SQLite, which keeps any text in a column of numbers: what is not a number is refused when it is read."""

    impl = Integer
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return lambda value: value if value is None or isinstance(value, int) else int(value)


class OnSqlite(Form):
    """SQLite."""

    new_id = "integer"
    time_ddl, fence_ddl = "TEXT", "TEXT"
    time_type: TypeEngine[Any] = IsoText()
    fence_type: TypeEngine[Any] = UuidText()
    surrogate_type: TypeEngine[Any] = Text()

    def indexes(self, connection: Connection, ledger_table: LedgerTable) -> set[str]:
        asked = text("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = :table")
        return set(connection.execute(asked, {"table": ledger_table.name}).scalars())

    def has_unique_index(self, connection: Connection, name: str, schema: str | None, column: str) -> bool:
        asked = text(
            'SELECT count(*) FROM pragma_index_list(:table) AS list WHERE list."unique" AND NOT list.partial AND '
            "(SELECT json_group_array(name) FROM pragma_index_info(list.name)) = json_array(:column)"
        )
        return bool(connection.execute(asked, {"table": name, "column": column}).scalar())

    def pointing_at(self, connection: Connection, ledger_table: LedgerTable) -> list[ForeignKey]:
        """SQLAlchemy does not see what is said behind the REFERENCES of a column."""
        asked = text(
            'SELECT child.name, json_group_array(key."from"), json_group_array(coalesce(key."to", :id)) '
            "FROM sqlite_schema AS child JOIN pragma_foreign_key_list(child.name) AS key "
            "WHERE child.type = 'table' AND lower(key.\"table\") = lower(:table) AND key.on_delete IN ('NO ACTION', 'RESTRICT') "
            "GROUP BY child.name, key.id"
        )
        rows = connection.execute(asked, {"table": ledger_table.name, "id": ledger_table.id_column})
        return [ForeignKey(child, None, json.loads(own), json.loads(referred)) for child, own, referred in rows]

    def read_time(self, role: str, real: TypeEngine[Any], name: str, quoted: str) -> Read:
        if isinstance(real, DateTime):
            return SqliteDatetime(), None, None
        return super().read_time(role, real, name, quoted)

    def from_unix(self, seconds: str) -> str:
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', {seconds}, 'unixepoch')"

    def read_number(self, real: TypeEngine[Any]) -> TypeEngine[Any]:
        return WholeNumber()

    def read_other(self, role: str | None, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """Whatever was written is kept: columns are handed on as they are, JSON decoded."""
        if role is not None:
            return real
        return JsonText() if isinstance(real, JSON) else NULLTYPE

    def payload_notice(self, name: str, real: TypeEngine[Any], *, harm_only: bool) -> str | None:
        if isinstance(real, String):
            return None
        return (
            f"column {name!r} (payload) is {real}, which SQLite takes for a number where it can: the payload "
            "12345678901234567890 comes back as 1.2345678901234567e+19, and 1.0 as 1; declare it TEXT to keep them"
        )

    def change(
        self, table: str, column: str, name: str, role: str, mend: Mend, found: Findings, real: set[str]
    ) -> None:
        """No row is updated: what to fill in is the owner's to say."""
        new = f"redrive_{role}"
        found.problems.append(
            f"SQLite cannot change column {name!r}: name {role}={new!r} in the LedgerTable, which the migration adds, and fill it "
            f"for the rows that are to be worked on; {mend.using} is what {name!r} says now"
        )
        found.mapping[role] = new
        if new not in real:
            found.migration.append(f"ALTER TABLE {table} ADD COLUMN {new} {mend.type}")

    def default_status(self, altered: str, column: str, waiting: str, found: Findings) -> None:
        found.problems[-1] += ", and new ones too, since SQLite gives a column its default with all rows"

    def surrogate(self, table: str, name: str, column: str, together: Sequence[str]) -> list[str]:
        """It is made of the primary key: a table without one has nothing that stays with a row."""
        if not together:
            return []
        return [
            f"ALTER TABLE {table} ADD COLUMN {column} TEXT GENERATED ALWAYS AS (json_array({', '.join(together)})) VIRTUAL",
            f"CREATE UNIQUE INDEX {name} ON {table} ({column})",
        ]
