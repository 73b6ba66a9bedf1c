"""Gates on SQLite: whoever writes has the whole file, so a claim reads gates, asks `core.gates`, and writes what it says."""

import json
import math
from collections import Counter, defaultdict
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
    may_rest,
    rested,
    retry_room,
    room,
    settled,
    sum_up,
)
from redrive.core.task import TaskId
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.gate_rows import GateAsk, GateRows, NamedGate
from redrive.ledgers.sql.predicates import quoted
from redrive.ledgers.sql.seam import Dialect, Parameters
from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sqlite.gate_rows import read_gates, write_gates

TEXT_SLACK = timedelta(microseconds=100)
"""Times in text are compared as days in a float: a gate that wakes up so much earlier never misses the instant at which a task is due."""

_TENANTS = "SELECT min(tenant) FROM redrive_gate WHERE ledger = :ledger AND ready"
_TURNS = text(
    f"WITH RECURSIVE turn (tenant) AS (SELECT ({_TENANTS} AND tenant > :last)"  # noqa: S608 - all of it stands here
    f" UNION ALL SELECT ({_TENANTS} AND tenant > turn.tenant) FROM turn WHERE turn.tenant IS NOT NULL LIMIT :limit)"
    " SELECT tenant FROM turn WHERE tenant IS NOT NULL"
)
_ONCE_AROUND = text(
    f"WITH RECURSIVE turn (tenant) AS (SELECT ({_TENANTS} AND tenant <= :last)"  # noqa: S608 - all of it stands here
    f" UNION ALL SELECT ({_TENANTS} AND tenant > turn.tenant AND tenant <= :last) FROM turn WHERE turn.tenant IS NOT NULL LIMIT :limit)"
    " SELECT tenant FROM turn WHERE tenant IS NOT NULL"
)
"""Tenants with a ready gate, one probe each: those behind the one that was served last, and those up to it."""
_WOKEN = (
    text(
        "SELECT name, tenant, kinds FROM redrive_gate"
        " WHERE ledger = :ledger AND NOT ready AND wake_at <= :now ORDER BY wake_at, name LIMIT :limit"
    )
    .bindparams(bindparam("now", type_=schema.gate.c.wake_at.type))
    .columns(schema.gate.c.name, schema.gate.c.tenant, schema.gate.c.kinds)
)
_READY = text(
    "SELECT g.tenant, g.name, g.kinds FROM json_each(:tenants) AS turn JOIN redrive_gate AS g ON g.rowid IN"
    " (SELECT x.rowid FROM redrive_gate AS x WHERE x.ledger = :ledger AND x.ready AND x.tenant = turn.value"
    " ORDER BY x.turn_at, x.name LIMIT :limit) ORDER BY turn.key, g.turn_at, g.name"
).columns(schema.gate.c.tenant, schema.gate.c.name, schema.gate.c.kinds)
"""Of each tenant those that were served longest ago."""
PASSED_BY_MAX = 10
"""How many times as many gates are read as are looked at, for those of kinds that nobody here knows."""


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
        found = read_gates(connection, ask.ledger, names)
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
        seen = connection.execute(self._all_named, {"ledger": ledger}).all()
        missing, asleep = list[NamedGate](), list[NamedGate]()
        for gate, kind, tenant, kinds, waits_for in seen:
            one = NamedGate(gate, kind, str(tenant or ""))
            if kinds is None or (kind is not None and kind not in kinds):
                missing.append(one)
            elif waits_for == WaitsFor.DUE:
                asleep.append(one)
        named = json.dumps([(one.gate, one.kind) for one in asleep])
        asked = times | {"named": named, "share": 1}
        due = {gate for gate, *_ in connection.execute(self._due_rows, asked)} if asleep else frozenset()
        return missing + [one for one in asleep if one.gate in due]

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
        mine = {"ledger": ask.ledger, "tenants": json.dumps(tenants), "limit": each * PASSED_BY_MAX}
        left = dict.fromkeys(tenants, each)
        for tenant, name, there in connection.execute(_READY, mine) if tenants else ():
            if left[tenant] and (kinds is None or not kinds.isdisjoint(there)):
                left[tenant] -= 1
                names.append(name)
        return names

    def _turns(self, connection: Connection, ask: GateAsk) -> list[str]:
        asked = {"ledger": ask.ledger, "last": ask.last, "limit": ask.limit}
        tenants = list(connection.execute(_TURNS, asked).scalars())
        if len(tenants) < ask.limit:
            tenants += connection.execute(_ONCE_AROUND, asked | {"limit": ask.limit - len(tenants)}).scalars()
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
        alone = [gate for (gate, _), amount in zip(found, rooms, strict=True) if amount and not self._is_shared(gate)]
        due_alone = self._due(connection, ask, alone, share + 1)
        ranked: list[tuple[int, int, int, TaskId]] = []
        eligible = [0] * len(found)
        for at, ((gate, rule), amount) in enumerate(zip(found, rooms, strict=True)):
            if amount:
                due = (
                    self._due_in_turns(connection, ask, gate, turns[gate.name], each)
                    if self._is_shared(gate)
                    else due_alone[gate.name]
                )
                retries = retry_room(gate, rule, now, ask.limit)
                picked = in_order(due, amount, retries, ask.favoured)
                eligible[at] = len(due) - max(0, sum(row.band % 2 == 0 for row in due) - retries)
                ranked += [(nth, at, row.band, row.id) for nth, row in enumerate(picked)]
        taken = sorted(ranked, key=lambda one: one[:2])[: ask.limit]
        ids = [id_ for _, _, _, id_ in taken]
        started = Counter((at, band % 2) for _, at, band, _ in taken)
        resting = [
            gate
            for at, (gate, _) in enumerate(found)
            if may_rest(rooms[at], eligible[at], started[at, 0] + started[at, 1])
        ]
        soonest = self._soonest(connection, resting, now, ids)
        after = []
        for at, (gate, rule) in enumerate(found):
            new = claimed(gate, rule, now, ask.fence, first_tries=started[at, 1], retries=started[at, 0])
            after.append(rested(new, rule, now, soonest[gate.name]) if gate.name in soonest else new)
        return ids, after

    def _due(self, connection: Connection, ask: GateAsk, gates: Sequence[Gate], share: int) -> dict[str, list[DueRow]]:
        """Up to so many of what is due of each kind in each band, by gate."""
        found: dict[str, list[DueRow]] = {gate.name: [] for gate in gates}
        asked = ask.times | {"named": self._named(gates, ask.kinds), "share": share}
        for name, id_, band, due in connection.execute(self._due_rows, asked) if gates else ():
            found[name].append(DueRow(0, band, due, id_))
        return found

    def _named(self, gates: Iterable[Gate], kinds: Sequence[str] | None = None) -> str:
        """Each gate with each of its kinds, as the statements read them."""
        return json.dumps([(gate.name, kind) for gate in gates for kind in self._kinds_of(gate, kinds)])

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

    def _soonest(
        self, connection: Connection, gates: Sequence[Gate], now: datetime, taken: Sequence[TaskId]
    ) -> dict[str, datetime | None]:
        """When the first task of each gate is due that is not taken now, those of kinds that nobody here knows too."""
        found: dict[str, datetime | None] = dict.fromkeys(gate.name for gate in gates)
        asked = self._dialect.times(now) | {"named": self._named(gates), "taken": list(taken)}
        slack = timedelta(0) if isinstance(self._rows.due_column.type, Instant) else TEXT_SLACK
        for name, seconds in connection.execute(self._first_rows, asked) if gates else ():
            found[name] = now + timedelta(microseconds=math.ceil(max(-1.0, seconds) * 1e6)) - slack
        return found

    def _band(self, named: Any, band: int) -> list[Any]:
        """The waiting rows in a band of a gate and a kind of the batch."""
        rows = self._rows
        where = [rows.gate == _part(named, 0), rows.band == literal_column(str(band)), rows.waiting]
        return where if rows.kind is None else [*where, rows.kind == _part(named, 1)]

    @cached_property
    def _due_rows(self) -> Select[Any]:
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
        return select(union_all(*parts).subquery("due_rows"))

    @cached_property
    def _due_rows_of_tenant(self) -> Select[Any]:
        rows, limit = self._rows, bindparam("share", type_=Integer)
        assert rows.turn is not None
        where = [rows.gate == bindparam("gate", type_=Text), rows.turn == bindparam("tenant", type_=Text), rows.waiting]
        where += [rows.due <= self._dialect.present(rows.due_column)]
        where += [] if rows.kind is None else [rows.kind == bindparam("kind", type_=Text)]
        parts = [
            select(rows.id.label("id"), literal_column(str(band), Integer).label("band"), rows.due.label("due"))
            .where(*where, rows.band == literal_column(str(band)))
            .order_by(rows.due)
            .limit(limit)
            .subquery(f"band_{band}")
            for band in rows.bands
        ]
        return select(union_all(*(select(part) for part in parts)).subquery("due_rows"))

    @cached_property
    def _first_rows(self) -> Select[Any]:
        """How long until the first row of each gate is due; none of gates without rows."""
        rows, named = self._rows, _batch()
        parts = []
        for band in rows.bands:
            left = rows.id.not_in(bindparam("taken", expanding=True, type_=rows.id.type))
            head: Any = select(rows.due).where(*self._band(named, band), left).order_by(rows.due).limit(1)
            until = self._dialect.seconds_until(head.correlate(named).scalar_subquery(), rows.due_column, signed=True)
            parts.append(select(_part(named, 0).label("gate"), until.label("seconds")).select_from(named))
        heads = union_all(*parts).subquery("heads")
        soonest = func.min(heads.c.seconds)
        return select(heads.c.gate, soonest).group_by(heads.c.gate).having(soonest.is_not(None))


def _batch() -> Any:
    """Gates and kinds, given as one JSON text."""
    return func.json_each(bindparam("named", type_=Text)).table_valued("value", name="named")


def _part(named: Any, position: int) -> ColumnElement[str]:
    return func.json_extract(named.c.value, literal_column(f"'$[{position}]'"), type_=Text)


def settle_gates(connection: Connection, ledger: str, settlements: Sequence[Settlement], now: datetime) -> None:
    """Write what settlements say of their gates."""
    of_gate: dict[str, list[Settlement]] = defaultdict(list)
    for one in settlements:
        if one.claim.task.gate is not None:
            of_gate[one.claim.task.gate].append(one)
    if not of_gate:
        return
    found = read_gates(connection, ledger, list(of_gate))
    after = [settled(gate, rule, now, sum_up(of_gate[gate.name], gate.probe_claim)) for gate, rule in found]
    write_gates(connection, ledger, after)
