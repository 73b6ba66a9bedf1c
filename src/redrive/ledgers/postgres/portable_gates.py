"""How the portable form finds the rows of gates: see `sql/gate_reading.py`. Looks only read, as PostgreSQL's own do."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Integer, Select, Text, any_, bindparam, func, select, true
from sqlalchemy.dialects.postgresql import ARRAY

from redrive.core.gates import Gate
from redrive.ledgers.postgres.overlooked import found_gates, heads, missed, overlooked
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.gate_reading import ReadingGateClaim
from redrive.ledgers.sql.gate_rows import GateAsk, GateRows, NamedGate
from redrive.ledgers.sql.seam import Dialect, Parameters
from redrive.ledgers.sql.times import Instant

_g = schema.gate


class PortableGateClaim(ReadingGateClaim):
    """See `GateClaim`."""

    def __init__(self, dialect: Dialect, rows: GateRows) -> None:
        super().__init__(dialect, rows)
        self._batch = Batch(dialect, {"gate": Text(), "kind": Text()})
        self._overlooked = overlooked(dialect, rows)
        self._missed = missed(dialect, rows)

    def discover(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """See `GateClaim.discover`."""
        return found_gates(connection, self._overlooked, ledger, times)

    def discover_lately(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """See `GateClaim.discover_lately`."""
        return found_gates(connection, self._missed, ledger, times)

    def _present(self, connection: Connection, ask: GateAsk) -> datetime:
        now: datetime = ask.now or connection.execute(select(self._dialect.now())).scalar_one()
        return now

    def _ready(self, connection: Connection, ledger: str, tenants: Sequence[str], each: int) -> Iterable[Any]:
        asked = {"ledger": ledger, "tenants": list(tenants), "each": each}
        place = {tenant: nth for nth, tenant in enumerate(tenants)}
        return sorted(connection.execute(_READY, asked).all(), key=lambda row: place[row.tenant])

    def _named(self, named: Sequence[tuple[str, str | None]]) -> Parameters:
        return self._batch.parameters(named or [(None, None)])

    @cached_property
    def _due_rows(self) -> Compiled:
        rows, named = self._rows, self._batch.rows
        bands, head = heads(rows, named.c.gate, named.c.kind)
        head = head.where(rows.due <= self._dialect.present(rows.due_column)).limit(bindparam("share", type_=Integer))
        due = head.correlate(named, bands).lateral("due_rows")
        found = select(named.c.gate, due.c.id, due.c.band, due.c.due)
        ordered = found.select_from(named.join(bands, true()).join(due, true())).order_by(named.c.gate, due.c.due)
        return Compiled(ordered)

    def _soonest(self, connection: Connection, gates: Sequence[Gate], now: datetime) -> dict[str, datetime | None]:  # noqa: ARG002
        rows = connection.execute(self._first_rows, self._with_kinds(gates)).all() if gates else ()
        return dict.fromkeys(gate.name for gate in gates) | {row[0]: row[1] for row in rows}

    @cached_property
    def _first_rows(self) -> Select[Any]:
        named = self._batch.rows
        bands, head = heads(self._rows, named.c.gate, named.c.kind)
        first = head.limit(1).correlate(named, bands).lateral("first_rows")
        soonest = func.min(first.c.due, type_=Instant)
        found = select(named.c.gate, soonest).select_from(named.join(bands, true()).join(first, true()))
        return found.group_by(named.c.gate)


def _build_ready() -> Select[Any]:
    nth = func.row_number().over(partition_by=_g.c.tenant, order_by=[_g.c.turn_at, _g.c.name])
    mine = (
        _g.c.ledger == bindparam("ledger", type_=Text),
        _g.c.ready,
        _g.c.tenant == any_(bindparam("tenants", type_=ARRAY(Text))),
    )
    ranked = select(_g.c.tenant, _g.c.name, _g.c.kinds, nth.label("nth")).where(*mine).subquery("ranked")
    found = select(ranked.c.tenant, ranked.c.name, ranked.c.kinds).where(
        ranked.c.nth <= bindparam("each", type_=Integer)
    )
    return found.order_by(ranked.c.nth)


_READY = _build_ready()
