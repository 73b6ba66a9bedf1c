"""Gates of a ledger of SQL, as people see them.

A page is in the order of an index: first the gates that hold, return or are paused, by their names, then the others. Whatever is counted
is counted up to a limit, so a look costs the same with ten million tasks as with ten.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    Select,
    Text,
    bindparam,
    delete,
    func,
    not_,
    or_,
    select,
    update,
)

from redrive.core.gate_rules import UNLIMITED, GateRule, most_specific
from redrive.core.gates import Gate
from redrive.core.pauses import EVERYTHING, KIND, is_of_kinds, pausing
from redrive.core.states import State
from redrive.core.task import GATE_CHARS_MAX, Task, check_text
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.gate_rows import gates_and_rules, read_gate, read_rule_row
from redrive.ledgers.sql.gates import HOLDS, OF_KINDS, deed_of
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.gates import (
    PAGE_MAX,
    PARKED_MAX,
    GateDoes,
    GateSpan,
    GateSums,
    GateView,
    ParkedMinute,
    ParkedTask,
    RuleView,
    SeenDoing,
    began_at,
    changed_spans,
    does_of,
    read_gate_cursor,
    view_of,
    write_gate_cursor,
)
from redrive.operator.sql.reads import Reads
from redrive.ports import Page, check_limit

LOOKED_AT_MAX = 2_000
"""Gates that one page looks past when it asks for those that do one thing."""
SUMMED_MAX = 10_000
RECORDED_MAX = 1_000
"""Gates whose changes are recorded at once, and changes that are drawn at once."""
PARKED_COUNTED_MAX = 50
"""Gates of which it is written down in each minute what they keep back."""
RULES_MAX = 1_000
FORGET_SPANS_AFTER = timedelta(days=2)

_t, _r, _d, _s, _p = schema.gate, schema.gate_rule, schema.deed, schema.gate_span, schema.gate_parked
_LEDGER: Any = bindparam("ledger", type_=Text)
_LIMIT: Any = bindparam("limit", type_=Integer)
_AFTER: Any = bindparam("after", type_=Text)
_PREFIX: Any = bindparam("prefix", type_=Text)


def _group(holds: ColumnElement[bool]) -> Select[Any]:
    """The gates behind a name, by their names. Which they are is looked up apart, so that a short list is all that is joined."""
    n = _t.alias("named")
    begins = func.substr(n.c.name, 1, func.length(_PREFIX)) == _PREFIX
    names = select(n.c.name).where(n.c.ledger == _LEDGER, holds, n.c.name > _AFTER, or_(_PREFIX == "", begins))
    return gates_and_rules(_t.c.name.in_(names.order_by(n.c.name).limit(_LIMIT))).order_by(_t.c.name)


_GROUPS = (_group(HOLDS), _group(not_(HOLDS)))
_NAMED = gates_and_rules(_t.c.name.in_(bindparam("names", expanding=True)))
_BEGIN = {"after": "", "prefix": "", "limit": RECORDED_MAX}


class SqlGates:
    """The gates of one ledger; see `Gates`. `limited` is for people who wait."""

    def __init__(self, ledger: SqlLedger, *, limited: bool = True) -> None:
        self._ledger = ledger
        self._reads = Reads(ledger.database, limited=limited)

    async def page(
        self, *, does: GateDoes | None = None, prefix: str = "", cursor: str | None = None, limit: int = 50
    ) -> Page[GateView]:
        """See `Gates.page`."""
        check_limit(limit, PAGE_MAX)
        if prefix:
            check_text("prefix", prefix, GATE_CHARS_MAX)
        return await self._reads.page(
            self._page, does, prefix, (0, "") if cursor is None else read_gate_cursor(cursor), limit
        )

    async def holding(self, *, limit: int = 20) -> list[GateView]:
        """See `Gates.holding`."""
        return await self._reads.page(self._holding, limit)

    async def one(self, name: str) -> GateView | None:
        """See `Gates.one`."""
        return await self._reads.page(self._one, check_text("gate", name, GATE_CHARS_MAX))

    async def rules(self) -> list[RuleView]:
        """See `Gates.rules`."""
        return await self._reads.page(self._rules)

    async def rule_for(self, pattern: str) -> tuple[GateRule, int]:
        """See `Gates.rule_for`."""
        return await self._reads.page(self._rule_for, check_text("pattern", pattern, GATE_CHARS_MAX))

    async def parked(self, task: Task) -> ParkedTask | None:
        """See `Gates.parked`."""
        return await self._reads.page(self._parked_task, task) if task.state is State.WAITING else None

    async def spans(self, names: Sequence[str], since: datetime) -> list[GateSpan]:
        """See `Gates.spans`."""
        return await self._reads.page(self._spans, names, since) if names else []

    async def parked_over(self, names: Sequence[str], since: datetime) -> Mapping[str, Sequence[ParkedMinute]]:
        """See `Gates.parked_over`."""
        return await self._reads.page(self._parked_over, names, since) if names else {}

    async def sums(self) -> GateSums:
        """See `Gates.sums`."""
        return await self._reads.page(self._sums)

    async def record(self) -> int:
        """See `Gates.record`."""
        changes, parked = await self._ledger.database.read(self._changes)
        if changes or parked:
            await self._ledger.database.write(self._record, changes, parked)
        return len(changes)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _page(
        self, connection: Connection, does: GateDoes | None, prefix: str, after: tuple[int, str], limit: int
    ) -> Page[GateView]:
        now, found = self._ledger.present(connection), list[RowMapping]()
        (group, name), looked = after, 0
        known: dict[str, Any] = {"ledger": self._ledger.name, "prefix": prefix, "limit": limit + 1}
        while True:
            rows = connection.execute(_GROUPS[group], known | {"after": name}).mappings().all()
            for row in rows:
                if len(found) == limit:
                    return Page(items=self._views(connection, found, now), cursor=write_gate_cursor(group, name))
                name, looked = row["name"], looked + 1
                if _is_shown(row, does, now):
                    found.append(row)
            if len(rows) <= limit and group == 1:
                return Page(items=self._views(connection, found, now))
            if len(rows) <= limit:
                group, name = 1, ""
            elif looked >= LOOKED_AT_MAX:
                return Page(items=self._views(connection, found, now), cursor=write_gate_cursor(group, name))

    def _holding(self, connection: Connection, limit: int) -> list[GateView]:
        rows = connection.execute(_GROUPS[0], _BEGIN | {"ledger": self._ledger.name}).mappings().all()
        if not rows:
            return []
        now = self._ledger.present(connection)
        held = [row for row in rows if does_of(*read_gate(row), now) is not GateDoes.LETTING_THROUGH]
        return self._views(connection, held[:limit], now)

    def _one(self, connection: Connection, name: str) -> GateView | None:
        known = {"ledger": self._ledger.name, "names": [name]}
        rows = connection.execute(_NAMED, known).mappings().all()
        views = self._views(connection, rows, self._ledger.present(connection))
        return views[0] if views else None

    def _views(self, connection: Connection, rows: Sequence[RowMapping], now: datetime) -> list[GateView]:
        names = [row["name"] for row in rows]
        patterns = [row["rule_pattern"] for row in rows if row["rule_pattern"] is not None]
        versions = self._versions(connection, {*names, *patterns})
        views = []
        for row in rows:
            gate, rule = read_gate(row)[0], None
            if row["rule_pattern"] is not None and not is_of_kinds(gate.name):
                rule = _rule_view(row, versions)
            parked = self._parked(connection, gate)
            version = versions.get(gate.name, 0)
            views.append(view_of(self._ledger.name, gate, rule, now, parked=parked, version=version))
        return views

    def _versions(self, connection: Connection, names: Iterable[str]) -> dict[str, int]:
        deeds = {deed_of(name): name for name in names}
        last = select(_d.c.task_id, func.max(_d.c.id)).group_by(_d.c.task_id)
        last = last.where(_d.c.ledger == self._ledger.name, _d.c.task_id.in_(deeds))
        return {deeds[task_id]: number for task_id, number in connection.execute(last)} if deeds else {}

    def _parked(self, connection: Connection, gate: Gate) -> int | None:
        if not is_of_kinds(gate.name):
            return self._ledger.parked_behind(connection, gate.name, PARKED_MAX + 1) if self._ledger.has_gates else 0
        kind = gate.name.removeprefix(KIND)
        if gate.name != EVERYTHING and "*" in kind:
            return None
        return self._ledger.parked_kinds(connection, None if gate.name == EVERYTHING else kind, PARKED_MAX + 1)

    def _parked_task(self, connection: Connection, task: Task) -> ParkedTask | None:
        paused = pausing(self._ledger.read_paused_kinds(connection), task.kind)
        if paused is not None:
            view = self._one(connection, paused)
            return None if view is None else ParkedTask(gate=view, before=None)
        if task.gate is None or not self._ledger.has_gates:
            return None
        view = self._one(connection, task.gate)
        if view is None or view.waits_for is None:
            return None
        if task.due_at is not None and task.due_at > view.at and view.until is not None and task.due_at >= view.until:
            return None  # its own time comes later than that of its gate
        before = self._ledger.parked_before(connection, task.gate, task.id, PARKED_MAX + 1)
        return ParkedTask(gate=view, before=before)

    def _rules(self, connection: Connection) -> list[RuleView]:
        columns = [column.label(f"rule_{column.name}") for column in _r.c]
        asked = select(*columns).where(_r.c.ledger == self._ledger.name).order_by(_r.c.pattern).limit(RULES_MAX)
        rows = connection.execute(asked).mappings().all()
        versions = self._versions(connection, [row["rule_pattern"] for row in rows])
        return [_rule_view(row, versions) for row in rows]

    def _rule_for(self, connection: Connection, pattern: str) -> tuple[GateRule, int]:
        rules = {one.pattern: one.rule for one in self._rules(connection)}
        holds = most_specific(rules, pattern)
        return UNLIMITED if holds is None else rules[holds], self._ledger.last_deed(connection, pattern)

    def _sums(self, connection: Connection) -> GateSums:
        now, amounts, of_kinds = self._ledger.present(connection), dict.fromkeys(GateDoes, 0), 0
        for row in connection.execute(_GROUPS[0], _BEGIN | {"ledger": self._ledger.name}).mappings():
            if _is_shown(row, None, now):
                amounts[does_of(*read_gate(row), now)] += 1
                of_kinds += is_of_kinds(row["name"])
        others = select(_t.c.held).where(_t.c.ledger == self._ledger.name, ~OF_KINDS).limit(SUMMED_MAX).subquery()
        every, held = connection.execute(select(func.count(), func.sum(others.c.held)).select_from(others)).one()
        held_back = sum(amounts[does] for does in GateDoes if does is not GateDoes.LETTING_THROUGH) - of_kinds
        amounts[GateDoes.LETTING_THROUGH] = max(0, every - held_back)
        return GateSums(amounts=amounts, held=int(held or 0))

    # --- over time ----------------------------------------------------------------------------------------------------

    def _spans(self, connection: Connection, names: Sequence[str], since: datetime) -> list[GateSpan]:
        mine = (_s.c.ledger == self._ledger.name, _s.c.name.in_(names))
        asked = select(_s).where(*mine, or_(_s.c.ended_at.is_(None), _s.c.ended_at > since))
        # Of a gate that changes all the time the last ones are drawn.
        rows = connection.execute(asked.order_by(_s.c.began_at.desc()).limit(RECORDED_MAX)).all()
        return [
            GateSpan(name=row.name, does=GateDoes(row.does), began_at=row.began_at, ended_at=row.ended_at)
            for row in reversed(rows)
        ]

    def _parked_over(
        self, connection: Connection, names: Sequence[str], since: datetime
    ) -> dict[str, list[ParkedMinute]]:
        mine = (_p.c.ledger == self._ledger.name, _p.c.name.in_(names), _p.c.minute >= since)
        found: dict[str, list[ParkedMinute]] = {}
        for name, minute, parked in connection.execute(select(_p.c.name, _p.c.minute, _p.c.parked).where(*mine)):
            found.setdefault(name, []).append((minute, parked))
        return found

    def _parked_now(
        self, connection: Connection, gates: Mapping[str, tuple[Gate, GateRule]], now: datetime
    ) -> list[dict[str, Any]]:
        """What the first gates that do not let through keep back, once a minute."""
        minute = now.replace(second=0, microsecond=0)
        held = [name for name, found in gates.items() if does_of(*found, now) is not GateDoes.LETTING_THROUGH]
        if not held:
            return []
        counted = select(_p.c.name).where(_p.c.ledger == self._ledger.name, _p.c.name.in_(held), _p.c.minute == minute)
        there = set(connection.execute(counted).scalars())
        rows = []
        for name in [one for one in sorted(held) if one not in there][:PARKED_COUNTED_MAX]:
            if (parked := self._parked(connection, gates[name][0])) is not None:
                rows.append({"ledger": self._ledger.name, "name": name, "minute": minute, "parked": parked})
        return rows

    def _changes(self, connection: Connection) -> tuple[list[GateSpan], list[dict[str, Any]]]:
        """Spans that have begun or ended and are not recorded so, and what gates keep back in a minute that nobody has counted yet."""
        mine = select(_s).where(_s.c.ledger == self._ledger.name, _s.c.ended_at.is_(None)).limit(RECORDED_MAX)
        lasting = {row.name: row for row in connection.execute(mine)}
        rows = connection.execute(_GROUPS[0], _BEGIN | {"ledger": self._ledger.name}).mappings().all()
        if not (rows or lasting):
            return [], []
        now = self._ledger.present(connection)
        gates = {row["name"]: read_gate(row) for row in rows}
        missing = [name for name in lasting if name not in gates]
        if missing:
            known = {"ledger": self._ledger.name, "names": missing}
            gates |= {row["name"]: read_gate(row) for row in connection.execute(_NAMED, known).mappings()}
        changes: list[GateSpan] = []
        for name in {*gates, *lasting}:
            if (
                name in lasting or len(lasting) < RECORDED_MAX
            ):  # of more, nobody knows whether they are recorded already
                changes += changed_spans(name, _seen(gates.get(name), now), lasting.get(name), now)
        return changes, self._parked_now(connection, gates, now)

    def _record(self, connection: Connection, changes: Sequence[GateSpan], parked: Sequence[dict[str, Any]]) -> None:
        if parked:
            connection.execute(self._ledger.database.insert(_p).on_conflict_do_nothing(), parked)
        for one in changes:
            mine = (_s.c.ledger == self._ledger.name, _s.c.name == one.name)
            if one.ended_at is not None:
                connection.execute(update(_s).where(*mine, _s.c.ended_at.is_(None)).values(ended_at=one.ended_at))
            else:
                span = {"ledger": self._ledger.name, "name": one.name, "began_at": one.began_at, "does": one.does}
                connection.execute(self._ledger.database.insert(_s).values(span).on_conflict_do_nothing())
        old = self._ledger.present(connection) - FORGET_SPANS_AFTER
        connection.execute(delete(_s).where(_s.c.ledger == self._ledger.name, _s.c.ended_at < old))
        connection.execute(delete(_p).where(_p.c.ledger == self._ledger.name, _p.c.minute < old))


def _is_shown(row: RowMapping, does: GateDoes | None, now: datetime) -> bool:
    """Whether a page shows it: a pause of kinds that is over is not a gate."""
    doing = does_of(*read_gate(row), now)
    return (does is None or doing is does) and (doing is GateDoes.PAUSED or not is_of_kinds(row["name"]))


def _rule_view(row: RowMapping, versions: Mapping[str, int]) -> RuleView:
    return RuleView(
        pattern=row["rule_pattern"], rule=read_rule_row(row), set_by=row["rule_set_by"], reason=row["rule_reason"],
        set_at=row["rule_set_at"], version=versions.get(row["rule_pattern"], 0),
    )  # fmt: skip


def _seen(found: tuple[Gate, GateRule] | None, now: datetime) -> SeenDoing:
    if found is None:
        return GateDoes.LETTING_THROUGH, None, None
    does = does_of(*found, now)
    return does, began_at(found[0], does), found[0].paused_until
