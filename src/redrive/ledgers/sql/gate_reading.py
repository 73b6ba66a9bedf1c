"""Gates where whoever writes is alone, or hears of it: a claim reads them, asks `core.gates`, and writes what it says.

SQLite has one writer. The portable form of PostgreSQL has transactions that are serializable: of two that read the same gate one is taken
back and tried again. How each finds its rows is its own: `sqlite/gates.py`, `postgres/portable_gates.py`.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
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
    select,
    text,
    union_all,
)

from redrive.core.decide import Settlement
from redrive.core.gate_order import TENANTS, DueRow, in_order
from redrive.core.gate_rules import GateRule
from redrive.core.gates import BreakerState, Gate, claimed, may_rest, rested, retry_room, room, settled, sum_up
from redrive.core.task import TaskId
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.gate_rows import GateAsk, GateRows, NamedGate
from redrive.ledgers.sql.predicates import quoted
from redrive.ledgers.sql.seam import Dialect, Parameters

_TENANTS = "SELECT min(tenant) FROM redrive_gate WHERE ledger = :ledger AND ready"
_TURN = (
    "WITH RECURSIVE turn (nth, tenant) AS (SELECT 1, ({0} AND tenant {1})"
    " UNION ALL SELECT turn.nth + 1, ({0} AND tenant > turn.tenant{2}) FROM turn WHERE turn.tenant IS NOT NULL AND turn.nth < :limit)"
    " SELECT tenant FROM turn WHERE tenant IS NOT NULL"
)
_BOUND = (bindparam("ledger", type_=Text), bindparam("last", type_=Text), bindparam("limit", type_=Integer))


def _turns(*words: str) -> Compiled:
    return Compiled(text(_TURN.format(_TENANTS, *words)).bindparams(*_BOUND).columns(schema.gate.c.tenant))


_TURNS = _turns("> :last", "")
_ONCE_AROUND = _turns("<= :last", " AND tenant <= :last")
"""Tenants with a ready gate, one probe each: those behind the one that was served last, and those up to it."""
_WOKEN = Compiled(
    text(
        "SELECT name, tenant, kinds FROM redrive_gate"
        " WHERE ledger = :ledger AND NOT ready AND wake_at <= :now ORDER BY wake_at, name LIMIT :limit"
    )
    .bindparams(
        bindparam("ledger", type_=Text),
        bindparam("now", type_=schema.gate.c.wake_at.type),
        bindparam("limit", type_=Integer),
    )
    .columns(schema.gate.c.name, schema.gate.c.tenant, schema.gate.c.kinds)
)
PASSED_BY_MAX = 10
"""How many times as many gates are read as are looked at, for those of kinds that nobody here knows."""


class ReadingGateClaim(ABC):
    """See `GateClaim`."""

    def __init__(self, dialect: Dialect, rows: GateRows) -> None:
        self._dialect = dialect
        self._rows = rows
        self._hold = Compiled(rows.hold(self._among()).returning(*self._seen()))

    @abstractmethod
    def discover(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """See `GateClaim.discover`."""

    @abstractmethod
    def discover_lately(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """See `GateClaim.discover_lately`."""

    @abstractmethod
    def _present(self, connection: Connection, ask: GateAsk) -> datetime:
        """The instant at which gates are looked at."""

    @abstractmethod
    def _ready(self, connection: Connection, ledger: str, tenants: Sequence[str], each: int) -> Iterable[Any]:
        """Of each tenant so many ready gates, those that were served longest ago: rows of tenant, name and kinds."""

    @abstractmethod
    def _named(self, named: Sequence[tuple[str, str | None]]) -> Parameters:
        """Gates with their kinds, as the statements read them."""

    @property
    @abstractmethod
    def _due_rows(self) -> Compiled:
        """Due rows of each gate and kind that is named: the gate, the id, the band and when. Up to `share` from the head of each band."""

    @abstractmethod
    def _soonest(self, connection: Connection, gates: Sequence[Gate], now: datetime) -> dict[str, datetime | None]:
        """When the first task of each gate is due, those of kinds that nobody here knows too."""

    def ask(self, connection: Connection, ask: GateAsk) -> tuple[Compiled, Parameters] | None:
        """See `GateClaim.ask`."""
        now = self._present(connection, ask)
        names = self._looked(connection, ask, now)
        if not names:
            return None
        found = list(self._dialect.read_gates(connection, ask.ledger, names))
        found.sort(key=lambda one: (one[0].turn_at, one[0].name))
        ids, after = self._take(connection, ask, now, found)
        self._dialect.write_gates(connection, ask.ledger, after)
        held = {"ids": ids, "fence": ask.fence, "ledger": ask.ledger}
        return (self._hold, ask.times | held | self._listed(ids)) if ids else None

    def _among(self) -> ColumnElement[bool]:
        """Which rows are to be held."""
        return self._rows.id.in_(bindparam("ids", expanding=True))

    def _listed(self, ids: Sequence[TaskId]) -> Parameters:  # noqa: ARG002
        """What `_among` needs besides the ids."""
        return {}

    def _seen(self) -> list[ColumnElement[Any]]:
        """What a claim saw of its gate, whose row is written before: see `GateSeen`."""
        t = schema.gate
        mine = (t.c.ledger == bindparam("ledger", type_=Text), t.c.name == self._rows.gate)
        columns = (t.c.state == quoted(BreakerState.TRIPPED), t.c.trips, t.c.refused)
        table = self._rows.id.table
        return [select(column).where(*mine).correlate(table).scalar_subquery() for column in columns]

    def _looked(self, connection: Connection, ask: GateAsk, now: datetime) -> list[str]:
        """Gates that may have something to hand out: those whose time has come, then those that are ready, tenant by tenant from
        behind the one that was served last, once around."""
        kinds = None if ask.kinds is None else frozenset(ask.kinds)
        known = {"ledger": ask.ledger, "now": now, "limit": max(1, ask.limit // 2) * PASSED_BY_MAX}
        names = [
            name
            for name, tenant, there in _WOKEN.rows(connection, known)
            if tenant not in ask.busy and (kinds is None or not kinds.isdisjoint(there))
        ][: max(1, ask.limit // 2)]
        tenants = self._turns(connection, ask)
        each = max(1, ask.limit // max(1, len(tenants)))
        left = dict.fromkeys(tenants, each)
        for tenant, name, there in (
            self._ready(connection, ask.ledger, tenants, each * PASSED_BY_MAX) if tenants else ()
        ):
            if left[tenant] and (kinds is None or not kinds.isdisjoint(there)):
                left[tenant] -= 1
                names.append(name)
        return names

    def _turns(self, connection: Connection, ask: GateAsk) -> list[str]:
        asked = {"ledger": ask.ledger, "last": ask.last, "limit": ask.limit}
        tenants = list(_TURNS.rows(connection, asked))
        if len(tenants) < ask.limit:
            tenants += _ONCE_AROUND.rows(connection, asked | {"limit": ask.limit - len(tenants)})
        return [tenant for (tenant,) in tenants if tenant not in ask.busy]

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
        due_alone = self._due(connection, ask, alone, share)
        ranked: list[tuple[int, int, int, TaskId]] = []
        for at, ((gate, rule), amount) in enumerate(zip(found, rooms, strict=True)):
            if amount:
                due = (
                    self._due_in_turns(connection, ask, gate, turns[gate.name], each)
                    if self._is_shared(gate)
                    else due_alone[gate.name]
                )
                picked = in_order(due, amount, retry_room(gate, rule, now, ask.limit), ask.favoured)
                ranked += [(nth, at, row.band, row.id) for nth, row in enumerate(picked)]
        taken = sorted(ranked, key=lambda one: one[:2])[: ask.limit]
        ids = [id_ for _, _, _, id_ in taken]
        started = Counter((at, band % 2) for _, at, band, _ in taken)
        resting = [gate for at, (gate, _) in enumerate(found) if may_rest(rooms[at], started[at, 0] + started[at, 1])]
        soonest = self._soonest(connection, resting, now)
        after = []
        for at, (gate, rule) in enumerate(found):
            new = claimed(gate, rule, now, ask.fence, first_tries=started[at, 1], retries=started[at, 0])
            after.append(rested(new, rule, now, soonest[gate.name]) if gate.name in soonest else new)
        return ids, after

    def _due(self, connection: Connection, ask: GateAsk, gates: Sequence[Gate], share: int) -> dict[str, list[DueRow]]:
        """Up to so many of what is due of each kind in each band, by gate."""
        found: dict[str, list[DueRow]] = {gate.name: [] for gate in gates}
        asked = ask.times | self._with_kinds(gates, ask.kinds) | {"share": share}
        for name, id_, band, due in self._due_rows.rows(connection, asked) if gates else ():
            found[name].append(DueRow(0, band, due, id_))
        return found

    def _with_kinds(self, gates: Iterable[Gate], kinds: Sequence[str] | None = None) -> Parameters:
        """Each gate with each of its kinds."""
        return self._named([(gate.name, kind) for gate in gates for kind in self._kinds_of(gate, kinds)])

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


def settle_gates(
    connection: Connection, dialect: Dialect, ledger: str, settlements: Sequence[Settlement], now: datetime
) -> None:
    """Write what settlements say of their gates."""
    of_gate: dict[str, list[Settlement]] = defaultdict(list)
    for one in settlements:
        if one.claim.task.gate is not None:
            of_gate[one.claim.task.gate].append(one)
    if not of_gate:
        return
    found = dialect.read_gates(connection, ledger, list(of_gate))
    after = [settled(gate, rule, now, sum_up(of_gate[gate.name], gate.probe_claim)) for gate, rule in found]
    dialect.write_gates(connection, ledger, after)
