"""What kinds and causes did in the last hour, minute by minute, and what causes did since they began: one look at the counts.

Only the running minute and the one before are read each time. What older minutes counted is read once a minute and kept: workers write what
they have counted every two seconds, so hardly anything comes later, and what does is seen a minute later. A look costs the same
however long a cause has been there, and however many tasks there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, func, or_, select

from redrive.core.histograms import RAN, RAN_SECONDS, percentile
from redrive.engine.tally import WHOLE
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.times import Instant
from redrive.operator.kinds import (
    CAUSES_SHOWN_MAX,
    KINDS_SHOWN_MAX,
    LATELY,
    SEEN_SPAN,
    TREND,
    CauseSeen,
    KindSeen,
    KindsSeen,
    MinuteOfKind,
)

MINUTE = timedelta(minutes=1)
AHEAD = timedelta(days=1)
"""Where a look ends: behind all that workers have counted, though their clocks may be ahead."""
TOTALS = ("failures", "died", "kind_failures", "kind_done", "done_since", "failures_since")
SUCCESSES = ("first_success", "last_success")

_m, _f = schema.kind_minute, schema.failing
_SINCE, _UNTIL = bindparam("since", type_=Instant), bindparam("until", type_=Instant)
_IDS: Any = bindparam("ids", expanding=True)
_WITHIN = and_(_m.c.minute >= _SINCE, _m.c.minute < _UNTIL)

_PLACES = (_m.c.ledger, _m.c.kind, _m.c.minute)
_MINUTES_OF_KINDS = (
    select(*_PLACES, func.sum(_m.c.tries), func.sum(_m.c.failures))
    .where(_m.c.cause == WHOLE, _WITHIN)
    .group_by(*_PLACES)
    .order_by(*_PLACES)
)
"""Tries and failures of each kind, minute by minute."""

_CAUSE_PLACES = (_m.c.ledger, _m.c.cause, _m.c.minute)
_MINUTES_OF_CAUSES = (
    select(*_CAUSE_PLACES, func.sum(_m.c.failures), func.sum(_m.c.dead))
    .where(_m.c.cause.in_(_IDS), _WITHIN)
    .group_by(*_CAUSE_PLACES)
    .order_by(*_CAUSE_PLACES)
)
"""Failures of causes, and who died of them, minute by minute."""


COUNTED = ("begun", "tries", "failures", "done", "dead", *RAN)
_COUNTED = (
    select(
        *_PLACES, *(func.sum(_m.c[name]).label(name) for name in COUNTED),
        func.max(_m.c.last_success).label("last_success"), func.max(_m.c.last_failure).label("last_failure"),
    )
    .where(_m.c.cause == WHOLE, _WITHIN)
    .group_by(*_PLACES)
    .order_by(*_PLACES)
)  # fmt: skip
"""All that is counted of each kind, minute by minute: for the last few of them."""

_SETTLED = select(func.max(_m.c.last_success), func.max(_m.c.last_failure)).where(
    _m.c.cause == WHOLE, _m.c.minute >= _SINCE
)
"""The last settlement of all."""

_SEEN = select(_f).where(_f.c.last_seen >= _SINCE).order_by(_f.c.last_seen.desc(), _f.c.id).limit(CAUSES_SHOWN_MAX)
"""The causes that were seen last."""


def _sums_of_causes() -> Any:
    """What the kind of each cause has done since the cause began, and since it was last seen."""
    m, seen = _m, select(_f).where(_f.c.id.in_(_IDS)).subquery("seen")
    of_cause, of_kind = m.c.cause == seen.c.id, m.c.cause == WHOLE
    fails_now, succeeds_now = m.c.last_failure >= seen.c.since, m.c.last_success >= seen.c.since

    def total(column: Any, *when: Any) -> Any:
        return func.coalesce(func.sum(case((and_(*when), column), else_=0)), 0)

    # Grouped by the key of a cause alone: to sort by all of its columns cost more than to read the minutes.
    return (
        select(
            seen.c.ledger,
            seen.c.id,
            total(m.c.failures, of_cause, fails_now).label("failures"),
            total(m.c.dead, of_cause, fails_now).label("died"),
            total(m.c.failures, of_kind, fails_now).label("kind_failures"),
            total(m.c.done, of_kind, succeeds_now).label("kind_done"),
            total(m.c.done, of_kind, m.c.first_success > seen.c.last_seen).label("done_since"),
            total(m.c.failures, of_kind, m.c.first_failure > seen.c.last_seen).label("failures_since"),
            func.min(case((and_(of_kind, m.c.first_success > seen.c.last_seen), m.c.first_success))).label("first_success"),
            func.min(case((and_(of_kind, m.c.last_success > seen.c.last_seen), m.c.last_success))).label("last_success"),
        )
        .join(
            m,
            and_(
                m.c.ledger == seen.c.ledger,
                m.c.kind == seen.c.kind,
                or_(of_cause, of_kind),
                m.c.minute >= seen.c.since_hour,
                _WITHIN,
            ),
        )
        .group_by(seen.c.ledger, seen.c.id)
    )  # fmt: skip


_SUMS_OF_CAUSES = _sums_of_causes()

Kind = tuple[str, str]
"""The ledger and the name of a kind."""
Points = Mapping[Kind, Sequence[MinuteOfKind]]
Minutes = Mapping[Kind, Sequence[Any]]
"""Rows of `_COUNTED`."""


@dataclass(frozen=True, slots=True)
class _OfCauses:
    """What was counted of causes over some time: sums of each, and its minutes with how many died in them."""

    sums: Mapping[tuple[str, str], Row[Any]] = field(default_factory=dict)
    points: Mapping[tuple[str, str], Sequence[tuple[datetime, int, int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Past:
    """What older minutes have counted, up to an edge."""

    edge: datetime
    points: Points
    lately: Minutes
    """Those of the last five minutes."""
    causes: _OfCauses = field(default_factory=_OfCauses)
    known: frozenset[tuple[Any, ...]] = frozenset()
    """The causes that it tells of, each as it was then."""


class KindTrends:
    """Looks at the counts of one database. What it keeps is replaced as a whole, so looks may run side by side."""

    def __init__(self) -> None:
        self._past: _Past | None = None

    def look(self, connection: Connection, now: datetime) -> KindsSeen:
        """See `CountedKinds.look`."""
        running = now.replace(second=0, microsecond=0)
        edge, lately = running - MINUTE, running - LATELY + MINUTE
        past = self._past
        if past is None or past.edge != edge:
            counted = _counted(connection, lately, edge)
            past = self._past = _Past(edge, _points(connection, _first(running), edge), counted)
        recent = _counted(connection, edge, now + AHEAD)
        causes = self._causes(connection, past, now)
        return KindsSeen(
            kinds=_kinds(past, recent, running),
            causes=causes,
            settled_at=_settled_at(connection, running, [past.lately, recent]),
        )

    def _causes(self, connection: Connection, past: _Past, now: datetime) -> list[CauseSeen]:
        """The causes, each with what its kind has done since it began and since it was last seen."""
        found = connection.execute(_SEEN, {"since": now - SEEN_SPAN}).all()
        if not found:
            return []
        ids = sorted({row.id for row in found})
        # While a cause goes on, no success that it has recovered with can lie before the edge: then when it was seen last does not matter.
        known = frozenset(
            (row.ledger, row.id, row.since, row.last_seen if row.last_seen < past.edge else None) for row in found
        )
        if not known <= past.known:
            older = _of_causes(connection, ids, now - SEEN_SPAN - timedelta(hours=1), past.edge, _first(now))
            past = self._past = _Past(past.edge, past.points, past.lately, older, known)
        recent = _of_causes(connection, ids, past.edge, now + AHEAD, past.edge)
        return [_cause(row, past.causes, recent) for row in found]


# --- kinds ----------------------------------------------------------------------------------------------------------------


def _points(connection: Connection, since: datetime, until: datetime) -> Points:
    found: dict[tuple[str, str], list[MinuteOfKind]] = {}
    for ledger, kind, minute, tries, failures in connection.execute(
        _MINUTES_OF_KINDS, {"since": since, "until": until}
    ).all():
        found.setdefault((ledger, kind), []).append(MinuteOfKind(minute, int(tries), int(failures)))
    return found


def _first(now: datetime) -> datetime:
    """The first minute of the trend."""
    return now.replace(second=0, microsecond=0) - TREND + MINUTE


def _counted(connection: Connection, since: datetime, until: datetime) -> Minutes:
    found: dict[Kind, list[Any]] = {}
    for row in connection.execute(_COUNTED, {"since": since, "until": until}):
        found.setdefault((row.ledger, row.kind), []).append(row)
    return found


def _settled_at(connection: Connection, running: datetime, lately: Sequence[Minutes]) -> datetime | None:
    rows = [row for some in lately for minutes in some.values() for row in minutes]
    ended = [at for row in rows for at in (row.last_success, row.last_failure) if at is not None]
    if not ended:
        ended = [at for at in connection.execute(_SETTLED, {"since": _first(running)}).one() if at is not None]
    return max(ended, default=None)


def _kinds(past: _Past, recent: Minutes, running: datetime) -> list[KindSeen]:
    new = {
        key: [MinuteOfKind(row.minute, int(row.tries), int(row.failures)) for row in rows]
        for key, rows in recent.items()
    }
    points = {key: [*past.points.get(key, ()), *new.get(key, ())] for key in {**past.points, **new}}
    busiest = sorted(points, key=lambda key: -sum(point.tries for point in points[key]))[:KINDS_SHOWN_MAX]
    return [
        _kind(key, points[key], [*past.lately.get(key, ()), *recent.get(key, ())], running) for key in sorted(busiest)
    ]


def _kind(key: Kind, points: Sequence[MinuteOfKind], lately: Sequence[Any], running: datetime) -> KindSeen:
    columns = zip(*(row[len(_PLACES) : len(_PLACES) + len(COUNTED)] for row in lately), strict=True)
    total = dict.fromkeys(COUNTED, 0) | {
        name: int(sum(amounts)) for name, amounts in zip(COUNTED, columns, strict=False)
    }
    ran = [total[name] for name in RAN] if lately else []
    begun = {row.minute: int(row.begun) for row in lately}
    return KindSeen(
        ledger=key[0], kind=key[1], begun_a_minute=begun.get(running - MINUTE, begun.get(running, 0)),
        tries=total["tries"], failures=total["failures"], done=total["done"], dead=total["dead"],
        p50=span_of(percentile(ran, 0.5, RAN_SECONDS)), p95=span_of(percentile(ran, 0.95, RAN_SECONDS)), points=points,
    )  # fmt: skip


# --- causes ---------------------------------------------------------------------------------------------------------------


def _of_causes(
    connection: Connection, ids: Sequence[str], since: datetime, until: datetime, drawn_from: datetime
) -> _OfCauses:
    """The sums of causes over this time, and of it the minutes that are drawn."""
    sums = connection.execute(_SUMS_OF_CAUSES, {"ids": ids, "since": since, "until": until})
    drawn = connection.execute(_MINUTES_OF_CAUSES, {"ids": ids, "since": drawn_from, "until": until})
    points: dict[tuple[str, str], list[tuple[datetime, int, int]]] = {}
    for ledger, cause, minute, failures, dead in drawn:
        points.setdefault((ledger, cause), []).append((minute, int(failures), int(dead)))
    return _OfCauses({(row.ledger, row.id): row for row in sums}, points)


def _cause(row: Any, past: _OfCauses, recent: _OfCauses) -> CauseSeen:
    key = (row.ledger, row.id)
    sums = [one for one in (past.sums.get(key), recent.sums.get(key)) if one is not None]
    total = {name: sum(int(getattr(one, name)) for one in sums) for name in TOTALS}
    successes = [at for one in sums for name in SUCCESSES if (at := getattr(one, name)) is not None]
    points = [*past.points.get(key, ()), *recent.points.get(key, ())]
    return CauseSeen(
        ledger=row.ledger, id=row.id, kind=row.kind, sample=row.sample, at=row.at, first_seen=row.first_seen, since=row.since,
        last_seen=row.last_seen, first_version=row.first_version, last_version=row.last_version, tries_max=row.tries_max,
        lasts=span_of(row.lasts_seconds), failures=total["failures"], tries=max(total["failures"], total["kind_failures"] + total["kind_done"]),
        died=total["died"], recovered_at=min(successes, default=None), tries_since=total["done_since"] + total["failures_since"],
        failures_since=total["failures_since"], points=[MinuteOfKind(minute, failures, failures) for minute, failures, _ in points],
        died_at=[(minute, dead) for minute, _, dead in points if dead],
    )  # fmt: skip


def span_of(seconds: float | None) -> timedelta | None:
    """A span, from seconds as a column has them."""
    return None if seconds is None else timedelta(seconds=float(seconds))
