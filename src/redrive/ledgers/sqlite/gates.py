"""How SQLite finds the rows of gates: see `sql/gate_reading.py`. Whoever writes here has the whole file."""

import json
import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    func,
    literal_column,
    null,
    select,
    text,
    tuple_,
    union_all,
)
from sqlalchemy.sql.util import ClauseAdapter

from redrive.core.gates import Gate, WaitsFor
from redrive.core.task import TaskId
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.gate_reading import ReadingGateClaim
from redrive.ledgers.sql.gate_rows import GateAsk, NamedGate
from redrive.ledgers.sql.seam import Parameters
from redrive.ledgers.sql.times import Instant

TEXT_SLACK = timedelta(microseconds=100)
"""Times in text are compared as days in a float: a gate that wakes up so much earlier never misses the instant at which a task is due."""

_READY = Compiled(
    text(
        "SELECT g.tenant, g.name, g.kinds FROM json_each(:tenants) AS turn JOIN redrive_gate AS g ON g.rowid IN"
        " (SELECT x.rowid FROM redrive_gate AS x WHERE x.ledger = :ledger AND x.ready AND x.tenant = turn.value"
        " ORDER BY x.turn_at, x.name LIMIT :limit) ORDER BY turn.key, g.turn_at, g.name"
    ).columns(schema.gate.c.tenant, schema.gate.c.name, schema.gate.c.kinds)
)
"""Of each tenant those that were served longest ago."""


class SqliteGateClaim(ReadingGateClaim):
    """See `GateClaim`."""

    def _present(self, connection: Connection, ask: GateAsk) -> datetime:  # noqa: ARG002
        assert ask.now is not None
        return ask.now

    def _ready(self, connection: Connection, ledger: str, tenants: Sequence[str], each: int) -> Iterable[Any]:
        return _READY.rows(connection, {"ledger": ledger, "tenants": json.dumps(tenants), "limit": each})

    def _among(self) -> ColumnElement[bool]:
        return self._rows.id.in_(select(self._ids.rows.c.id))

    def _listed(self, ids: Sequence[TaskId]) -> Parameters:
        return self._ids.parameters([(id_,) for id_ in ids])

    @cached_property
    def _ids(self) -> Batch:
        """As one text: a statement with a list in it would be SQLAlchemy's to run."""
        return Batch(self._dialect, {"id": self._rows.id.type})

    def _named(self, named: Sequence[tuple[str, str | None]]) -> Parameters:
        return {"named": json.dumps(named)}

    def discover(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """See `GateClaim.discover`: a loose scan over the gates and kinds of the index, one probe for each."""
        seen = connection.execute(self._all_named, {"ledger": ledger}).all()
        missing, asleep = list[NamedGate](), list[NamedGate]()
        for gate, kind, tenant, kinds, waits_for in seen:
            one = NamedGate(gate, kind, str(tenant or ""))
            if kinds is None or (kind is not None and kind not in kinds):
                missing.append(one)
            elif waits_for == WaitsFor.DUE:
                asleep.append(one)
        asked = times | self._named([(one.gate, one.kind) for one in asleep]) | {"share": 1}
        due = {gate for gate, *_ in self._due_rows.rows(connection, asked)} if asleep else frozenset()
        return missing + [one for one in asleep if one.gate in due]

    def discover_lately(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:  # noqa: ARG002
        """See `GateClaim.discover_lately`: nobody adds while somebody claims, so each sees what the other has done."""
        return []

    @cached_property
    def _all_named(self) -> Select[Any]:
        """Gates and kinds of waiting rows, each with what its gate knows: a loose scan, one probe of the index for each."""
        rows, g = self._rows, schema.gate
        order = [rows.gate] if rows.kind is None else [rows.gate, rows.kind]
        at = rows.id.table.alias("at")
        onto = ClauseAdapter(at).traverse
        first = select(rows.id).where(rows.waiting).order_by(*order).limit(1)
        seen = select(first.scalar_subquery().label("id")).cte("seen", recursive=True)
        later: Any = tuple_(*order) > tuple_(*map(onto, order)) if len(order) > 1 else order[0] > onto(order[0])
        following = first.where(later).correlate(at).scalar_subquery()
        scan = seen.union_all(select(following).select_from(seen.join(at, onto(rows.id) == seen.c.id)))
        others = [null() if one is None else onto(one) for one in (rows.kind, rows.tenant)]
        known = and_(g.c.ledger == bindparam("ledger", type_=Text), g.c.name == onto(rows.gate))
        return select(onto(rows.gate), *others, g.c.kinds, g.c.waits_for).select_from(
            scan.join(at, onto(rows.id) == scan.c.id).outerjoin(g, known)
        )

    def _soonest(self, connection: Connection, gates: Sequence[Gate], now: datetime) -> dict[str, datetime | None]:
        found: dict[str, datetime | None] = dict.fromkeys(gate.name for gate in gates)
        asked = self._dialect.times(now) | self._with_kinds(gates)
        slack = timedelta(0) if isinstance(self._rows.due_column.type, Instant) else TEXT_SLACK
        for name, seconds in self._first_rows.rows(connection, asked) if gates else ():
            found[name] = now + timedelta(microseconds=math.ceil(max(-1.0, seconds) * 1e6)) - slack
        return found

    def _band(self, named: Any, band: int) -> list[Any]:
        """The waiting rows in a band of a gate and a kind of the batch."""
        rows = self._rows
        where = [rows.gate == _part(named, 0), rows.band == literal_column(str(band)), rows.waiting]
        return where if rows.kind is None else [*where, rows.kind == _part(named, 1)]

    @cached_property
    def _due_rows(self) -> Compiled:
        """Due rows of each gate and kind, from the head of each band: so many are read, however many there are."""
        rows, limit = self._rows, bindparam("share", type_=Integer)
        due = rows.due <= self._dialect.present(rows.due_column)
        named, table = _batch(), rows.id.table
        taken = table.alias("taken")
        onto = ClauseAdapter(taken).traverse
        parts = []
        for band in rows.bands:
            head = select(rows.id).where(*self._band(named, band), due).order_by(rows.due).limit(limit)
            parts.append(
                select(
                    _part(named, 0).label("gate"), onto(rows.id).label("id"),
                    literal_column(str(band), Integer).label("band"), onto(rows.due).label("due"),
                ).select_from(named.join(taken, onto(rows.id).in_(head.correlate(named).scalar_subquery())))
            )  # fmt: skip
        return Compiled(select(union_all(*parts).subquery("due_rows")))

    @cached_property
    def _first_rows(self) -> Compiled:
        """How long until the first row of each gate is due; none of gates without rows."""
        rows, named = self._rows, _batch()
        parts = []
        for band in rows.bands:
            head: Any = select(rows.due).where(*self._band(named, band)).order_by(rows.due).limit(1)
            until = self._dialect.seconds_until(head.correlate(named).scalar_subquery(), rows.due_column, signed=True)
            parts.append(select(_part(named, 0).label("gate"), until.label("seconds")).select_from(named))
        heads = union_all(*parts).subquery("heads")
        soonest = func.min(heads.c.seconds)
        return Compiled(select(heads.c.gate, soonest).group_by(heads.c.gate).having(soonest.is_not(None)))


def _batch() -> Any:
    """Gates and kinds, given as one JSON text."""
    return func.json_each(bindparam("named", type_=Text)).table_valued("value", name="named")


def _part(named: Any, position: int) -> ColumnElement[str]:
    return func.json_extract(named.c.value, literal_column(f"'$[{position}]'"), type_=Text)
