"""Schedules as people look through them: all of an environment or of one flag, in sections, page by page.

What is still to come is in the order in which it is due, what is over in the order in which it ended, the last first. Each page
reads one index that holds just its rows in just that order, so it costs the same with a million schedules.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, literal_column, or_, select, text

from redrive.extend import ATTEMPTS, Database, Instant, redact
from redrive.policies import Try
from redrive.systems.flags.errors import InvalidChangeError
from redrive.systems.flags.schedules import LISTED_MAX, Schedule, as_schedule
from redrive.systems.flags.tables import AHEAD, FLAG_SCHEDULES, OVER, Stretch, Tables

PAGE_SIZE = 50
LOOK_WITHIN = timedelta(seconds=5)
"""How long one statement of a page may take. Its index answers in milliseconds, unless the database has other troubles."""
CURSOR_CHARS_MAX = 100


class Section(StrEnum):
    """What people tell apart. `failed` is one word in the table: with a next try it is still to come, without it is over."""

    PENDING = "pending"
    RETRYING = "retrying"
    FAILED = "failed"
    APPLIED = "applied"
    CANCELLED = "cancelled"

    @property
    def stretch(self) -> Stretch:
        """Where its rows are found."""
        return AHEAD if self in (Section.PENDING, Section.RETRYING) else OVER

    @property
    def word(self) -> str:
        """The status of its rows."""
        return "failed" if self is Section.RETRYING else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A schedule with its tries: how many there were, and when those to come are if each of them fails."""

    schedule: Schedule
    tries: int
    upcoming: Sequence[Try]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePage:
    """Some schedules of a section, and where the next page begins, if there is one."""

    seen: Sequence[Seen]
    cursor: str | None


class Pages:
    """The pages of one database."""

    def __init__(self, database: Database, tables: Tables) -> None:
        self._dialect = database.dialect.name
        self._table = tables.schedules

    def page(
        self,
        connection: Connection,
        section: Section,
        *,
        environment: str,
        key: str | None,
        cursor: str | None,
        limit: int,
    ) -> SchedulePage:
        """One page; a `cursor` is the one that the page before gave."""
        if not 1 <= limit <= LISTED_MAX:
            raise InvalidChangeError(f"limit must lie between 1 and {LISTED_MAX}, not {limit}")
        if self._dialect != "sqlite":
            # A plan for every flag alike would read through the schedules of all others to find those of one that has few.
            connection.execute(select(func.set_config("plan_cache_mode", "force_custom_plan", True)))
        c, stretch = self._table.c, section.stretch
        place: Any = literal_column(stretch.place(self._dialect), None if self._dialect == "sqlite" else Instant())
        where: list[Any] = [
            c.environment == environment,
            c.status == literal_column(f"'{section.word}'"),
            text(f"({stretch.where})"),
        ]
        if key is not None:
            where.append(c.flag_key == key)
        if cursor is not None:
            where.append(self._behind(place, *self._read(cursor), forward=stretch is AHEAD))
        order = (place, c.id) if stretch is AHEAD else (place.desc(), c.id.desc())
        found = select(self._table, place.label("place")).where(*where).order_by(*order).limit(limit + 1)
        rows = connection.execute(found).all()
        following = _write(rows[limit - 1]) if len(rows) > limit else None
        tries = self._tries(connection, [row.id for row in rows[:limit]])
        seen = [_seen(as_schedule(row), tries.get(row.id, 0)) for row in rows[:limit]]
        return SchedulePage(seen=seen, cursor=following)

    def _behind(self, place: Any, at: float | datetime, id: int, *, forward: bool) -> Any:
        # Written out, not as a row value: the first half then is a range of the index.
        then, its = bindparam(None, at, type_=place.type), self._table.c.id
        if forward:
            return and_(place >= then, or_(place > then, its > id))
        return and_(place <= then, or_(place < then, its < id))

    def _tries(self, connection: Connection, ids: Sequence[int]) -> dict[int, int]:
        """How often each was tried, in all its life; what a worker gave back was no try."""
        if not ids:
            return {}
        t = ATTEMPTS
        counted = select(t.c.task_id, func.count().label("tries")).where(
            t.c.ledger == FLAG_SCHEDULES.name, t.c.task_id.in_([str(id_) for id_ in ids]), t.c.outcome != "released"
        )
        return {int(row.task_id): row.tries for row in connection.execute(counted.group_by(t.c.task_id))}

    def _read(self, cursor: str) -> tuple[float | datetime, int]:
        """Where a page begins: an instant in the form in which this database orders by it, and an id."""
        try:
            id_, _, at = cursor[:CURSOR_CHARS_MAX].partition("@")
            place = float(at) if self._dialect == "sqlite" else _instant(at)
            known = not isinstance(place, float) or math.isfinite(place)
            if not known or not id_.isascii() or not id_.isdecimal() or int(id_) >= 2**63:
                raise ValueError
        except (ValueError, OverflowError):
            raise InvalidChangeError(f"cursor must be the one that the page before gave, not {cursor!r:.80}") from None
        return place, int(id_)


def _instant(given: str) -> datetime:
    read = datetime.fromisoformat(given)
    if read.tzinfo is None:
        raise ValueError
    return read.astimezone(UTC)


def _write(row: Any) -> str:
    place = row.place
    return f"{row.id}@{place.isoformat() if isinstance(place, datetime) else repr(place)}"


def _seen(schedule: Schedule, tries: int) -> Seen:
    if schedule.last_error is not None:  # others may have written it
        schedule = replace(schedule, last_error=redact(schedule.last_error))
    return Seen(schedule=schedule, tries=tries, upcoming=schedule.upcoming())
