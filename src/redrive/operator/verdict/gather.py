"""Asking a store for the facts. No task is read: counters, the census, gates, the roster and short looks at indexes.

Up to four looks at a time, ledger by ledger: a person waits for the longest of them instead of for all, and a look takes few connections.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from redrive.core.effect_mark import EffectMark, MarkState
from redrive.core.pauses import pausing
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.errors import LedgerAwayError, TooSlowError, UsageError
from redrive.operator.figures import HOUR, MINUTE, Group, States
from redrive.operator.gates import GateDoes, parked_points
from redrive.operator.headcount import Headcount
from redrive.operator.kinds import LATELY, CauseSeen, KindSeen, WaitingKind
from redrive.operator.ports import Census, CountedKinds, Figures, Gates, Operations, OperatorLedger, Roster
from redrive.operator.verdict.facts import CauseFacts, Facts, HeldFacts, KindFacts, LedgerNow, StoreNow
from redrive.operator.verdict.judge import FAILURES_MIN, SHARE_MIN
from redrive.operator.verdict.values import KindPoint

ASKED_MAX = 100
GATES_MAX = 20
GROUPS_MAX = 50
COUNTED_MAX = 100_000
"""How far tasks are counted where no census was ever taken."""
MINUTES = 60


class AskedStore(Protocol):
    """What is asked of a store."""

    @property
    def figures(self) -> Figures: ...

    @property
    def kinds(self) -> CountedKinds: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def operations(self) -> Operations: ...

    def now(self) -> datetime: ...

    async def present(self) -> datetime: ...


class AskedLane(Protocol):
    """What is asked of each ledger."""

    @property
    def name(self) -> str: ...

    @property
    def counted_as(self) -> str: ...

    @property
    def headcount(self) -> Headcount | None: ...

    async def ledger(self) -> OperatorLedger: ...

    async def census(self) -> Census: ...

    async def gate_reader(self, *, limited: bool = False) -> Gates: ...


async def gather(store: AskedStore, lanes: Sequence[AskedLane], writes: StoreNow) -> Facts:
    """All that is known now. `writes` is whether writes go through, which nobody finds out by looking."""
    try:
        return await _gather(store, lanes, writes)
    except LedgerAwayError as error:
        return Facts(now=store.now(), store=replace(writes, trouble=writes.trouble or str(error)))


async def _gather(store: AskedStore, lanes: Sequence[AskedLane], writes: StoreNow) -> Facts:
    counted = await store.figures.states()
    facts = await gather_causes(store, lanes, counted)
    ledgers = [await _ledger(store, lane, counted.get(lane.name), facts.now) for lane in lanes]
    return replace(facts, ledgers=ledgers, store=replace(writes, settled_at=facts.store.settled_at))


async def gather_causes(store: AskedStore, lanes: Sequence[AskedLane], counted: Mapping[str, States]) -> Facts:
    """The same without how many tasks stand where: what fails, of what, and who works. `counted` is the last census of each ledger."""
    names = {lane.name for lane in lanes}
    now, seen, groups, workers, operations = await asyncio.gather(
        store.present(),
        store.kinds.look(),
        store.figures.groups([lane.name for lane in lanes], limit=GROUPS_MAX),
        store.roster.seen(),
        store.operations.open(),
    )
    kinds = [one for one in seen.kinds if one.ledger in names]
    causes = [one for one in seen.causes if one.ledger in names]
    held: list[HeldFacts] = []
    waiting: dict[str, Mapping[str, WaitingKind]] = {}
    for lane in lanes:
        of_gates, waiting[lane.name] = await asyncio.gather(_held(lane, causes), _waiting(lane, kinds, causes))
        held += of_gates
    counted_at = {name: one.counted_at for name, one in counted.items()}
    facts = _causes(causes, groups, kinds, waiting, held, counted_at, now)
    return Facts(
        now=now, store=StoreNow(settled_at=seen.settled_at), kinds=_kinds(kinds, facts, waiting, held), causes=facts, held=held,
        workers=workers, kinds_note=store.kinds.note, last_trouble_at=_last_trouble(causes, now),
        halted=[one for one in operations if one.halted_itself and one.ledger in names],
    )  # fmt: skip


# --- ledgers --------------------------------------------------------------------------------------------------------------


async def _ledger(store: AskedStore, lane: AskedLane, counted: States | None, now: datetime) -> LedgerNow:
    ledger = await lane.ledger()

    async def amounts_of() -> Mapping[State, int]:
        if lane.headcount is not None:
            return await lane.headcount.amounts()
        if counted is not None:
            return await (await lane.census()).amounts_now(counted)
        return await ledger.counts(counted_max=COUNTED_MAX)

    async def marks_of() -> Sequence[tuple[TaskId, EffectMark]]:
        return [] if ledger.effects is None else await ledger.effects.asked(MarkState.PERSON, limit=ASKED_MAX)

    amounts, marks, points, oldest_due = await asyncio.gather(
        amounts_of(),
        marks_of(),
        store.figures.series([lane.counted_as], now - HOUR, MINUTE, ("done", "dead")),
        ledger.oldest_due(),
    )
    lately = (now - LATELY).replace(second=0, microsecond=0)
    return LedgerNow(
        ledger=lane.name, amounts=dict(amounts), is_counted=counted is not None, oldest_due=oldest_due,
        done_lately=int(sum(point.sums["done"] for point in points)),
        dead_lately=int(sum(point.sums["dead"] for point in points if point.start >= lately)),
        unanswered=len(marks), unanswered_more=len(marks) == ASKED_MAX, unanswered_since=min((mark.entered_at for _, mark in marks), default=None),
    )  # fmt: skip


async def _held(lane: AskedLane, causes: Sequence[CauseSeen]) -> list[HeldFacts]:
    """The gates that hold, return or are paused, with what their tries failed of."""
    try:
        reader = await lane.gate_reader(limited=True)
        views = await reader.holding(limit=GATES_MAX)
        names = [view.name for view in views if view.does is not GateDoes.PAUSED]
        parked = await reader.parked_over(names, views[0].at - HOUR) if names else {}
    except (UsageError, TooSlowError):  # it has no gates; or they cannot be told now, and all else can
        return []
    found = []
    for view in views:
        error = next((one.sample for one in causes if one.ledger == lane.name and one.kind in view.kinds), None)
        points = parked_points(parked[view.name], view.at, view.parked) if view.name in parked else ()
        held_of = error if view.does is GateDoes.HOLDING else None
        found.append(HeldFacts(gate=view, error=held_of, probes=view.probes, points=points))
    return found


async def _waiting(
    lane: AskedLane, kinds: Sequence[KindSeen], causes: Sequence[CauseSeen]
) -> Mapping[str, WaitingKind]:
    """Of the kinds that fail first, then of the busiest, then of the others; each costs a look, so only of those that wait."""
    named = dict.fromkeys(one.kind for one in causes if one.ledger == lane.name)
    named |= dict.fromkeys(one.kind for one in sorted(kinds, key=lambda kind: -kind.tries) if one.ledger == lane.name)
    with suppress(TooSlowError):
        open_ = await (await lane.ledger()).list_kinds()
        if open_.cursor is None:  # else these are some of them
            named = {kind: None for kind in named if kind in open_.items}
        named |= dict.fromkeys(sorted(open_.items))
    return await (await lane.census()).waiting(list(named))


# --- causes ---------------------------------------------------------------------------------------------------------------


def _causes(
    causes: Sequence[CauseSeen],
    groups: Sequence[Group],
    kinds: Sequence[KindSeen],
    waiting: Mapping[str, Mapping[str, WaitingKind]],
    held: Sequence[HeldFacts],
    counted_at: Mapping[str, datetime],
    now: datetime,
) -> list[CauseFacts]:
    """What fails or failed, with who is dead of it; and who is dead of something that nobody has counted."""
    dead = {(one.ledger, one.id): one for one in groups}
    by_kind = {(one.ledger, one.kind): one for one in kinds}
    found = []
    for cause in causes:
        group = dead.pop((cause.ledger, cause.id), None)
        waits = waiting.get(cause.ledger, {}).get(cause.kind)
        of_kind = by_kind.get((cause.ledger, cause.kind))
        found.append(_fact(cause, group, waits, of_kind, held, counted_at.get(cause.ledger), now))
    found += [_unseen(group, by_kind.get((group.ledger, group.kind or ""))) for group in dead.values()]
    return found


def _fact(
    cause: CauseSeen,
    group: Group | None,
    waits: WaitingKind | None,
    of_kind: KindSeen | None,
    held: Sequence[HeldFacts],
    counted_at: datetime | None,
    now: datetime,
) -> CauseFacts:
    running = now.replace(second=0, microsecond=0)
    by_minute = {point.start: point.failures for point in cause.points}
    starts = [running - timedelta(minutes=back) for back in range(MINUTES - 1, -1, -1)]
    lately = running - LATELY + timedelta(minutes=1)
    amount = 0 if group is None else group.amount
    # The census lags behind on a large table: who died in later minutes is dead too.
    from_ = None if counted_at is None else counted_at.replace(second=0, microsecond=0)
    unseen = not amount and counted_at is not None and cause.last_seen > counted_at
    later = sum(
        died for minute, died in cause.died_at if from_ is None or minute > from_ or (minute == from_ and unseen)
    )
    gates = [one.gate for one in held if one.gate.ledger == cause.ledger]
    paused = [gate.name for gate in gates if gate.does is GateDoes.PAUSED]
    return CauseFacts(
        ledger=cause.ledger, id=cause.id, kind=cause.kind, error=cause.sample, at=cause.at, since=cause.since, last_failure=cause.last_seen,
        failures=cause.failures, tries=cause.tries, lately=sum(by_minute.get(start, 0) for start in starts if start >= lately),
        died_lately=sum(died for minute, died in cause.died_at if minute >= lately),
        points=tuple(by_minute.get(start, 0) for start in starts),
        first_version=cause.first_version, last_version=cause.last_version, dead=amount + later,
        dead_from=_first(group, cause), dead_to=cause.last_seen if later else None if group is None else group.last_seen,
        waiting=0 if waits is None else waits.waiting + waits.behind_gates,
        waiting_more=waits is not None and waits.more, tries_max=cause.tries_max, lasts=cause.lasts,
        arrives=0 if of_kind is None else of_kind.begun_a_minute, recovered_at=cause.recovered_at,
        tries_since=cause.tries_since, failures_since=cause.failures_since, paused=pausing(paused, cause.kind) is not None,
        held_by=next((gate.name for gate in gates if gate.does is GateDoes.HOLDING and cause.kind in gate.kinds), None),
    )  # fmt: skip


def _first(group: Group | None, cause: CauseSeen) -> datetime | None:
    if group is not None:
        return group.first_seen
    return cause.died_at[0][0] if cause.died_at else None


def _unseen(group: Group, of_kind: KindSeen | None) -> CauseFacts:
    """Tasks that died before kinds were counted, or where they are not. What their kind does now is all that is known."""
    works = of_kind is not None and of_kind.done > 0
    return CauseFacts(
        ledger=group.ledger, id=group.id, kind=group.kind, error=group.sample, at=group.at, since=group.first_seen,
        last_failure=group.last_seen, failures=group.amount, tries=group.amount + (1 if works else 0),
        dead=group.amount, dead_from=group.first_seen, dead_to=group.last_seen,
    )  # fmt: skip


def _last_trouble(causes: Sequence[CauseSeen], now: datetime) -> datetime | None:
    """When the last cause was over that was a trouble."""
    over = [
        one.recovered_at or one.last_seen
        for one in causes
        if one.failures >= FAILURES_MIN and one.failures >= one.tries * SHARE_MIN
    ]
    return max((at for at in over if at <= now), default=None)


# --- kinds ----------------------------------------------------------------------------------------------------------------


def _kinds(
    kinds: Sequence[KindSeen],
    causes: Sequence[CauseFacts],
    waiting: Mapping[str, Mapping[str, WaitingKind]],
    held: Sequence[HeldFacts],
) -> list[KindFacts]:
    """Those that were tried in the last hour, and those that wait."""
    seen = {(one.ledger, one.kind): one for one in kinds}
    named = dict.fromkeys([*seen, *((ledger, kind) for ledger, of in waiting.items() for kind in of)])
    return [
        _kind(ledger, kind, seen.get((ledger, kind)), causes, waiting.get(ledger, {}).get(kind), held)
        for ledger, kind in named
    ]


def _kind(
    ledger: str,
    kind: str,
    seen: KindSeen | None,
    causes: Sequence[CauseFacts],
    waits: WaitingKind | None,
    held: Sequence[HeldFacts],
) -> KindFacts:
    of_gates = [one.gate for one in held if one.gate.ledger == ledger and list(one.gate.kinds) == [kind]]
    behind = 0 if waits is None else waits.behind_gates
    parked = min(behind, sum(gate.parked or 0 for gate in of_gates))
    return KindFacts(
        ledger=ledger, kind=kind, dead=sum(one.dead for one in causes if (one.ledger, one.kind) == (ledger, kind)),
        waiting=(0 if waits is None else waits.waiting) + behind - parked, waiting_more=waits is not None and waits.more, parked=parked,
        oldest_due=None if waits is None else waits.oldest_due,
        tries=0 if seen is None else seen.tries, failures=0 if seen is None else seen.failures,
        begun_a_minute=0 if seen is None else seen.begun_a_minute,
        p50=None if seen is None else seen.p50, p95=None if seen is None else seen.p95,
        points=() if seen is None else [KindPoint(point.start, point.tries, point.failures) for point in seen.points],
    )  # fmt: skip
