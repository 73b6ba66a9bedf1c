"""Rows with gates, and gates themselves, as the statements of both databases know them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Text, Update, and_, bindparam, select, update

from redrive.core.gate_order import BANDS
from redrive.core.gate_rules import UNLIMITED, GateRule, fits
from redrive.core.gates import BreakerState, Gate, WaitsFor
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.predicates import Predicates

_GATE = [field.name for field in fields(Gate)]
KEPT = ("name", "rule", "tenant", "kinds")
"""What claims and settlements leave as it is."""


@dataclass(frozen=True, slots=True)
class GateRows:
    """The waiting rows of a ledger's table that have a gate."""

    id: ColumnElement[Any]
    gate: ColumnElement[str]
    gate_column: ColumnElement[Any]
    kind: ColumnElement[str] | None
    tenant: ColumnElement[Any] | None
    band: ColumnElement[int]
    bands: Sequence[int]
    """Those that the table can tell apart."""
    waiting: ColumnElement[bool]
    due: ColumnElement[Any]
    due_column: ColumnElement[Any]
    turn: ColumnElement[str] | None
    """Whose turn a row is inside a gate that tenants share, where that is possible."""
    hold: Callable[[ColumnElement[bool]], Update]
    """Hold the rows where this is true."""

    @classmethod
    def of(cls, rows: Predicates, hold: Callable[[ColumnElement[bool]], Update]) -> "GateRows":
        """Of a table that has gates."""
        table = rows.ledger_table
        return cls(
            rows.column("id"), rows.gate(), rows.column(table.gated_by or "gate"), rows.column("kind") if table.kind else None,
            rows.column("tenant") if table.tenant else None, rows.band(),
            range(BANDS) if table.priority else (2, 3), rows.gated(), rows.gated_due(), rows.column("due"),
            rows.turn() if rows.has_turns else None, hold,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedGate:
    """A gate that tasks name, one of their kinds, and whose they are."""

    gate: str
    kind: str | None
    tenant: str


@dataclass(frozen=True, slots=True)
class GatesInUse:
    """The gates of a ledger that somebody has limited, by pattern, or paused, by name."""

    patterns: frozenset[str]
    paused: frozenset[str]

    def has(self, name: str) -> bool:
        """Whether a gate is one of them."""
        return name in self.paused or any(fits(pattern, name) for pattern in self.patterns)

    def __bool__(self) -> bool:
        return bool(self.patterns or self.paused)


class GatesMade(NamedTuple):
    """What whoever has added tasks learns of their gates."""

    written: int
    """How many were made, or are looked at now."""
    shut: frozenset[str]
    """Those that keep tasks back which are due: their destination is down or has asked for it, or a person has paused them."""


class Gated(Protocol):
    """A ledger whose rows have gates, as a system knows it that inserts its rows itself."""

    def make_gates(self, connection: Connection, found: Iterable[NamedGate]) -> GatesMade:
        """Make gates that are missing, and have those looked at that sleep until a task is due.

        They stay locked until the commit, so it must follow at once: claims pass a locked gate by.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAsk:
    """What is asked of the gates of a ledger."""

    ledger: str
    limit: int
    kinds: Sequence[str] | None
    fence: UUID
    last: str
    """The tenant that was served last."""
    busy: Sequence[str]
    """Tenants that are not to be served."""
    favoured: int
    now: datetime | None
    times: dict[str, Any]
    """The parameters of the present and of the lease."""


def gates_and_rules(where: ColumnElement[bool]) -> Select[Any]:
    """Gates of a ledger with their limits, to be read by `read_gate`."""
    t, r = schema.gate, schema.gate_rule
    mine = and_(r.c.ledger == t.c.ledger, r.c.pattern == t.c.rule)
    columns = [t.c[name] for name in _GATE] + [column.label(f"rule_{column.name}") for column in r.c]
    return (
        select(*columns).select_from(t.outerjoin(r, mine)).where(t.c.ledger == bindparam("ledger", type_=Text), where)
    )


def read_gate(row: RowMapping) -> tuple[Gate, GateRule]:
    """A gate and its limits from a row of `gates_and_rules`."""
    values = {name: row[name] for name in _GATE}
    values["kinds"] = tuple(values["kinds"])
    values["state"] = BreakerState(values["state"])
    values["waits_for"] = None if values["waits_for"] is None else WaitsFor(values["waits_for"])
    return Gate(**values), read_rule_row(row) if row["rule_pattern"] is not None else UNLIMITED


_NAMED = gates_and_rules(schema.gate.c.name.in_(bindparam("names", expanding=True)))


def read_gates(connection: Connection, ledger: str, names: Sequence[str]) -> list[tuple[Gate, GateRule]]:
    """Gates with their limits, by their names."""
    rows = connection.execute(_NAMED, {"ledger": ledger, "names": list(names)}).mappings()
    return [read_gate(row) for row in rows]


def read_rule_row(row: Mapping[Any, Any]) -> GateRule:
    """The limits in the columns of a rule, each with a `rule_` before its name."""
    return GateRule(
        **{name: row[f"rule_{name}"] for name in ("concurrency", "rate", "burst", "failures", "share", "budget")},
        rate_span=timedelta(seconds=row["rule_rate_seconds"]),
        within=timedelta(seconds=row["rule_within_seconds"]),
        probe=timedelta(seconds=row["rule_probe_seconds"]),
    )


def rule_values(rule: GateRule) -> dict[str, Any]:
    """The limits as the columns of a rule."""
    return {
        **{name: getattr(rule, name) for name in ("concurrency", "rate", "burst", "failures", "share", "budget")},
        "rate_seconds": rule.rate_span.total_seconds(),
        "within_seconds": rule.within.total_seconds(),
        "probe_seconds": rule.probe.total_seconds(),
    }


def gate_values(gate: Gate) -> dict[str, Any]:
    """All columns of a gate but its ledger."""
    return {name: list(gate.kinds) if name == "kinds" else getattr(gate, name) for name in _GATE}


_t = schema.gate
WRITE = (
    update(_t)
    .where(_t.c.ledger == bindparam("in_ledger", type_=Text), _t.c.name == bindparam("of_name", type_=Text))
    .values({name: bindparam(f"new_{name}", type_=_t.c[name].type) for name in _GATE if name not in KEPT})
)
"""Write what changes in a gate: see `write_gates`."""


def write_gates(connection: Connection, ledger: str, gates: Sequence[Gate]) -> None:
    """Write gates that nobody else can have changed since they were read."""
    rows = [
        {"in_ledger": ledger, "of_name": gate.name}
        | {f"new_{name}": getattr(gate, name) for name in _GATE if name not in KEPT}
        for gate in gates
    ]
    if rows:
        connection.execute(WRITE, rows)
