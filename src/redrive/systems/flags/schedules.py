"""Schedules in the database: functions of a connection, run by `service` in transactions of its own.

A schedule is a task of the lane, which claims, settles, cancels and redrives it. Here is what a person does with one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from redrive.extend import EPOCH, Database
from redrive.lane import Lane
from redrive.operator.json_views import instant_json
from redrive.policies import Try, preview
from redrive.systems.flags.audit import Audit, Entry
from redrive.systems.flags.changes import LastSet, Stamp, Values, read_values, superseded, updates_of
from redrive.systems.flags.errors import (
    FlagNotFoundError,
    InvalidChangeError,
    ScheduleNotFoundError,
)
from redrive.systems.flags.policy import POLICY
from redrive.systems.flags.settings import RETRIES_MAX
from redrive.systems.flags.tables import FLAG_SCHEDULES, Tables, instant

OPEN_MAX = 1000
"""How many schedules of one flag may wait at once."""
LISTED_MAX = 1000
AHEAD_MAX = timedelta(days=3660)
"""How far ahead a change may be planned: ten years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A change that shall take effect at a set time."""

    scheduled_at: datetime
    updates: dict[str, Any]
    max_retries: int | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A change that takes effect at a set time, as it stands."""

    id: int
    flag_id: int | None
    flag_key: str
    environment: str
    scheduled_at: datetime
    status: str
    updates: dict[str, Any]
    applied_at: datetime | None
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    last_error: str | None
    created_by: str | None
    cancelled_by: str | None
    cancelled_at: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    expires_at: datetime | None
    lease_until: datetime | None

    @property
    def is_open(self) -> bool:
        """Whether it may still be applied: it waits for its time or for a retry, or is being applied."""
        return self.status == "pending" or self.next_retry_at is not None or self.lease_until is not None

    @property
    def due_at(self) -> datetime | None:
        """When it is tried next, if it waits."""
        if not self.is_open:
            return None
        return self.next_retry_at or self.scheduled_at

    def upcoming(self) -> list[Try]:
        """The exact times of the tries to come, if each of them fails."""
        if self.due_at is None or self.expires_by(self.due_at):
            return []
        return preview(
            POLICY, str(self.id), self.due_at, failures=self.retry_count, failures_max=self.max_retries + 1,
            deadline_at=self.expires_at,
        )  # fmt: skip

    def entry(self, action: str, actor: str, details: Mapping[str, Any]) -> Entry:
        """What the audit records of it."""
        return Entry(
            action=action, actor=actor, schedule_id=self.id, flag_key=self.flag_key, environment=self.environment,
            details=details,
        )  # fmt: skip

    def expires_by(self, now: datetime) -> bool:
        """Whether it is too late for it then."""
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """What a person's act on several came to: the ids of those that changed, and of the others why not."""

    changed: list[int]
    refused: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """The state of a flag at some time, if every schedule until then succeeds at its next try."""

    at: datetime
    enabled: bool
    rollout_percentage: int
    applied: tuple[int, ...]


class Schedules:
    """The schedules of one database."""

    def __init__(self, database: Database, tables: Tables, lane: Lane, audit: Audit, *, max_retries: int) -> None:
        self._database = database
        self._tables = tables
        self._table = tables.schedules
        self._lane = lane
        self._audit = audit
        self._max_retries = max_retries

    # --- making -----------------------------------------------------------------------------------------------------

    def create(
        self, connection: Connection, key: str, environment: str, new: Sequence[NewSchedule], actor: str
    ) -> list[Schedule]:
        """Store schedules, all or none."""
        now = self._database.present(connection)
        rows = [self._row(number, one, now) for number, one in enumerate(new)]
        flag = self._flag(connection, key, environment, stays=True)
        if flag is None:
            raise FlagNotFoundError(key, environment)
        waiting = select(self._table.c.id).where(self._table.c.flag_id == flag.id, self._waits).limit(OPEN_MAX)
        if len(connection.execute(waiting).all()) + len(rows) > OPEN_MAX:
            raise InvalidChangeError(f"{OPEN_MAX} schedules of {key!r} wait already: cancel some first")
        common = {
            "flag_id": flag.id, "flag_key": key, "environment": environment, "status": "pending", "retry_count": 0,
            "created_by": actor, "created_at": now, "updated_at": now,
        }  # fmt: skip
        ids = [
            connection.execute(insert(self._table).values(**common, **row).returning(self._table.c.id)).scalar_one()
            for row in rows
        ]
        made = [as_schedule(row) for row in self._rows(connection, self._table.c.id.in_(ids))]
        self._audit.record(connection, [one.entry("created", actor, _planned(one)) for one in made])
        # Also for what is due later: the worker may sleep for longer than that.
        self._database.announce(connection, FLAG_SCHEDULES.name, soon=True)
        return sorted(made, key=lambda one: one.id)

    def _row(self, number: int, new: NewSchedule, now: datetime) -> dict[str, Any]:
        try:
            retries = self._max_retries if new.max_retries is None else check_retries(new.max_retries)
            if new.scheduled_at.tzinfo is None or (new.expires_at is not None and new.expires_at.tzinfo is None):
                raise InvalidChangeError(
                    "scheduledAt and expiresAt must carry a time zone, such as 2026-01-31T09:00:00Z"
                )
            if not now < new.scheduled_at <= now + AHEAD_MAX:
                raise InvalidChangeError(f"scheduledAt must lie in the future, at most {AHEAD_MAX.days} days from now")
            if new.expires_at is not None and new.expires_at <= new.scheduled_at:
                raise InvalidChangeError("expiresAt must lie after scheduledAt")
            updates = updates_of(read_values(new.updates))
        except InvalidChangeError as error:
            raise InvalidChangeError(f"schedule {number + 1}: {error}" if number else str(error)) from None
        return {
            "scheduled_at": new.scheduled_at, "updates": updates, "max_retries": retries, "expires_at": new.expires_at
        }  # fmt: skip

    # --- looking ----------------------------------------------------------------------------------------------------

    def listed(
        self, connection: Connection, key: str, environment: str, *, limit: int = LISTED_MAX, offset: int = 0
    ) -> list[Schedule]:
        """All schedules of a flag by their time, also of one that was deleted since."""
        rows = self._rows(connection, self._of(key, environment), limit=limit, offset=offset)
        if not rows and not offset and self._flag(connection, key, environment) is None:
            raise FlagNotFoundError(key, environment)
        return [as_schedule(row) for row in rows]

    def get(self, connection: Connection, key: str, environment: str, id: int) -> Schedule:
        """One schedule of the flag."""
        rows = self._rows(connection, self._of(key, environment) & (self._table.c.id == id), limit=1)
        if not rows:
            raise ScheduleNotFoundError(key, environment, id)
        return as_schedule(rows[0])

    def to_retry(self, connection: Connection, ids: Collection[int]) -> tuple[dict[int, Schedule], dict[int, str]]:
        """Those that a person may bring back, and of the others why not."""
        found, t = self._by_id(connection, ids), self._tables.flags
        now = self._database.present(connection)
        named = select(t.c.id, t.c.last_set).where(t.c.id.in_({one.flag_id for one in found.values()} - {None}))
        last_set = {row.id: LastSet(row.last_set) for row in connection.execute(named)}
        refused = {id_: _absent(id_) for id_ in ids if id_ not in found}
        for id_, schedule in found.items():
            why = _not_to_retry(schedule, last_set.get(schedule.flag_id or 0), now)
            if why is not None:
                refused[id_] = f"schedule {id_} {why}"
        return {id_: one for id_, one in found.items() if id_ not in refused}, refused

    def foresee(self, connection: Connection, key: str, environment: str, at: datetime) -> Foreseen:
        """The state of the flag at that time, if every schedule until then succeeds at its next try."""
        flag = self._flag(connection, key, environment)
        if flag is None:
            raise FlagNotFoundError(key, environment)
        if at < self._database.present(connection):
            raise InvalidChangeError("at lies in the past: only what is to come can be foreseen")
        waiting = [as_schedule(row) for row in self._rows(connection, self._waits & (self._table.c.flag_id == flag.id))]
        due = [(one.due_at or EPOCH, one.scheduled_at, one.id, one) for one in waiting]
        values: Values = {"enabled": flag.enabled, "rollout_percentage": flag.rollout_percentage}
        last_set, applied = LastSet(flag.last_set), list[int]()
        for when, scheduled_at, id_, schedule in sorted(due, key=lambda one: one[:3]):
            sets = _values(schedule)
            too_late = when > at or schedule.expires_by(when)
            if sets and not too_late and last_set.newer_than(sets, scheduled_at, id_) is None:
                values |= sets
                last_set.mark(sets, Stamp(scheduled_at, id_))
                applied.append(id_)
        return Foreseen(at=at, **values, applied=tuple(applied))

    # --- ending -----------------------------------------------------------------------------------------------------

    def cancel(self, connection: Connection, ids: Collection[int], actor: str, reason: str) -> Acted:
        """End those that wait, for their time or for a retry."""
        found = self._by_id(connection, ids)
        ended = set(self._lane.cancel_sync([*found], actor=actor, reason=reason, within=connection))
        others = self._by_id(connection, found.keys() - ended)
        refused = {id_: _absent(id_) for id_ in ids if id_ not in ended}
        for id_, schedule in others.items():
            state = "being applied just now" if schedule.lease_until is not None else f"{schedule.status} for good"
            refused[id_] = f"schedule {id_} is {state}: only one that waits can be cancelled"
        return Acted(changed=sorted(id_ for id_ in found if id_ in ended), refused=refused)

    def end_superseded(
        self, connection: Connection, flag_id: int, columns: Collection[str], stamp: Stamp, actor: str
    ) -> None:
        """End the retries that wait to set what was just set by a newer change, in its transaction."""
        waits_again = self._waits & self._table.c.next_retry_at.is_not(None)
        rows = self._rows(connection, waits_again & (self._table.c.flag_id == flag_id))
        older = dict[str, list[Schedule]]()
        for schedule in map(as_schedule, rows):
            shared = [column for column in _values(schedule) if column in columns]
            if shared and stamp.is_newer_than(schedule.scheduled_at, schedule.id):
                older.setdefault(superseded(shared[0], stamp), []).append(schedule)
        for reason, schedules in older.items():
            # Only those that nobody has claimed meanwhile: they see for themselves when they run.
            ended = self._lane.cancel_sync([one.id for one in schedules], actor=actor, reason=reason, within=connection)
            if ended:
                self.mark_superseded(connection, [one.id for one in schedules if one.id in ended], reason)

    def mark_superseded(self, connection: Connection, ids: Sequence[int], reason: str) -> None:
        """Write into the rows of those that gave way to a newer change why they did."""
        values = {"last_error": reason, "error_message": "superseded"}
        connection.execute(update(self._table).where(self._table.c.id.in_(ids)).values(values))

    # --- rows -------------------------------------------------------------------------------------------------------

    def read(self, connection: Connection, id: int) -> Schedule | None:
        """The schedule with this id, whosever it is."""
        rows = self._rows(connection, self._table.c.id == id, limit=1)
        return as_schedule(rows[0]) if rows else None

    def _by_id(self, connection: Connection, ids: Collection[int]) -> dict[int, Schedule]:
        """Those of the ids that there are, by their time."""
        if not ids:
            return {}
        return {row.id: as_schedule(row) for row in self._rows(connection, self._table.c.id.in_(ids))}

    def _flag(self, connection: Connection, key: str, environment: str, *, stays: bool = False) -> Row[Any] | None:
        """The row of a flag; if it `stays`, nobody deletes it before the transaction ends."""
        t = self._tables.flags
        found = select(t).where(t.c.flag_key == key, t.c.environment == environment)
        if stays:
            found = found.with_for_update(read=True, key_share=True)
        return connection.execute(found).first()

    def _of(self, key: str, environment: str) -> ColumnElement[bool]:
        return (self._table.c.flag_key == key) & (self._table.c.environment == environment)

    @property
    def _waits(self) -> ColumnElement[bool]:
        """Schedules that wait, for their time or for a retry, and that nobody applies just now."""
        c = self._table.c
        again = (c.status == "failed") & c.next_retry_at.is_not(None)
        return ((c.status == "pending") | again) & c.lease_until.is_(None)

    def _rows(
        self, connection: Connection, where: ColumnElement[bool], *, limit: int | None = None, offset: int = 0
    ) -> Sequence[Row[Any]]:
        time = instant(self._table.c.scheduled_at, self._database.dialect.name)
        found = select(self._table).where(where).order_by(time, self._table.c.id).limit(limit).offset(offset)
        return connection.execute(found).all()


def as_schedule(row: Row[Any]) -> Schedule:
    """A row of the table."""
    known = {name: getattr(row, name) for name in Schedule.__slots__}
    # What others wrote and nobody can read: such a time is due, as in a claim, and such updates say nothing.
    read = {
        "scheduled_at": row.scheduled_at or EPOCH,
        "updates": row.updates if isinstance(row.updates, dict) else {},
    }
    return Schedule(**known | read)


def check_retries(retries: object) -> int:
    """The number of retries, or an `InvalidChangeError` unless it lies between 0 and 10."""
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
        raise InvalidChangeError(f"maxRetries must be a whole number from 0 to {RETRIES_MAX}, not {retries!r:.80}")
    return retries


def _values(schedule: Schedule) -> Values:
    """What it sets; nothing where somebody else wrote what cannot be set, which it will say itself when it runs."""
    try:
        return read_values(schedule.updates)
    except InvalidChangeError:
        return {}


def _absent(id: int) -> str:
    return f"there is no schedule {id}"


def _not_to_retry(schedule: Schedule, last_set: LastSet | None, now: datetime) -> str | None:
    """Why a person may not bring it back: it has not failed for good, or would end the same way at once."""
    if schedule.status != "failed" or schedule.is_open:
        state = "waiting for its next try" if schedule.is_open else schedule.status
        return f"is {state}: only one that failed for good can be retried"
    if schedule.expires_by(now):
        return "has expired: make a new one instead"
    if last_set is None:
        return "has no flag any more, it was deleted: make a new flag and a new schedule"
    newer = last_set.newer_than(_values(schedule), schedule.scheduled_at, schedule.id)
    return None if newer is None else f"would be {superseded(*newer)}: make a new one instead"


def _planned(schedule: Schedule) -> dict[str, Any]:
    return {
        "scheduledAt": instant_json(schedule.scheduled_at),
        "expiresAt": instant_json(schedule.expires_at),
        "updates": schedule.updates,
        "maxRetries": schedule.max_retries,
    }
