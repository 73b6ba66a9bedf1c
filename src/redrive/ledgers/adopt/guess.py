"""A first `LedgerTable` for a table that somebody names. What is not sure is not guessed: it is said, for a person to decide."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import JSON, Connection, Enum, Integer, Select, String, column, inspect, select, table

from redrive.core.column_names import (
    DEADLINES,
    KEYS,
    PAYLOADS,
    WORDS_NEEDED,
    counts_retries,
    first_of,
    usual_columns,
    usual_words,
)
from redrive.core.table import Counts, LedgerTable, Words
from redrive.errors import TableError
from redrive.ledgers.adopt.form import SURROGATE
from redrive.ledgers.adopt.forms import is_unique
from redrive.ledgers.adopt.notices import holds_json

STATUSES_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """The mapping as far as it is sure, and what a person must say."""

    table: LedgerTable
    doubts: list[str] = field(default_factory=list)
    unsaid: Sequence[str] = ()
    """The roles whose words nobody can know but a person: those in the mapping are placeholders."""


def guess(connection: Connection, name: str, schema: str | None = None) -> Guess:
    """The mapping that the table's names and types tell; what is not found keeps its default name and is reported as missing."""
    inspector = inspect(connection)
    if not inspector.has_table(name, schema=schema):
        raise TableError(name, ["there is no such table"], [])
    types = {found["name"]: found["type"] for found in inspector.get_columns(name, schema=schema)}
    roles = usual_columns(types)
    doubts: list[str] = []
    id_, key = _ids(connection, name, schema, list(types))
    payload, doubt = _payload(connection, name, schema, types)
    doubts += doubt
    words, unsaid, doubt = _words(connection, name, schema, roles.get("status"), types)
    doubts += doubt
    if "count" in roles and not counts_retries(roles["count"]):
        doubts.append(
            f"counts: {roles['count']!r} is taken for how many tries have failed; counts='attempts' if it is raised as a try starts"
        )
    late = first_of(DEADLINES, types)
    if late is not None and "deadline" not in roles:
        doubts.append(f"deadline={late!r}, if a row must not be tried any more after it")
    return Guess(
        table=LedgerTable(
            name, schema=schema, key=key, id=id_ if id_ != key else None, payload=payload, words=words,
            counts=Counts.RETRIES if counts_retries(roles.get("count", "")) else Counts.FAILURES, **roles,
        ),
        doubts=doubts,
        unsaid=unsaid,
    )  # fmt: skip


def corrected(connection: Connection, ledger_table: LedgerTable, mapping: dict[str, Any]) -> LedgerTable:
    """A mapping that somebody wrote, with the columns and words that the table really has where those named are missing.

    `mapping` is what checking it found out, by role.
    """
    try:
        sure = guess(connection, ledger_table.name, ledger_table.schema).table
    except TableError:
        return ledger_table
    columns = inspect(connection).get_columns(ledger_table.name, schema=ledger_table.schema)
    types = {found["name"]: found["type"] for found in columns}
    given, used = ledger_table.columns(), set(ledger_table.columns().values())
    changed: dict[str, Any] = {
        role: there
        for role, there in sure.columns().items()
        if role in given and given[role] not in types and there in types and there not in used
    }
    if "id" in changed and ledger_table.id is None:
        changed["key"] = changed.pop("id")
    status = types.get(changed.get("status", ledger_table.status))
    if isinstance(status, Enum):
        words = {
            role: getattr(sure.words, role)
            for role in Words.__dataclass_fields__
            if (word := getattr(ledger_table.words, role)) is not None
            and word not in status.enums
            and getattr(sure.words, role) in status.enums
        }
        changed["words"] = replace(ledger_table.words, **words)
    payload = ledger_table.payload
    if payload in types and isinstance(types[payload], String):
        held = holds_json(
            connection, table(ledger_table.name, *map(column, types), schema=ledger_table.schema), payload
        )
        if held is False:
            changed["payload"] = None
    return replace(ledger_table, **changed | mapping)


def as_code(mapping: LedgerTable, unsaid: Sequence[str] = ()) -> str:
    """The mapping as Python that can be pasted, with dots for the words that are still to be said."""
    default = LedgerTable(mapping.name)
    shown = [f'    "{mapping.name}",']
    for name in LedgerTable.__dataclass_fields__:
        value = getattr(mapping, name)
        if name in ("name", "_") or (value == getattr(default, name) and not (name == "words" and unsaid)):
            continue
        if isinstance(value, Words):
            given = ", ".join(
                f"{word}=..." if word in unsaid else f"{word}={getattr(value, word)!r}"
                for word in Words.__dataclass_fields__
                if getattr(value, word)
            )
            shown.append(f"    words=Words({given}),")
        else:
            shown.append(f"    {name}={str(value)!r},")
    return "LedgerTable(\n" + "\n".join(shown) + "\n)"


def _ids(connection: Connection, name: str, schema: str | None, there: list[str]) -> tuple[str, str]:
    """The id, which is the primary key whatever it is called, and the key: only what is unique, and else a column that is yet to be made."""
    primary = inspect(connection).get_pk_constraint(name, schema=schema)["constrained_columns"]
    unique = [one for one in there if is_unique(connection, name, schema, one)]
    id_ = primary[0] if len(primary) == 1 else first_of((SURROGATE, "id", *KEYS), unique)
    id_ = id_ or (SURROGATE if primary else "id")
    return id_, first_of(KEYS, unique) or id_


def _payload(
    connection: Connection, name: str, schema: str | None, types: dict[str, Any]
) -> tuple[str | None, list[str]]:
    chosen = first_of(PAYLOADS, types)
    if chosen is None:
        return None, []
    if isinstance(types[chosen], JSON):
        return chosen, []
    if isinstance(types[chosen], String):
        held = holds_json(connection, table(name, column(chosen), schema=schema), chosen)
        if held:
            return chosen, []
        if held is False:
            return None, []
    return None, [f"payload={chosen!r}, if it holds JSON; without it the payload is a dict of the row's columns"]


def _words(
    connection: Connection, name: str, schema: str | None, status: str | None, types: dict[str, Any]
) -> tuple[Words, Sequence[str], list[str]]:
    if status is None:
        return Words(), (), []
    real = types[status]
    known = _statuses(connection, name, schema, status, real)
    if isinstance(real, Integer):
        held = f"it holds {', '.join(known)}" if known else "it holds none yet"
        return (
            Words(),
            WORDS_NEEDED,
            [f"the numbers of {status!r} are yours to name, as in Words(waiting='0', done='2', dead='3'); {held}"],
        )
    words = usual_words(known)
    missing = [role for role in WORDS_NEEDED if role not in words]
    left = [word for word in known if word not in words.values()]
    doubts = []
    if missing:
        shown = f"; {', '.join(map(repr, left))} may mean it" if left else ""
        doubts.append(f"words: which word of {status!r} means {' and '.join(missing)} is not known{shown}")
    elif left:
        doubts.append(f"words: rows whose {status!r} is {', '.join(map(repr, left))} would be left alone")
    return Words(**words), missing, doubts


def _statuses(connection: Connection, name: str, schema: str | None, status: str, real: Any) -> Sequence[str]:
    """The words that the status column may hold, if an enum or a check says so, else those that it does hold."""
    if isinstance(real, Enum):
        return list(real.enums)
    for check in inspect(connection).get_check_constraints(name, schema=schema):
        if re.search(rf"\b{re.escape(status)}\b", check["sqltext"]) and (
            listed := re.findall(r"'((?:[^']|'')*)'", check["sqltext"])
        ):
            return [word.replace("''", "'") for word in dict.fromkeys(listed)]
    rows: Select[Any] = (
        select(column(status)).select_from(table(name, schema=schema)).distinct().limit(STATUSES_SHOWN_MAX)
    )
    return sorted(str(word) for word in connection.execute(rows).scalars() if word is not None)
