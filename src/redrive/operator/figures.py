"""The numbers that charts are drawn from: what each minute counted, added up over ledgers, workers and steps of time.

Nothing here reads a task. Minutes are folded as they grow old, so that a week is a few thousand rows whatever was done in it:
after five minutes the workers of a minute become one row, after two days the minutes of an hour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, delete, func, literal, literal_column, select

from redrive.core.states import State
from redrive.ledgers.rollup import MEASURED
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.ledgers.sql.times import EPOCH, EpochSeconds, HourOf

SUMMED = (*MEASURED, "added", "pruned")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
FOLD_WORKERS_AFTER = timedelta(minutes=5)
"""Soon: everybody who adds tasks in a transaction of their own leaves a row."""
FOLD_MINUTES_AFTER = timedelta(days=2)
FORGET_AFTER = timedelta(days=400)
COMMITTED_WITHIN = HOUR
"""A transaction may end so long after the minute that it counted in."""
FOLDED = ""
"""The worker of a row that stands for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """How many tasks of a ledger are in which state, when they were last counted, and how long the oldest due one waits."""

    amounts: Mapping[State, int]
    counted_at: datetime
    oldest_due: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What happened in one step of time."""

    start: datetime
    sums: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How many tasks stood where in one step of time, at its last census."""

    start: datetime
    amounts: Mapping[State, int]
    oldest_due: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Dead tasks with one cause, as of the last census."""

    ledger: str
    id: str
    text: str
    sample: str
    first_seen: datetime
    last_seen: datetime
    amount: int


def flows_from(at: datetime) -> datetime:
    """The minute from which on flows are added up to carry on a census of this instant.

    Early enough for what was counted before it and committed after; a whole hour, so that no fold moves anything across it.
    """
    return (at - COMMITTED_WITHIN).replace(minute=0, second=0, microsecond=0)


class Figures(OnDatabase):
    """The numbers of one database."""

    @reads
    def states(self, connection: Connection) -> dict[str, States]:
        """Every ledger that was ever counted: its census, and what the minutes have counted since."""
        c, m = schema.census, schema.minute
        found = {}
        for row in connection.execute(select(c)):
            flows = connection.execute(
                select(*(func.coalesce(func.sum(m.c[name]), 0).label(name) for name in schema.FLOWS)).where(
                    m.c.ledger == row.ledger, m.c.minute >= flows_from(row.at)
                )
            ).one()
            changed = {name: int(getattr(flows, name) - getattr(row, f"base_{name}")) for name in schema.FLOWS}
            amounts = {state: int(getattr(row, state.value)) for state in State}
            ended = changed["done"] + changed["dead"] + changed["cancelled"]
            amounts[State.WAITING] += changed["added"] - ended
            amounts[State.DONE] += changed["done"] - changed["pruned"]
            amounts[State.DEAD] += changed["dead"]
            amounts[State.CANCELLED] += changed["cancelled"]
            found[row.ledger] = States(
                amounts={state: max(0, amount) for state, amount in amounts.items()},
                counted_at=row.at,
                oldest_due=_span(row.oldest_due_seconds),
            )
        return found

    @reads
    def ledgers(self, connection: Connection) -> list[str]:
        """Every ledger in which anything was counted."""
        return list(connection.execute(select(schema.minute.c.ledger).distinct().order_by("ledger")).scalars())

    @reads
    def series(
        self,
        connection: Connection,
        ledgers: Sequence[str],
        start: datetime,
        step: timedelta,
        names: Sequence[str] = SUMMED,
    ) -> list[Point]:
        """What happened since `start` in these ledgers, step by step; steps without anything are not there."""
        m = schema.minute
        bucket = _bucket(m.c.minute, step).label("start")
        asked = (
            select(bucket, *(func.sum(m.c[name]).label(name) for name in names))
            .where(m.c.minute >= start, m.c.ledger.in_(ledgers))
            .group_by(bucket)
            .order_by(bucket)
        )
        return [
            Point(start=_instant(row.start), sums={name: float(getattr(row, name)) for name in names})
            for row in connection.execute(asked)
        ]

    @reads
    def sums(self, connection: Connection, ledgers: Sequence[str], start: datetime) -> Mapping[str, float]:
        """All that happened since `start` in these ledgers, added up."""
        m = schema.minute
        asked = select(*(func.coalesce(func.sum(m.c[name]), 0).label(name) for name in SUMMED)).where(
            m.c.minute >= start, m.c.ledger.in_(ledgers)
        )
        row = connection.execute(asked).one()
        return {name: float(getattr(row, name)) for name in SUMMED}

    @reads
    def depths(self, connection: Connection, ledgers: Sequence[str], start: datetime, step: timedelta) -> list[Depth]:
        """How many tasks stood where, step by step."""
        s = schema.sample
        bucket = _bucket(s.c.minute, step).label("start")
        last = (
            select(bucket, s.c.ledger, func.max(s.c.minute).label("minute"))
            .where(s.c.minute >= start, s.c.ledger.in_(ledgers))
            .group_by(bucket, s.c.ledger)
            .subquery()
        )
        asked = (
            select(
                last.c.start,
                *(func.sum(s.c[state.value]).label(state.value) for state in State),
                func.max(s.c.oldest_due_seconds).label("oldest"),
            )
            .join(last, (s.c.minute == last.c.minute) & (s.c.ledger == last.c.ledger))
            .group_by(last.c.start)
            .order_by(last.c.start)
        )
        return [
            Depth(
                start=_instant(row.start),
                amounts={state: int(getattr(row, state.value)) for state in State},
                oldest_due=_span(row.oldest),
            )
            for row in connection.execute(asked)
        ]

    @reads
    def groups(self, connection: Connection, ledgers: Sequence[str], *, limit: int = 100) -> list[Group]:
        """The causes that tasks are dead of, the largest group first."""
        c = schema.cause
        asked = (
            select(c).where(c.c.ledger.in_(ledgers), c.c.amount > 0).order_by(c.c.amount.desc(), c.c.id).limit(limit)
        )
        return [Group(**row._asdict()) for row in connection.execute(asked)]

    @writes
    def fold(self, connection: Connection, now: datetime) -> int:
        """Fold what is old; how many rows went. Safe to call from several processes."""
        m, s = schema.minute, schema.sample
        whole = now.replace(second=0, microsecond=0)
        folded = _fold_rows(connection, self._database, whole - FOLD_WORKERS_AFTER, MINUTE)
        folded += _fold_rows(connection, self._database, whole.replace(minute=0) - FOLD_MINUTES_AFTER, HOUR)
        for table in (m, s):
            folded += connection.execute(delete(table).where(table.c.minute < now - FORGET_AFTER)).rowcount
        # Of the samples of an old hour the last one stays.
        old = s.c.minute < whole.replace(minute=0) - FOLD_MINUTES_AFTER
        kept = select(func.max(s.c.minute)).where(old).group_by(_bucket(s.c.minute, HOUR), s.c.ledger)
        folded += connection.execute(delete(s).where(old, s.c.minute.not_in(kept))).rowcount
        return folded


def _bucket(column: Any, step: timedelta) -> Any:
    """The start of the step that an instant lies in, in seconds since 1970."""
    seconds = literal_column(str(int(step.total_seconds())), BigInteger)
    return EpochSeconds(column) // seconds * seconds


def _instant(seconds: Any) -> datetime:
    return EPOCH + timedelta(seconds=int(seconds))


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _fold_rows(connection: Connection, database: Database, before: datetime, step: timedelta) -> int:
    """Rows older than `before` become one for each ledger and step; how many were folded. What goes is what is added."""
    m = schema.minute
    unfolded = (m.c.worker != FOLDED) if step == MINUTE else (_bucket(m.c.minute, step) != EpochSeconds(m.c.minute))
    old = and_(m.c.minute < before, unfolded)
    amount = int(connection.execute(select(func.count()).select_from(m).where(old)).scalar_one())
    if not amount:
        return 0
    rows, where, afterwards = database.dialect.move(m, old)
    start = rows.c.minute if step == MINUTE else HourOf(rows.c.minute)
    sums = (func.sum(rows.c[name]) for name in SUMMED)
    folded = select(start, rows.c.ledger, literal(FOLDED), *sums).where(*where).group_by(start, rows.c.ledger)
    statement = database.insert(m).from_select(["minute", "ledger", "worker", *SUMMED], folded, include_defaults=False)
    connection.execute(add_up(statement, SUMMED))
    for last in afterwards:
        connection.execute(last)
    return amount
