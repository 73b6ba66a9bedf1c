"""Tables of somebody's on SQLite: any column may hold anything, and none can be changed."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import JSON, Column, Connection, Dialect, Integer, Numeric, String, Text, text
from sqlalchemy.sql.sqltypes import NULLTYPE, DateTime
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.core.table import LedgerTable
from redrive.ledgers.adopt.form import TIMES, Findings, Mend, Read, UuidText, no_time, unix_seconds, usual_ddl_type
from redrive.ledgers.sql.json_text import JsonText
from redrive.ledgers.sql.mapped import ForeignKey
from redrive.ledgers.sql.times import IsoText, SqliteDatetime


class WholeNumber(TypeDecorator[int]):
    """A count on SQLite, which keeps any text in a column of numbers: what is not a number is refused when it is read."""

    impl = Integer
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return lambda value: value if value is None or isinstance(value, int) else int(value)


class OnSqlite:
    """See `Form`."""

    new_id = "integer"
    time_type: TypeEngine[Any] = IsoText()
    fence_type: TypeEngine[Any] = UuidText()
    surrogate_type: TypeEngine[Any] = Text()

    def indexes(self, connection: Connection, ledger_table: LedgerTable) -> set[str]:
        """See `Form.indexes`."""
        asked = text("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = :table")
        return set(connection.execute(asked, {"table": ledger_table.name}).scalars())

    def has_unique_index(self, connection: Connection, name: str, schema: str | None, column: str) -> bool:
        """See `Form.has_unique_index`."""
        asked = text(
            'SELECT count(*) FROM pragma_index_list(:table) AS list WHERE list."unique" AND NOT list.partial AND '
            "(SELECT json_group_array(name) FROM pragma_index_info(list.name)) = json_array(:column)"
        )
        return bool(connection.execute(asked, {"table": name, "column": column}).scalar())

    def pointing_at(self, connection: Connection, ledger_table: LedgerTable) -> list[ForeignKey]:
        """See `Form.pointing_at`. SQLAlchemy does not see what is said behind the REFERENCES of a column."""
        asked = text(
            'SELECT child.name, json_group_array(key."from"), json_group_array(coalesce(key."to", :id)) '
            "FROM sqlite_schema AS child JOIN pragma_foreign_key_list(child.name) AS key "
            "WHERE child.type = 'table' AND lower(key.\"table\") = lower(:table) AND key.on_delete IN ('NO ACTION', 'RESTRICT') "
            "GROUP BY child.name, key.id"
        )
        rows = connection.execute(asked, {"table": ledger_table.name, "id": ledger_table.id_column})
        return [ForeignKey(child, None, json.loads(own), json.loads(referred)) for child, own, referred in rows]

    def ddl_type(self, role: str) -> str:
        """See `Form.ddl_type`."""
        return "TEXT" if role in TIMES or role == "claim_id" else usual_ddl_type(role)

    def read_time(self, role: str, real: TypeEngine[Any], name: str, quoted: str) -> Read:
        """See `Form.read_time`."""
        if isinstance(real, DateTime):
            return SqliteDatetime(), None, None
        if isinstance(real, String):
            return IsoText(), None, None
        mend = None
        if isinstance(real, Numeric | Integer):
            mend = Mend("TEXT", f"strftime('%Y-%m-%dT%H:%M:%fZ', {unix_seconds(quoted)}, 'unixepoch')")
        return IsoText(), no_time(role, real, name), mend

    def holds_fence(self, real: TypeEngine[Any]) -> bool:
        """See `Form.holds_fence`: texts are kept whole, whatever length a column names."""
        return isinstance(real, String)

    def read_payload(self, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """See `Form.read_payload`."""
        return JsonText()

    def read_number(self, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """See `Form.read_number`."""
        return WholeNumber()

    def read_other(self, role: str | None, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """See `Form.read_other`. Whatever was written is kept: columns are handed on as they are, JSON decoded."""
        if role is not None:
            return real
        return JsonText() if isinstance(real, JSON) else NULLTYPE

    def payload_notice(self, name: str, real: TypeEngine[Any], *, harm_only: bool) -> str | None:
        """See `Form.payload_notice`."""
        if isinstance(real, String):
            return None
        return (
            f"column {name!r} (payload) is {real}, which SQLite takes for a number where it can: the payload "
            "12345678901234567890 comes back as 1.2345678901234567e+19, and 1.0 as 1; declare it TEXT to keep them"
        )

    def allow_null(self, table: str, column: str, role: str) -> str | Mend:
        """See `Form.allow_null`."""
        return Mend(self.ddl_type(role), column)

    def change(
        self, table: str, column: str, name: str, role: str, mend: Mend, found: Findings, real: set[str]
    ) -> None:
        """See `Form.change`. No row is updated: what to fill in is the owner's to say."""
        new = f"redrive_{role}"
        found.problems.append(
            f"SQLite cannot change column {name!r}: name {role}={new!r} in the LedgerTable, which the migration adds, and fill it "
            f"for the rows that are to be worked on; {mend.using} is what {name!r} says now"
        )
        found.mapping[role] = new
        if new not in real:
            found.migration.append(f"ALTER TABLE {table} ADD COLUMN {new} {mend.type}")

    def default_status(self, altered: str, column: str, waiting: str, found: Findings) -> None:
        """See `Form.default_status`."""
        found.problems[-1] += ", and new ones too, since SQLite gives a column its default with all rows"

    def surrogate(self, table: str, name: str, column: str, together: Sequence[str]) -> list[str]:
        """See `Form.surrogate`. It is made of the primary key: a table without one has nothing that stays with a row."""
        if not together:
            return []
        return [
            f"ALTER TABLE {table} ADD COLUMN {column} TEXT GENERATED ALWAYS AS (json_array({', '.join(together)})) VIRTUAL",
            f"CREATE UNIQUE INDEX {name} ON {table} ({column})",
        ]

    def check_enum(
        self,
        connection: Connection,
        ledger_table: LedgerTable,
        status: Column[Any],
        found: Findings,
    ) -> bool:
        """See `Form.check_enum`: there are none."""
        return False

    def check_function(self, connection: Connection, found: Findings) -> None:
        """See `Form.check_function`: SQLite compares them by one of its own."""
