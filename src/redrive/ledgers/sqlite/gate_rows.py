"""Gates as SQLite's driver has them: a claim of a hundred tasks may read and write a hundred gates, and SQLAlchemy's way takes four
times as long for each."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Boolean, Connection, Uuid

from redrive.core.gate_rules import UNLIMITED, GateRule
from redrive.core.gates import BreakerState, Gate, WaitsFor
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.gate_rows import KEPT, read_rule_row
from redrive.ledgers.sql.times import EPOCH, MICROSECOND, Instant

_GATE = [field.name for field in fields(Gate)]
_WRITTEN = [name for name in _GATE if name not in KEPT]
_RULE = [column.name for column in schema.gate_rule.c]

_READ = f"SELECT {', '.join(_GATE)} FROM redrive_gate WHERE ledger = ? AND name IN (SELECT value FROM json_each(?))"  # noqa: S608 - names of columns
_NAMED = "SELECT rule FROM redrive_gate WHERE ledger = ? AND name IN (SELECT value FROM json_each(?))"
_RULES = f"SELECT {', '.join(_RULE)} FROM redrive_gate_rule WHERE ledger = ? AND pattern IN ({_NAMED})"  # noqa: S608
_WRITE = f"UPDATE redrive_gate SET {', '.join(f'{name} = ?' for name in _WRITTEN)} WHERE ledger = ? AND name = ?"  # noqa: S608

Cell = Callable[[Any], Any]


def _instant(stored: int) -> datetime:
    return EPOCH + stored * MICROSECOND


def _stored(instant: datetime) -> int:
    return (instant - EPOCH) // MICROSECOND


def _readers() -> list[tuple[int, Cell]]:
    """Which columns are not what the driver gives, and how they are read."""
    told: dict[str, Cell] = {
        "kinds": lambda stored: tuple(json.loads(stored)), "state": BreakerState, "waits_for": WaitsFor,
    }  # fmt: skip
    found: list[tuple[int, Cell]] = []
    for place, name in enumerate(_GATE):
        kind = schema.gate.c[name].type
        if isinstance(kind, Instant):
            found.append((place, _instant))
        elif isinstance(kind, Uuid):
            found.append((place, UUID))
        elif isinstance(kind, Boolean):
            found.append((place, bool))
        elif name in told:
            found.append((place, told[name]))
    return found


def _writers() -> list[tuple[int, Cell]]:
    """The same of those that are written; numbers and words the driver takes as they are."""
    found: list[tuple[int, Cell]] = []
    for place, name in enumerate(_WRITTEN):
        kind = schema.gate.c[name].type
        if isinstance(kind, Instant):
            found.append((place, _stored))
        elif isinstance(kind, Uuid):
            found.append((place, lambda uuid: uuid.hex))
    return found


_READERS, _WRITERS = _readers(), _writers()


def read_gates(connection: Connection, ledger: str, names: Sequence[str]) -> list[tuple[Gate, GateRule]]:
    """Gates with their limits."""
    asked = ledger, json.dumps(list(names))
    rules = {
        row[_RULE.index("pattern")]: read_rule_row(
            {f"rule_{name}": cell for name, cell in zip(_RULE, row, strict=True)}
        )
        for row in connection.exec_driver_sql(_RULES, (ledger, *asked))
    }
    found = []
    for row in connection.exec_driver_sql(_READ, asked):
        cells = list(row)
        for place, read in _READERS:
            if cells[place] is not None:
                cells[place] = read(cells[place])
        gate = Gate(**dict(zip(_GATE, cells, strict=True)))
        found.append((gate, UNLIMITED if gate.rule is None else rules.get(gate.rule, UNLIMITED)))
    return found


def write_gates(connection: Connection, ledger: str, gates: Sequence[Gate]) -> None:
    """Write gates, in the transaction that has read them."""
    rows = []
    for gate in gates:
        cells = [getattr(gate, name) for name in _WRITTEN]
        for place, store in _WRITERS:
            if cells[place] is not None:
                cells[place] = store(cells[place])
        rows.append((*cells, ledger, gate.name))
    if rows:
        connection.exec_driver_sql(_WRITE, rows)
