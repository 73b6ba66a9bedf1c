"""What is worth knowing about an adopted table that fits: rows that are left alone, and values that do not come back as they were.

None of it stops a start. It is said in the log when the table is opened, and by `redrive doctor`; `redrive adopt` says all of it.
"""

import json
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Select, String, Text, cast, inspect, null, or_, select

from redrive.core.table import LedgerTable
from redrive.ledgers.adopt.forms import form_of
from redrive.ledgers.sql.predicates import quoted

ROWS_AT_START = 10_000
"""How many rows are looked at when a table is opened: a start does not read a table of millions."""
WORDS_SHOWN_MAX = 5
SAMPLE = 20


def notices(
    connection: Connection, ledger_table: LedgerTable, table: FromClause, rows_max: int | None = None
) -> list[str]:
    """What a person should know, a sentence each. With `rows_max` among so many rows, and only what does harm."""
    return [
        *_strange_rows(connection, ledger_table, table, rows_max),
        *_payload(connection, ledger_table, table, harm_only=rows_max is not None),
    ]


def _strange_rows(
    connection: Connection, ledger_table: LedgerTable, table: FromClause, rows_max: int | None
) -> list[str]:
    named = {column.name: column for column in table.c}
    status, words = named[ledger_table.status], ledger_table.words.all()
    kind: Any = named[ledger_table.kind] if ledger_table.kind is not None else quoted("")
    # As text: a word that a number or an enum cannot be would be an error, and here it is a question.
    few: Select[Any] = select(cast(status, Text).label("status"), kind.label("kind")).select_from(table)
    rows = (few if rows_max is None else few.limit(rows_max)).subquery("few")
    c = rows.c
    said = []
    unknown = select(c.status).where(or_(c.status.is_(null()), c.status.not_in([quoted(word) for word in words])))
    found = list(connection.execute(unknown.distinct().limit(WORDS_SHOWN_MAX + 1)).scalars())
    strange = sorted(repr(str(word)) for word in found if word is not None)
    if strange:
        shown = ", ".join(strange[:WORDS_SHOWN_MAX]) + (" and others" if len(strange) > WORDS_SHOWN_MAX else "")
        said.append(f"rows whose {ledger_table.status!r} is {shown} are left alone: Words names {', '.join(words)}")
    if None in found:
        said.append(
            f"rows without a {ledger_table.status!r} (NULL) are left alone: give them one of {', '.join(words)}"
        )
    if ledger_table.kind is not None:
        waiting = c.status == quoted(ledger_table.words.waiting)
        if connection.execute(select(c.status).where(waiting, c.kind.is_(null())).limit(1)).first() is not None:
            said.append(
                f"waiting rows without a {ledger_table.kind!r} (NULL) are never claimed: give them a kind, or map kind=None "
                "if one handler is for all rows"
            )
    return said


def _payload(connection: Connection, ledger_table: LedgerTable, table: FromClause, *, harm_only: bool) -> list[str]:
    """Where a payload does not come back as it went in."""
    if ledger_table.payload is None:
        return []
    name = ledger_table.payload
    columns = inspect(connection).get_columns(ledger_table.name, schema=ledger_table.schema)
    real = next(column["type"] for column in columns if column["name"] == name)
    notice = form_of(connection).payload_notice(name, real, harm_only=harm_only)
    if notice is not None:
        return [notice]
    if isinstance(real, String) and holds_json(connection, table, name) is False:
        return [
            f"column {name!r} (payload) holds text that is not JSON: handlers get it as text. Map payload=None to get "
            "the columns of the row as a dict"
        ]
    return []


def holds_json(connection: Connection, table: FromClause, name: str) -> bool | None:
    """Whether the values of a text column are JSON objects or lists, as far as a few rows tell; None if there are none."""
    column: ColumnElement[Any] = next(column for column in table.c if column.name == name)
    few = select(column).select_from(table).where(column.is_not(None)).limit(SAMPLE)
    texts = connection.execute(few).scalars().all()
    return all(_is_json(one) for one in texts) if texts else None


def _is_json(value: Any) -> bool:
    if not isinstance(value, str):  # decoded already, or not text at all
        return isinstance(value, dict | list)
    try:
        return isinstance(json.loads(value), dict | list)
    except (ValueError, RecursionError):
        return False
