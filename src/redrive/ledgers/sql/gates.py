"""Gates of a ledger: making and waking them, their limits, and what people do to them.

What a gate lets through is computed from its row when somebody claims (`core.gates`), so nobody has to hear of a change: a resume
cannot be lost. A gate is made when a task that names it is added, or found by `discover`.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    update,
)

from redrive.core.durations import Span, read_span
from redrive.core.gate_order import TENANTS
from redrive.core.gate_rules import GateRule, fits, most_specific
from redrive.core.gates import Gate, WaitsFor, paused, resumed
from redrive.core.pauses import KIND, is_of_kinds
from redrive.core.task import GATE_CHARS_MAX, TaskId, check_text
from redrive.errors import StaleError, UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.audit_lines import record
from redrive.ledgers.sql.base import IDS_MAX, LedgerBase
from redrive.ledgers.sql.gate_rows import (
    GateRows,
    GatesInUse,
    GatesMade,
    NamedGate,
    gate_values,
    gates_and_rules,
    read_gate,
    read_rule_row,
    rule_values,
    write_gates,
)
from redrive.ledgers.sql.seam import GateClaim
from redrive.ledgers.sql.times import comparable
from redrive.ports import Actor

CODE = "code"
"""Who has set a rule that stands in code: it may be changed by code, and what a person has set may not."""
GATES_LISTED_MAX = 1000
IDLE_GATES_KEPT = timedelta(days=1)
"""Longer than any rate, budget or window reaches back."""
NO_REASON = "say why: whoever finds the gate like this will ask"
LOOK_FOR_GATES_SECONDS = 1.0
"""How often a ledger without gates looks whether there are some now."""
_ASLEEP = (WaitsFor.DUE, WaitsFor.BUDGET)
"""What a gate waits for that a new task may end."""

_SHUT = (WaitsFor.PROBE, WaitsFor.RETRY_AFTER, WaitsFor.PERSON)
"""What a gate waits for that keeps back all that is due."""

_t, _r, _d = schema.gate, schema.gate_rule, schema.deed
HOLDS: ColumnElement[bool] = literal_column(f"({schema.GATE_HOLDS})", Boolean)
"""See `schema.GATE_HOLDS`: literally, or no partial index serves it."""
OF_KINDS: ColumnElement[bool] = func.substr(_t.c.name, 1, len(KIND)) == KIND
"""Pauses of kinds, which are no gates: see `core.pauses`."""
_LEDGER: Any = bindparam("ledger", type_=Text)
_NAMES: Any = bindparam("names", expanding=True)


class GateStatements:
    """The statements, each with its purpose."""

    named: Select[Any] = gates_and_rules(_t.c.name.in_(_NAMES))
    """Gates by their names, with their limits."""
    locked: Select[Any] = named.order_by(_t.c.name).with_for_update(of=_t)
    """The same for whoever changes them, in the order of their names as everybody locks them."""
    there: Select[Any] = select(_t.c.name, _t.c.tenant, _t.c.kinds, _t.c.waits_for).where(
        _t.c.ledger == _LEDGER, _t.c.name.in_(_NAMES)
    )
    """What an adder must know of gates."""
    lock_there: Select[Any] = there.order_by(_t.c.name).with_for_update()
    wake: Update = (
        update(_t)
        .where(_t.c.ledger == bindparam("in_ledger", type_=Text), _t.c.name.in_(_NAMES))
        .values(ready=True, waits_for=None, wake_at=None, version=_t.c.version + 1)
    )
    """Have gates looked at that slept until a task is due; they are locked already, in the order of their names."""
    patterns: Select[Any] = select(_r.c.pattern).where(_r.c.ledger == _LEDGER)
    ready: Select[Any] = (
        select(_t.c.kinds, _t.c.wake_at)
        .where(_t.c.ledger == _LEDGER, literal_column("redrive_gate.ready"))
        .limit(bindparam("limit", type_=Integer))
    )
    asleep: Select[Any] = (
        select(_t.c.kinds, _t.c.wake_at)
        .where(_t.c.ledger == _LEDGER, literal_column("NOT redrive_gate.ready"), _t.c.wake_at.is_not(None))
        .order_by(_t.c.wake_at)
        .limit(bindparam("limit", type_=Integer))
    )
    """Those that are to be looked at at some time, the soonest first."""
    paused: Select[Any] = (
        select(_t.c.name, _t.c.paused_until)
        .where(_t.c.ledger == _LEDGER, HOLDS, _t.c.paused_at.is_not(None))
        .limit(GATES_LISTED_MAX)
    )
    """What people have paused, and until when."""
    shut: Select[Any] = (
        select(_t.c.name)
        .where(_t.c.ledger == _LEDGER, HOLDS, _t.c.waits_for.in_([str(one) for one in _SHUT]))
        .limit(GATES_LISTED_MAX)
    )
    last_deed: Select[Any] = select(func.max(_d.c.id)).where(_d.c.ledger == _LEDGER, _d.c.task_id == bindparam("deed"))
    """Which deed was the last to a gate: whoever acts on what was seen names it."""


class Gating(LedgerBase):
    """The part of a ledger that keeps its gates."""

    _gates_sought_at = -math.inf

    # --- whether there are any ----------------------------------------------------------------------------------------

    async def uses_gates(self, *, anew: bool = False) -> bool:
        """See `Ledger.uses_gates`: whoever has no gates pays for none of them."""
        if self._gates_seen or not self._may_look_for_gates(anew=anew):
            return self._gates_seen
        return await self.database.read(self._look_for_gates)

    def _uses_gates(self, connection: Connection) -> bool:
        """The same for whoever has a connection."""
        return self._gates_seen or (self._may_look_for_gates() and self._look_for_gates(connection))

    def _may_look_for_gates(self, *, anew: bool = False) -> bool:
        now = time.monotonic()
        if not self.has_gates or (not anew and now - self._gates_sought_at < LOOK_FOR_GATES_SECONDS):
            return False
        self._gates_sought_at = now
        return True

    def _look_for_gates(self, connection: Connection) -> bool:
        self._gates_seen = bool(connection.execute(self._any_gate, {"ledger": self.name}).scalar_one())
        return self._gates_seen

    @cached_property
    def _any_gate(self) -> Select[Any]:
        a_gate = select(literal_column("1")).where(_t.c.ledger == _LEDGER, ~OF_KINDS).exists()
        a_task = select(literal_column("1")).select_from(self._mapped.table).where(self._mapped.rows.gated()).exists()
        return select(or_(a_gate, a_task))

    # --- making and waking --------------------------------------------------------------------------------------------

    def make_gates(self, connection: Connection, found: Iterable[NamedGate]) -> GatesMade:
        """Make gates that are missing, and have those looked at that sleep until a task is due.

        They stay locked until the commit, so it must follow at once: claims pass a locked gate by.
        """
        wanted: dict[str, list[NamedGate]] = {}
        for one in found:
            wanted.setdefault(one.gate, []).append(one)
        self._gates_seen = self._gates_seen or bool(wanted)
        known = {"ledger": self.name, "names": list(wanted)}
        there = {row.name: row for row in connection.execute(GateStatements.there, known)} if wanted else {}
        missing = sorted(set(wanted) - set(there))
        if missing:
            self._insert(connection, {name: wanted[name] for name in missing})
        changed = [name for name, row in there.items() if row.waits_for in _ASLEEP or _widens(row, wanted[name])]
        if changed:
            self._wake(connection, {name: wanted[name] for name in changed})
        shut = frozenset(name for name, row in there.items() if row.waits_for in _SHUT)
        return GatesMade(len(missing) + len(changed), shut)

    async def shut_gates(self) -> list[str]:
        """Gates that keep tasks back which are due: see `GatesMade.shut`; up to a thousand."""
        return await self.database.read(self._shut_gates) if self.has_gates else []

    def _shut_gates(self, connection: Connection) -> list[str]:
        return list(connection.execute(GateStatements.shut, {"ledger": self.name}).scalars())

    def _insert(self, connection: Connection, wanted: Mapping[str, Sequence[NamedGate]]) -> None:
        now = self.present(connection)
        patterns = connection.execute(GateStatements.patterns, {"ledger": self.name}).scalars().all()
        rows = []
        for name, found in wanted.items():
            tenant, kinds = _hints("", (), found, new=True)
            gate = Gate.new(name, now, rule=most_specific(patterns, name), tenant=tenant, kinds=kinds)
            if is_of_kinds(name):
                gate = _set_aside(gate)
            rows.append({"ledger": self.name, **gate_values(gate)})
        connection.execute(self._mapped.dialect.insert(_t).on_conflict_do_nothing(), rows)

    def _wake(self, connection: Connection, wanted: Mapping[str, Sequence[NamedGate]]) -> None:
        known = {"ledger": self.name, "names": sorted(wanted)}
        asleep = []
        for row in connection.execute(GateStatements.lock_there, known).all():
            if row.waits_for in _ASLEEP:
                asleep.append(row.name)
            if _widens(row, wanted[row.name]):
                tenant, kinds = _hints(row.tenant, tuple(row.kinds), wanted[row.name])
                wider = {"tenant": tenant, "kinds": list(kinds), "version": _t.c.version + 1}
                connection.execute(_write(row.name, self.name).values(wider))
        if asleep:  # all in one statement: an event for each of hundreds of destinations is nothing unusual
            connection.execute(GateStatements.wake, {"in_ledger": self.name, "names": asleep})

    @cached_property
    def _gate_claim(self) -> GateClaim:
        return self._mapped.dialect.gate_claim(GateRows.of(self._mapped.rows, self._hold_anew))

    def _hold_anew(self, where: ColumnElement[bool]) -> Update:
        """Hold rows: see `ClaimStatements.hold`."""
        raise NotImplementedError

    async def discover(self, *, lately: bool = False) -> int:
        """See `Ledger.discover`."""
        if not self.has_gates:
            return 0
        found = await self.database.read(self._missed if lately else self._overlooked)
        if not found:
            return 0
        made = await self.database.write(self.make_gates, found)
        self.database.wake(self.name)
        return made.written

    def _overlooked(self, connection: Connection) -> list[NamedGate]:
        return self._gate_claim.discover(connection, self.name, self._times())

    def _missed(self, connection: Connection) -> list[NamedGate]:
        return self._gate_claim.discover_lately(connection, self.name, self._times())

    async def overdue_behind_gates(self, *, limit: int = IDS_MAX) -> list[TaskId]:
        """Tasks that wait behind a gate past their deadline; nobody claims them, so nobody else would see it."""
        if not self.has_gates or not self._mapped.has("deadline"):
            return []
        return await self.database.read(self._overdue_behind_gates, limit)

    def _overdue_behind_gates(self, connection: Connection, limit: int) -> list[TaskId]:
        return list(connection.execute(self._overdue_gated, {**self._times(), "amount": limit}).scalars())

    @cached_property
    def _overdue_gated(self) -> Select[Any]:
        rows, deadline = self._mapped.rows, self._mapped.rows.column("deadline")
        over = comparable(deadline) <= self._mapped.dialect.present(deadline)
        found = select(self._mapped.id).where(rows.gated(), deadline.is_not(None), over)
        return found.order_by(comparable(deadline)).limit(bindparam("amount", type_=Integer))

    async def recount(self) -> int:
        """Count anew what is held behind each gate that holds something; how many gates were wrong.

        Strangers may delete rows that are claimed. In a transaction for each gate, and in two statements: the second sees what
        was committed before the gate was locked.
        """
        if not self.has_gates:
            return 0
        names = await self.database.read(self._holding)
        return sum([await self.database.write(self._recount, name) for name in names])

    def _holding(self, connection: Connection) -> list[str]:
        holding = select(_t.c.name).where(_t.c.ledger == self.name, _t.c.held > 0)
        return list(connection.execute(holding.limit(GATES_LISTED_MAX)).scalars())

    def _recount(self, connection: Connection, name: str) -> int:
        mine = (_t.c.ledger == self.name, _t.c.name == name)
        counted = select(_t.c.held, _t.c.version).where(*mine).with_for_update(skip_locked=True)
        row = connection.execute(counted).one_or_none()
        rows = self._mapped.rows
        held = select(func.count()).select_from(self._mapped.table).where(rows.held(), rows.gate() == name)
        if row is None or row.held == (amount := connection.execute(held).scalar_one()):
            return 0
        anew = {"held": amount, "version": row.version + 1, "ready": True, "waits_for": None, "wake_at": None}
        connection.execute(_write(name, self.name).values(anew))
        return 1

    async def forget_gates(self, names: Sequence[str] | None = None) -> int:
        """Delete gates behind which nothing waits or is held; how many there were.

        Those of the names, which nobody will ask for again; or those that were not looked at for a day, up to a thousand, unless a
        person has paused them. A task that is added meanwhile is found by `discover`, and has its gate made anew.
        """
        if not self.has_gates:
            return 0
        idle = await self.database.read(self._idle_gates, names)
        return await self.database.write(self._forget_gates, idle) if idle else 0

    def _idle_gates(self, connection: Connection, names: Sequence[str] | None) -> list[str]:
        where = [_t.c.ledger == self.name, ~OF_KINDS, self._unused]
        if names is not None:
            where.append(_t.c.name.in_(names))
        else:
            where += [_t.c.turn_at < self.present(connection) - IDLE_GATES_KEPT, _t.c.paused_at.is_(None)]
            where += [_t.c.waits_for == WaitsFor.DUE, _t.c.wake_at.is_(None)]
        return list(connection.execute(select(_t.c.name).where(*where).limit(GATES_LISTED_MAX)).scalars())

    def _forget_gates(self, connection: Connection, names: Sequence[str]) -> int:
        known = {"ledger": self.name, "names": list(names)}
        # Locked in the order of their names, as everybody does. The second statement sees what was added before that.
        locked = GateStatements.lock_there.with_for_update(skip_locked=True)
        there = [row.name for row in connection.execute(locked, known)]
        gone = delete(_t).where(_t.c.ledger == self.name, _t.c.name.in_(there), self._unused)
        return connection.execute(gone).rowcount

    @cached_property
    def _unused(self) -> ColumnElement[bool]:
        """Whether nothing waits behind a gate, or is held."""
        rows = self._mapped.rows
        waiting: Select[Any] = (
            select(literal_column("1")).select_from(self._mapped.table).where(rows.gated(), rows.gate() == _t.c.name)
        )
        return and_(_t.c.held == 0, ~waiting.correlate(_t).exists())

    # --- looking ------------------------------------------------------------------------------------------------------

    async def gate(self, name: str) -> tuple[Gate, GateRule] | None:
        """A gate and its limits; None where no task has named it yet."""
        found = await self.database.read(self._gates, [name])
        return found[0] if found else None

    async def gates(self, names: Sequence[str] | None = None) -> list[tuple[Gate, GateRule]]:
        """Gates with their limits, by their names; the first thousand where none are given."""
        return await self.database.read(self._gates, names)

    def _gates(self, connection: Connection, names: Sequence[str] | None) -> list[tuple[Gate, GateRule]]:
        if names is None:
            every = gates_and_rules(literal_column("1 = 1")).order_by(_t.c.name).limit(GATES_LISTED_MAX)
            rows = connection.execute(every, {"ledger": self.name}).mappings().all()
        else:
            rows = (
                connection.execute(
                    GateStatements.named.order_by(_t.c.name), {"ledger": self.name, "names": list(names)}
                )
                .mappings()
                .all()
            )
        return [read_gate(row) for row in rows]

    async def gates_in_use(self) -> GatesInUse:
        """Which gates somebody has limited or paused."""
        return await self.database.read(self._in_use)

    def _in_use(self, connection: Connection) -> GatesInUse:
        paused = select(_t.c.name).where(_t.c.ledger == self.name, _t.c.paused_at.is_not(None))
        patterns = connection.execute(GateStatements.patterns, {"ledger": self.name}).scalars()
        return GatesInUse(frozenset(patterns), frozenset(connection.execute(paused).scalars()))

    async def gate_rules(self) -> dict[str, GateRule]:
        """The limits of this ledger's gates, by their patterns."""
        return await self.database.read(self._rules)

    def _rules(self, connection: Connection) -> dict[str, GateRule]:
        columns = [column.label(f"rule_{column.name}") for column in _r.c]
        asked = select(*columns).where(_r.c.ledger == self.name).order_by(_r.c.pattern)
        return {row["rule_pattern"]: read_rule_row(row) for row in connection.execute(asked).mappings()}

    async def paused_kinds(self) -> list[str]:
        """See `Ledger.paused_kinds`."""
        return await self.database.read(self.read_paused_kinds)

    def read_paused_kinds(self, connection: Connection) -> list[str]:
        """The same in one statement where nothing is paused."""
        rows = connection.execute(GateStatements.paused, {"ledger": self.name}).all()
        of_kinds = [row for row in rows if is_of_kinds(row.name)]
        if not of_kinds:
            return []
        now = self.present(connection)
        return [row.name for row in of_kinds if row.paused_until is None or row.paused_until > now]

    def last_deed(self, connection: Connection, name: str) -> int:
        """The number of the last deed to a gate or a rule; 0 where there was none."""
        known = {"ledger": self.name, "deed": deed_of(name)}
        return connection.execute(GateStatements.last_deed, known).scalar() or 0

    def _check_version(self, connection: Connection, name: str, version: int | None) -> None:
        """Whoever acts on what they saw acts only while that is so. Under the lock of what is changed."""
        if version is None or (last := self.last_deed(connection, name)) == version:
            return
        deed = connection.execute(select(_d.c.actor, _d.c.act).where(_d.c.id == last)).one_or_none()
        said = "somebody else acted" if deed is None else f"{deed.actor} was quicker ({deed.act})"
        raise StaleError(f"{said} on {name!r} since you looked: look again, then decide")

    # --- limits -------------------------------------------------------------------------------------------------------

    async def set_rule(
        self,
        pattern: str,
        rule: GateRule | None,
        actor: Actor,
        *,
        by_code: bool = False,
        version: int | None = None,
    ) -> bool:
        """Set the limits of all gates that the pattern fits best, or take them away; they hold from the next claim on.

        With `by_code` only where no person has set them. `version` as in `pause_gate`. Whether anything was changed.
        """
        self._check_gated()
        check_text("pattern", pattern, GATE_CHARS_MAX)
        if is_of_kinds(pattern):
            raise UsageError(f"{pattern!r} can only be paused: limits are for gates, which tasks name with gate=")
        if not (by_code or actor.reason):
            raise UsageError(NO_REASON)
        changed = await self.database.write(self._set_rule, pattern, rule, actor, by_code=by_code, version=version)
        if changed:
            self.database.wake(self.name)
        return changed

    def _set_rule(
        self,
        connection: Connection,
        pattern: str,
        rule: GateRule | None,
        actor: Actor,
        *,
        by_code: bool,
        version: int | None,
    ) -> bool:
        mine = (_r.c.ledger == self.name, _r.c.pattern == pattern)
        there = connection.execute(select(_r).where(*mine).with_for_update()).mappings().one_or_none()
        self._check_version(connection, pattern, version)
        if by_code and there is not None and there["set_by"] != CODE:
            return False
        if rule is None:
            if there is None:
                return False
            connection.execute(delete(_r).where(*mine))
        else:
            values = rule_values(rule)
            if there is not None and all(there[name] == value for name, value in values.items()):
                return False
            now = self.present(connection)
            values |= {"set_by": CODE if by_code else actor.name, "reason": actor.reason, "set_at": now}
            made = self._mapped.dialect.insert(_r).values(ledger=self.name, pattern=pattern, **values)
            connection.execute(made.on_conflict_do_update(index_elements=[_r.c.ledger, _r.c.pattern], set_=values))
            self._check_version(connection, pattern, version)  # a rule that was not there could not be locked before
        self._fit_rules(connection, pattern)
        if not by_code:
            self._record_gate(connection, pattern, "limits set" if rule is not None else "limits removed", actor)
        self.database.announce(connection, self.name, soon=True)
        return True

    def _fit_rules(self, connection: Connection, pattern: str) -> None:
        """Give the gates that a pattern fits the rule that wins now, and have them looked at."""
        patterns = connection.execute(GateStatements.patterns, {"ledger": self.name}).scalars().all()
        names = connection.execute(select(_t.c.name).where(_t.c.ledger == self.name, ~OF_KINDS)).scalars().all()
        self._give_rules(connection, {name: most_specific(patterns, name) for name in names if fits(pattern, name)})

    async def fit_rules(self) -> int:
        """Give gates the rules that fit them best, where somebody made one while a rule came or went; how many there were."""
        wrong = await self.database.read(self._misfits)
        return await self.database.write(self._give_rules, wrong) if wrong else 0

    def _misfits(self, connection: Connection) -> dict[str, str | None]:
        patterns = connection.execute(GateStatements.patterns, {"ledger": self.name}).scalars().all()
        rows = connection.execute(select(_t.c.name, _t.c.rule).where(_t.c.ledger == self.name, ~OF_KINDS)).all()
        best = {name: (rule, most_specific(patterns, name)) for name, rule in rows}
        return {name: fitting for name, (rule, fitting) in best.items() if rule != fitting}

    def _give_rules(self, connection: Connection, wanted: Mapping[str, str | None]) -> int:
        for name, rule in sorted(wanted.items()):
            looked = {"rule": rule, "version": _t.c.version + 1, "ready": True, "waits_for": None, "wake_at": None}
            connection.execute(_write(name, self.name).values(looked))
        return len(wanted)

    # --- people -------------------------------------------------------------------------------------------------------

    async def pause_gate(
        self, name: str, actor: Actor, *, span: Span | None = None, version: int | None = None
    ) -> bool:
        """Let nothing through until somebody resumes it or the span is over. What runs ends, what waits waits.

        Also a kind or the whole ledger, whether or not tasks have gates here: see `core.pauses`. `version` is the number of the
        last deed that the person saw: if somebody was quicker, nothing is changed (`StaleError`). Whether it was changed.
        """
        until = None if span is None else read_span("span", span)
        return await self._act_on_gate(name, actor, "paused", version, until)

    async def resume_gate(self, name: str, actor: Actor, *, version: int | None = None) -> bool:
        """Give a paused gate free; the parameters are those of `pause_gate`."""
        return await self._act_on_gate(name, actor, "resumed", version, None)

    async def _act_on_gate(
        self, name: str, actor: Actor, act: str, version: int | None, span: timedelta | None
    ) -> bool:
        if not is_of_kinds(name):
            self._check_gated()
        check_text("gate", name, GATE_CHARS_MAX)
        if not actor.reason:
            raise UsageError(NO_REASON)
        changed = await self.database.write(self._change_gate, name, actor, act, version, span)
        if changed:
            self.database.wake(self.name)
        return changed

    def _change_gate(
        self, connection: Connection, name: str, actor: Actor, act: str, version: int | None, span: timedelta | None
    ) -> bool:
        known = {"ledger": self.name, "names": [name]}
        if act == "paused" and connection.execute(GateStatements.there, known).first() is None:
            self._insert(connection, {name: []})  # a gate may be paused before its first task
        row = connection.execute(GateStatements.locked, known).mappings().one_or_none()
        self._check_version(connection, name, version)
        if row is None:
            return False
        gate, _ = read_gate(row)
        now = self.present(connection)
        if act == "resumed" and not gate.is_paused(now):
            return False
        until = None if span is None else now + span
        after = paused(gate, now, by=actor.name, reason=actor.reason, until=until) if act == "paused" else resumed(gate)
        if is_of_kinds(name):
            after = _set_aside(after)
        write_gates(connection, self.name, [after])
        self._record_gate(connection, name, act, actor)
        self.database.announce(connection, self.name, soon=True)
        return True

    def _record_gate(self, connection: Connection, name: str, act: str, actor: Actor) -> None:
        at = self.present(connection)
        record(connection, ledger=self.name, act=f"gate {act}", things=[deed_of(name)], actor=actor, at=at)

    def _check_gated(self) -> None:
        if not self.has_gates:
            raise UsageError(
                f"{self.name!r} has no gates: name a column as gate (or tenant) in its LedgerTable, and run its migration"
            )

    def _gated_kinds(self, connection: Connection) -> set[str]:
        """The kinds of the tasks that gates have had, of up to a thousand gates."""
        some = select(_t.c.kinds).where(_t.c.ledger == _LEDGER).limit(GATES_LISTED_MAX)
        return {kind for kinds in connection.execute(some, {"ledger": self.name}).scalars() for kind in kinds}

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _gates_due(self, connection: Connection, kinds: Sequence[str] | None) -> timedelta | None:
        """How long until a gate of these kinds is to be looked at."""
        asked = set(kinds or ())
        for limit in (10, GATES_LISTED_MAX):  # most often the first is one
            known, all_seen = {"ledger": self.name, "limit": limit}, True
            for statement in (GateStatements.ready, GateStatements.asleep):
                rows = connection.execute(statement, known).all()
                all_seen = all_seen and len(rows) < limit
                mine = next((row for row in rows if kinds is None or not asked.isdisjoint(row.kinds)), None)
                if mine is not None and statement is GateStatements.ready:
                    return timedelta(0)
                if mine is not None:
                    left: timedelta = mine.wake_at - self.present(connection)
                    return max(timedelta(0), left)
            if all_seen:
                break
        return None


def deed_of(name: str) -> str:
    """What the audit log calls a gate."""
    return f"gate:{name}"


def _set_aside(gate: Gate) -> Gate:
    """The row of a pause of kinds, which no claim is to look at unless a stranger's tasks have it for a gate."""
    if gate.kinds:
        return gate
    return replace(gate, rule=None, ready=False, waits_for=gate.waits_for or WaitsFor.DUE, wake_at=None)


def _write(name: str, ledger: str) -> Update:
    return update(_t).where(_t.c.ledger == ledger, _t.c.name == name)


def _widens(row: Any, found: Sequence[NamedGate]) -> bool:
    """Whether tasks are of kinds or tenants that their gate does not know yet."""
    tenant, kinds = _hints(row.tenant, tuple(row.kinds), found)
    return bool(tenant != row.tenant or set(kinds) != set(row.kinds))


def _hints(
    tenant: str, kinds: Sequence[str], found: Sequence[NamedGate], *, new: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Whose tasks a gate has, and of which kinds."""
    tenants = {one.tenant for one in found}
    if not new or not found:
        tenants.add(tenant)
    wide = dict.fromkeys([*kinds, *(one.kind for one in found if one.kind is not None)])
    return (next(iter(tenants)) if len(tenants) == 1 else TENANTS), tuple(wide)
