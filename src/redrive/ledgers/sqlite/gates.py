"""Gates on SQLite: whoever writes has the whole file, so a claim reads gates, asks `core.gates`, and writes what it says."""

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    bindparam,
    literal_column,
    null,
    select,
    text,
    tuple_,
    union_all,
)

from redrive.core.decide import Settlement
from redrive.core.gates import (
    TENANTS,
    BreakerState,
    DueRow,
    Gate,
    GateRule,
    WaitsFor,
    claimed,
    in_order,
    rested,
    retry_room,
    room,
    settled,
    sum_up,
)
from redrive.core.task import TaskId
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.gate_rows import GateAsk, GateRows, NamedGate, gates_and_rules, read_gate, write_gates
from redrive.ledgers.sql.predicates import quoted
from redrive.ledgers.sql.seam import Dialect, Parameters
from redrive.ledgers.sql.times import Instant

TEXT_SLACK = timedelta(microseconds=100)
"""Times in text are compared as days in a float: a gate that wakes up so much earlier never misses the instant at which a task is due."""

_AFTER = text("SELECT min(tenant) FROM redrive_gate WHERE ledger = :ledger AND ready AND tenant > :tenant")
_FIRST = text("SELECT min(tenant) FROM redrive_gate WHERE ledger = :ledger AND ready")
_WOKEN = (
    text(
        "SELECT name, tenant, kinds FROM redrive_gate"
        " WHERE ledger = :ledger AND NOT ready AND wake_at <= :now ORDER BY wake_at, name LIMIT :limit"
    )
    .bindparams(bindparam("now", type_=schema.gate.c.wake_at.type))
    .columns(schema.gate.c.name, schema.gate.c.tenant, schema.gate.c.kinds)
)
_READY = text(
    "SELECT name, kinds FROM redrive_gate"
    " WHERE ledger = :ledger AND ready AND tenant = :tenant ORDER BY turn_at, name LIMIT :limit"
).columns(schema.gate.c.name, schema.gate.c.kinds)
PASSED_BY_MAX = 10
"""How many times as many gates are read as are looked at, for those of kinds that nobody here knows."""

_NAMED = gates_and_rules(schema.gate.c.name.in_(bindparam("names", expanding=True)))


class SqliteGateClaim:
    """See `GateClaim`."""

    def __init__(self, dialect: Dialect, rows: GateRows) -> None:
        self._dialect = dialect
        self._rows = rows
        self._hold = rows.hold(rows.id.in_(bindparam("ids", expanding=True))).returning(*self._seen())

    def ask(self, connection: Connection, ask: GateAsk) -> tuple[Any, Parameters] | None:
        """See `GateClaim.ask`."""
        assert ask.now is not None
        names = self._looked(connection, ask)
        if not names:
            return None
        rows = connection.execute(_NAMED, {"ledger": ask.ledger, "names": names}).mappings()
        found = [read_gate(row) for row in rows]
        found.sort(key=lambda one: (one[0].turn_at, one[0].name))
        ids, after = self._take(connection, ask, ask.now, found)
        write_gates(connection, ask.ledger, after)
        return (self._hold, ask.times | {"ids": ids, "fence": ask.fence, "ledger": ask.ledger}) if ids else None

    def _seen(self) -> list[ColumnElement[Any]]:
        """What a claim saw of its gate, whose row is written before: see `GateSeen`."""
        t = schema.gate
        mine = (t.c.ledger == bindparam("ledger", type_=Text), t.c.name == self._rows.gate)
        columns = (t.c.state == quoted(BreakerState.TRIPPED), t.c.trips, t.c.refused)
        table = self._rows.id.table
        return [select(column).where(*mine).correlate(table).scalar_subquery() for column in columns]

    def discover(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """See `GateClaim.discover`: a loose scan over the gates and kinds of the index, one probe for each."""
        found: list[NamedGate] = []
        row = connection.execute(self._first_named).first()
        while row is not None:
            gate, kind, tenant = row
            there = connection.execute(_NAMED, {"ledger": ledger, "names": [gate]}).mappings().one_or_none()
            if there is None or self._overlooks(connection, there, kind, times):
                found.append(NamedGate(gate, kind, str(tenant or "")))
            row = connection.execute(self._next_named, {"after_gate": gate, "after_kind": kind}).first()
        return found

    def _overlooks(self, connection: Connection, row: Any, kind: str | None, times: Parameters) -> bool:
        gate, _ = read_gate(row)
        if kind is not None and kind not in gate.kinds:
            return True
        asked = times | {"gate": gate.name, "kind": kind, "share": 1}
        return gate.waits_for is WaitsFor.DUE and connection.execute(self._due_rows, asked).first() is not None

    @cached_property
    def _first_named(self) -> Select[Any]:
        rows = self._rows
        order = [rows.gate] if rows.kind is None else [rows.gate, rows.kind]
        others: list[Any] = [null() if one is None else one for one in (rows.kind, rows.tenant)]
        return select(rows.gate, *others).where(rows.waiting).order_by(*order).limit(1)

    @cached_property
    def _next_named(self) -> Select[Any]:
        rows, after = self._rows, bindparam("after_gate", type_=Text)
        if rows.kind is None:
            return self._first_named.where(rows.gate > after)
        return self._first_named.where(
            tuple_(rows.gate, rows.kind) > tuple_(after, bindparam("after_kind", type_=Text))
        )

    def _looked(self, connection: Connection, ask: GateAsk) -> list[str]:
        """Gates that may have something to hand out: those whose time has come, then those that are ready, tenant by tenant from
        behind the one that was served last, once around."""
        kinds = None if ask.kinds is None else frozenset(ask.kinds)
        known = {"ledger": ask.ledger, "now": ask.now, "limit": max(1, ask.limit // 2) * PASSED_BY_MAX}
        names = [
            name
            for name, tenant, there in connection.execute(_WOKEN, known)
            if tenant not in ask.busy and (kinds is None or not kinds.isdisjoint(there))
        ][: max(1, ask.limit // 2)]
        tenants = self._turns(connection, ask)
        each = max(1, ask.limit // max(1, len(tenants)))
        for tenant in tenants:
            mine = {"ledger": ask.ledger, "tenant": tenant, "limit": each * PASSED_BY_MAX}
            ready = connection.execute(_READY, mine)
            names += [name for name, there in ready if kinds is None or not kinds.isdisjoint(there)][:each]
        return names

    def _turns(self, connection: Connection, ask: GateAsk) -> list[str]:
        """Tenants with a ready gate, one probe each."""
        tenants: list[str] = []
        found = connection.execute(_AFTER, {"ledger": ask.ledger, "tenant": ask.last}).scalar()
        while found is not None and len(tenants) < ask.limit:
            tenants.append(found)
            found = connection.execute(_AFTER, {"ledger": ask.ledger, "tenant": found}).scalar()
        found = connection.execute(_FIRST, {"ledger": ask.ledger}).scalar()
        while found is not None and found <= ask.last and len(tenants) < ask.limit:
            tenants.append(found)
            found = connection.execute(_AFTER, {"ledger": ask.ledger, "tenant": found}).scalar()
        return [tenant for tenant in tenants if tenant not in ask.busy]

    def _take(
        self, connection: Connection, ask: GateAsk, now: datetime, found: Sequence[tuple[Gate, GateRule]]
    ) -> tuple[list[TaskId], list[Gate]]:
        """What is to be held, and the gates as they are then."""
        rooms = [room(gate, rule, now, ask.limit) for gate, rule in found]
        share = max(1, ask.limit // max(1, sum(amount > 0 for amount in rooms)))
        shared = [gate for (gate, _), amount in zip(found, rooms, strict=True) if amount and self._is_shared(gate)]
        turns = {gate.name: self._turns_inside(connection, ask, gate, share) for gate in shared}
        each = max(1, share // max([1, *map(len, turns.values())]))
        ranked: list[tuple[int, int, int, TaskId]] = []
        for at, ((gate, rule), amount) in enumerate(zip(found, rooms, strict=True)):
            if amount:
                due = (
                    self._due_in_turns(connection, ask, gate, turns[gate.name], each)
                    if self._is_shared(gate)
                    else self._due(connection, ask, gate, share)
                )
                picked = in_order(due, amount, retry_room(gate, rule, now, ask.limit), ask.favoured)
                ranked += [(nth, at, row.band, row.id) for nth, row in enumerate(picked)]
        taken = sorted(ranked, key=lambda one: one[:2])[: ask.limit]
        first_tries = [sum(at == mine and band % 2 == 1 for _, at, band, _ in taken) for mine in range(len(found))]
        retries = [sum(at == mine and band % 2 == 0 for _, at, band, _ in taken) for mine in range(len(found))]
        after = []
        for at, (gate, rule) in enumerate(found):
            new = claimed(gate, rule, now, ask.fence, first_tries=first_tries[at], retries=retries[at])
            if rooms[at] and not first_tries[at] and not retries[at]:
                new = rested(new, rule, now, self._soonest(connection, gate, now))
            after.append(new)
        return [id_ for _, _, _, id_ in taken], after

    def _due(self, connection: Connection, ask: GateAsk, gate: Gate, share: int) -> list[DueRow]:
        """Up to so many of what is due of each kind in each band."""
        found = []
        for kind in self._kinds_of(gate, ask.kinds):
            asked = ask.times | {"gate": gate.name, "share": share, "kind": kind}
            found += [DueRow(0, band, due, id_) for id_, band, due in connection.execute(self._due_rows, asked)]
        return found

    # --- turns inside a gate that tenants share -----------------------------------------------------------------------

    def _is_shared(self, gate: Gate) -> bool:
        return self._rows.turn is not None and gate.tenant == TENANTS

    def _turns_inside(self, connection: Connection, ask: GateAsk, gate: Gate, most: int) -> list[str]:
        """Tenants with something due behind the gate, from behind the one that was served last, once around: one probe each."""
        asked = ask.times | {"gate": gate.name, "kinds": list(self._kinds_of(gate, ask.kinds)), "last": ask.last}
        tenants: list[str] = []
        for first, following in ((self._turn_after, self._turn_after), (self._first_turn, self._turn_between)):
            found = connection.execute(first, asked | {"tenant": ask.last}).scalar()
            while found is not None and len(tenants) < most:
                if found not in ask.busy:
                    tenants.append(found)
                found = connection.execute(following, asked | {"tenant": found}).scalar()
        return tenants

    def _due_in_turns(
        self, connection: Connection, ask: GateAsk, gate: Gate, tenants: Sequence[str], each: int
    ) -> list[DueRow]:
        """The same as `_due` of each tenant."""
        found = []
        for turn, tenant in enumerate(tenants):
            for kind in self._kinds_of(gate, ask.kinds):
                asked = ask.times | {"gate": gate.name, "share": each, "kind": kind, "tenant": tenant}
                rows = connection.execute(self._due_rows_of_tenant, asked)
                found += [DueRow(turn, band, due, id_) for id_, band, due in rows]
        return found

    @cached_property
    def _turn_after(self) -> Select[Any]:
        return self._turn(after=True)

    @cached_property
    def _first_turn(self) -> Select[Any]:
        return self._turn(around=True)

    @cached_property
    def _turn_between(self) -> Select[Any]:
        return self._turn(after=True, around=True)

    def _turn(self, *, after: bool = False, around: bool = False) -> Select[Any]:
        rows = self._rows
        assert rows.turn is not None
        where = [rows.gate == bindparam("gate", type_=Text), rows.waiting]
        where.append(rows.due <= self._dialect.present(rows.due_column))
        if rows.kind is not None:
            where.append(rows.kind.in_(bindparam("kinds", expanding=True)))
        if after:
            where.append(rows.turn > bindparam("tenant", type_=Text))
        if around:
            where.append(rows.turn <= bindparam("last", type_=Text))
        return select(rows.turn).where(*where).order_by(rows.turn).limit(1)

    def _kinds_of(self, gate: Gate, kinds: Sequence[str] | None = None) -> Sequence[str | None]:
        if self._rows.kind is None:
            return [None]
        return gate.kinds if kinds is None else [kind for kind in gate.kinds if kind in kinds]

    def _soonest(self, connection: Connection, gate: Gate, now: datetime) -> datetime | None:
        """When the first of the gate's tasks is due, those of kinds that nobody here knows too."""
        found = []
        for kind in self._kinds_of(gate):
            asked = self._dialect.times(now) | {"gate": gate.name, "kind": kind}
            found += [seconds for (seconds,) in connection.execute(self._first_rows, asked) if seconds is not None]
        if not found:
            return None
        exact = isinstance(self._rows.due_column.type, Instant)
        left = timedelta(microseconds=math.ceil(max(-1.0, min(found)) * 1e6))
        return now + (left if exact else left - TEXT_SLACK)

    def _band(self, band: int) -> list[Any]:
        rows = self._rows
        where = [rows.gate == bindparam("gate", type_=Text), rows.band == literal_column(str(band)), rows.waiting]
        return where if rows.kind is None else [*where, rows.kind == bindparam("kind", type_=Text)]

    @cached_property
    def _due_rows(self) -> Select[Any]:
        return self._due_where()

    @cached_property
    def _due_rows_of_tenant(self) -> Select[Any]:
        assert self._rows.turn is not None
        return self._due_where(self._rows.turn == bindparam("tenant", type_=Text))

    def _due_where(self, *mine: ColumnElement[bool]) -> Select[Any]:
        rows, limit = self._rows, bindparam("share", type_=Integer)
        due = rows.due <= self._dialect.present(rows.due_column)
        parts = [
            select(rows.id.label("id"), literal_column(str(band), Integer).label("band"), rows.due.label("due"))
            .where(*self._band(band), *mine, due)
            .order_by(rows.due)
            .limit(limit)
            .subquery(f"band_{band}")
            for band in rows.bands
        ]
        return select(union_all(*(select(part) for part in parts)).subquery("due_rows"))

    @cached_property
    def _first_rows(self) -> Select[Any]:
        rows = self._rows
        parts = []
        for band in rows.bands:
            due = select(rows.due.label("due")).where(*self._band(band)).order_by(rows.due).limit(1)
            head = due.subquery(f"band_{band}")
            parts.append(select(self._dialect.seconds_until(head.c.due, rows.due_column, signed=True).label("seconds")))
        return select(union_all(*parts).subquery("first_rows"))


def settle_gates(connection: Connection, ledger: str, settlements: Sequence[Settlement], now: datetime) -> None:
    """Write what settlements say of their gates."""
    of_gate: dict[str, list[Settlement]] = defaultdict(list)
    for one in settlements:
        if one.claim.task.gate is not None:
            of_gate[one.claim.task.gate].append(one)
    if not of_gate:
        return
    rows = connection.execute(_NAMED, {"ledger": ledger, "names": list(of_gate)}).mappings().all()
    after = []
    for row in rows:
        gate, rule = read_gate(row)
        after.append(settled(gate, rule, now, sum_up(of_gate[gate.name], gate.probe_claim)))
    write_gates(connection, ledger, after)
