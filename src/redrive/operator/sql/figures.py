"""Figures in tables of SQL."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, and_, bindparam, delete, func, literal, literal_column, select

from redrive.core.states import State
from redrive.ledgers.rollup import FLOWS
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.ledgers.sql.times import EPOCH, EpochSeconds, HourOf, Instant
from redrive.ledgers.sql.upsert import upsert
from redrive.operator.figures import (
    FOLD_MINUTES_AFTER,
    FOLD_WORKERS_AFTER,
    FOLDED,
    FORGET_AFTER,
    HOUR,
    MINUTE,
    SUMMED,
    Depth,
    Group,
    Point,
    States,
    carried_on,
    flows_from,
)


class SqlFigures(OnDatabase):
    """The numbers of one database; see `Figures`."""

    @reads
    def states(self, connection: Connection) -> dict[str, States]:
        """See `Figures.states`."""
        found = {}
        for row in connection.execute(_COUNTED):
            flows = connection.execute(_FLOWED, {"ledgers": [row.ledger], "since": flows_from(row.at)}).one()
            changed = {name: int(getattr(flows, name) - getattr(row, f"base_{name}")) for name in FLOWS}
            amounts = {state: int(getattr(row, state.value)) for state in State}
            found[row.ledger] = States(
                amounts=carried_on(amounts, changed),
                counted_at=row.at,
                oldest_due=_span(row.oldest_due_seconds),
            )
        return found

    @reads
    def ledgers(self, connection: Connection) -> list[str]:
        """See `Figures.ledgers`."""
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
        """See `Figures.series`."""
        rows = connection.execute(_stepped(step, tuple(names)), {"ledgers": list(ledgers), "since": start})
        return [
            Point(start=_instant(first), sums=dict(zip(names, map(float, sums), strict=True))) for first, *sums in rows
        ]

    @reads
    def sums(self, connection: Connection, ledgers: Sequence[str], start: datetime) -> Mapping[str, float]:
        """See `Figures.sums`."""
        row = connection.execute(_SUMMED, {"ledgers": list(ledgers), "since": start}).one()
        return dict(zip(SUMMED, map(float, row), strict=True))

    @reads
    def depths(self, connection: Connection, ledgers: Sequence[str], start: datetime, step: timedelta) -> list[Depth]:
        """See `Figures.depths`."""
        rows = connection.execute(_deep(step), {"ledgers": list(ledgers), "since": start})
        return [
            Depth(
                start=_instant(first),
                amounts=dict(zip(State, map(int, amounts), strict=True)),
                oldest_due=_span(oldest),
            )
            for first, oldest, *amounts in rows
        ]

    @reads
    def groups(self, connection: Connection, ledgers: Sequence[str], *, limit: int = 100) -> list[Group]:
        """See `Figures.groups`."""
        c = schema.cause
        asked = (
            select(c).where(c.c.ledger.in_(ledgers), c.c.amount > 0).order_by(c.c.amount.desc(), c.c.id).limit(limit)
        )
        return [Group(**row._asdict()) for row in connection.execute(asked)]

    @writes
    def sample(
        self, connection: Connection, ledger: str, amounts: Mapping[State, int], oldest_due: timedelta | None
    ) -> None:
        """See `Figures.sample`."""
        row = {
            "minute": self._database.present(connection).replace(second=0, microsecond=0),
            "ledger": ledger,
            "oldest_due_seconds": None if oldest_due is None else oldest_due.total_seconds(),
            **{state.value: amounts.get(state, 0) for state in State},
        }
        connection.execute(upsert(self._database, schema.sample), row)

    @writes
    def fold(self, connection: Connection, now: datetime) -> int:
        """See `Figures.fold`."""
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


_LEDGERS: Any = bindparam("ledgers", expanding=True)
_SINCE = bindparam("since", type_=Instant)
_COUNTED = select(schema.census)


def _within(table: Any) -> Any:
    return and_(table.c.minute >= _SINCE, table.c.ledger.in_(_LEDGERS))


def _added_up(names: Sequence[str]) -> Select[Any]:
    m = schema.minute
    return select(*(func.coalesce(func.sum(m.c[name]), 0).label(name) for name in names)).where(_within(m))


_FLOWED, _SUMMED = _added_up(FLOWS), _added_up(SUMMED)
"""What the minutes counted since then, all in one row."""


@cache
def _stepped(step: timedelta, names: tuple[str, ...]) -> Select[Any]:
    """The same step by step."""
    m = schema.minute
    bucket = _bucket(m.c.minute, step).label("start")
    sums = (func.sum(m.c[name]).label(name) for name in names)
    return select(bucket, *sums).where(_within(m)).group_by(bucket).order_by(bucket)


@cache
def _deep(step: timedelta) -> Select[Any]:
    """The last sample of each step and ledger, added up over ledgers."""
    s = schema.sample
    bucket = _bucket(s.c.minute, step).label("start")
    of_step = select(bucket, s.c.ledger, func.max(s.c.minute).label("minute")).where(_within(s))
    last = of_step.group_by(bucket, s.c.ledger).subquery()
    amounts = (func.sum(s.c[state.value]).label(state.value) for state in State)
    return (
        select(last.c.start, func.max(s.c.oldest_due_seconds).label("oldest"), *amounts)
        .join(last, (s.c.minute == last.c.minute) & (s.c.ledger == last.c.ledger))
        .group_by(last.c.start)
        .order_by(last.c.start)
    )


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
