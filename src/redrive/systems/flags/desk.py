"""What operators see of schedules and do to them: by flag, across flags page by page, and by their ids.

What is still to come is in the order in which it is due, what is over in the order in which it ended, the last first. Each page
reads one index that holds just its rows in just that order, so it costs the same with a million schedules.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, literal_column, select, text

from redrive import Redrive
from redrive.errors import UsageError
from redrive.extend import ATTEMPTS, OnDatabase, looks, reads, writes
from redrive.lane import Acted, Lane, Page
from redrive.operator.cursors import Position, read_cursor, write_cursor
from redrive.operator.sql.cursors import behind
from redrive.operator.words import redact
from redrive.systems.flags import tables
from redrive.systems.flags.changes import LastSet, Stamp, Values, readable_values, superseded
from redrive.systems.flags.errors import InvalidChangeError, InvalidStateError, ScheduleNotFoundError
from redrive.systems.flags.tables import AHEAD, FLAG_SCHEDULES, OVER
from redrive.systems.flags.values import (
    LISTED_MAX,
    LONG_AGO,
    PRODUCTION,
    FlagSchedule,
    Foreseen,
    Retries,
    ScheduleStatus,
    SeenSchedule,
)

PAGE_SIZE = 50
CURSOR_CHARS_MAX = 100
LOOK_WITHIN = timedelta(seconds=5)
"""How long one statement of a page may take. Its index answers in milliseconds, unless the database has other troubles."""


class FlagDesk(OnDatabase):
    """Schedules for people."""

    def __init__(self, app: Redrive, lane: Lane) -> None:
        super().__init__(app.database, open=app.open)
        self._lane = lane

    # --- the schedules of a flag ------------------------------------------------------------------------------------

    @reads
    def schedules(
        self,
        connection: Connection,
        key: str,
        *,
        environment: str = PRODUCTION,
        limit: int = LISTED_MAX,
        offset: int = 0,
    ) -> list[FlagSchedule]:
        """All schedules of a flag by their time, also of one that was deleted since."""
        found = tables.read_schedules(connection, self._of(key, environment), limit=limit, offset=offset)
        if not found and not offset:
            tables.read_flag(connection, key, environment)
        return found

    @reads
    def get_schedule(self, connection: Connection, key: str, id: int, *, environment: str = PRODUCTION) -> FlagSchedule:
        """One schedule of a flag."""
        found = tables.read_schedules(connection, self._of(key, environment) & (tables.schedules.c.id == id))
        if not found:
            raise ScheduleNotFoundError(key, environment, id)
        return found[0]

    async def retries(self, key: str, id: int, *, environment: str = PRODUCTION) -> Retries:
        """The tries of a schedule so far, and the times of those to come."""
        schedule = await self.get_schedule(key, id, environment=environment)
        while True:
            attempts, seen = await self._lane.attempts(id), schedule
            schedule = await self.get_schedule(key, id, environment=environment)
            if schedule == seen:  # else it was tried between the two looks, and they do not fit together
                return Retries(schedule=schedule, attempts=attempts, upcoming=schedule.upcoming())

    @reads
    def foresee(self, connection: Connection, key: str, at: datetime, *, environment: str = PRODUCTION) -> Foreseen:
        """The state of a flag at a time to come, if every schedule until then succeeds at its next try."""
        flag = tables.read_flag(connection, key, environment)
        if at < self._database.present(connection):
            raise InvalidChangeError("at lies in the past: a preview shows what is to come")
        waits = tables.WAITS & (tables.schedules.c.flag_id == flag.id)
        due = [
            (one.due_at or LONG_AGO, one.scheduled_at, one.id, one) for one in tables.read_schedules(connection, waits)
        ]
        values: Values = {"enabled": flag.enabled, "rollout_percentage": flag.rollout_percentage}
        last_set, applied = LastSet(flag.last_set), list[int]()
        for when, scheduled_at, id_, schedule in sorted(due, key=lambda one: one[:3]):
            sets = readable_values(schedule.updates)
            too_late = when > at or schedule.expires_by(when)
            if sets and not too_late and last_set.newer_than(sets, scheduled_at, id_) is None:
                values |= sets
                last_set.mark(sets, Stamp(scheduled_at, id_))
                applied.append(id_)
        return Foreseen(at=at, **values, applied=tuple(applied))

    def _of(self, key: str, environment: str) -> Any:
        c = tables.schedules.c
        return (c.flag_key == key) & (c.environment == environment)

    # --- across flags, page by page ---------------------------------------------------------------------------------

    async def page(
        self,
        status: ScheduleStatus,
        *,
        environment: str = PRODUCTION,
        key: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[SeenSchedule]:
        """Schedules of an environment, across its flags; a `cursor` is the one that the page before gave."""
        if not 1 <= limit <= LISTED_MAX:
            raise InvalidChangeError(f"limit must lie between 1 and {LISTED_MAX}, not {limit}")
        ledger = await self._lane.ledger()
        try:
            after = None if cursor is None else read_cursor(cursor, ledger.read_id)
            return await self._page(status, environment, key, after, limit)
        except UsageError:
            raise InvalidChangeError(f"cursor must be the one that the page before gave, not {cursor!r:.80}") from None

    @looks(LOOK_WITHIN)
    def _page(
        self,
        connection: Connection,
        status: ScheduleStatus,
        environment: str,
        key: str | None,
        after: Position | None,
        limit: int,
    ) -> Page[SeenSchedule]:
        t = tables.schedules
        listing = AHEAD if status.is_ahead else OVER
        place = listing.place
        where: list[Any] = [
            t.c.environment == environment,
            t.c.status == literal_column(f"'{status.word}'"),
            text(f"({listing.where})"),
        ]
        if key is not None:
            where.append(t.c.flag_key == key)
        if after is not None:
            where.append(behind(place, t.c.id, after, connection, newest_first=not status.is_ahead))
        order = (place, t.c.id) if status.is_ahead else (place.desc(), t.c.id.desc())
        found = select(t, place.label("place")).where(*where).order_by(*order).limit(limit + 1)
        rows = connection.execute(found).all()
        following = write_cursor(Position(rows[limit - 1].place, rows[limit - 1].id)) if len(rows) > limit else None
        tries = _count_tries(connection, [row.id for row in rows[:limit]])
        seen = [_seen(FlagSchedule.of(row), tries.get(row.id, 0)) for row in rows[:limit]]
        return Page(items=seen, cursor=following)

    # --- acting -----------------------------------------------------------------------------------------------------

    async def cancel(self, key: str, id: int, *, actor: str, environment: str = PRODUCTION) -> FlagSchedule:
        """End a schedule that waits, for its time or for a retry; `InvalidStateError` for any other."""
        await self.get_schedule(key, id, environment=environment)
        return await self._after(await self.cancel_all([id], actor=actor), key, id, environment)

    async def cancel_all(self, ids: Collection[int], *, actor: str, reason: str = "cancelled by hand") -> Acted:
        """End schedules that wait, of whatever flag, all in one commit; those that do not wait stay as they are."""
        acted = await self._cancel(ids, actor, reason)
        if acted.changed:
            await self._lane.count_soon()
        return acted

    @writes
    def _cancel(self, connection: Connection, ids: Collection[int], actor: str, reason: str) -> Acted:
        found = tables.read_by_id(connection, ids)
        ended: set[Any] = set(self._lane.cancel_sync([*found], actor=actor, reason=reason, within=connection))
        refused: dict[Any, str] = {id_: _absent(id_) for id_ in ids if id_ not in ended}
        for id_, schedule in tables.read_by_id(connection, found.keys() - ended).items():
            state = "being applied just now" if schedule.lease_until is not None else f"{schedule.status} for good"
            refused[id_] = f"schedule {id_} is {state}: only one that waits can be cancelled"
        return Acted(changed=sorted(ended.intersection(found)), refused=refused)

    async def retry(self, key: str, id: int, *, actor: str, environment: str = PRODUCTION) -> FlagSchedule:
        """Bring a schedule back that has failed for good, due now and with all its retries."""
        await self.get_schedule(key, id, environment=environment)
        return await self._after(await self.retry_all([id], actor=actor), key, id, environment)

    async def retry_all(self, ids: Collection[int], *, actor: str, reason: str = "retried by hand") -> Acted:
        """Bring back schedules that have failed for good, of whatever flag; the others stay as they are."""
        dead, refused = await self._to_retry(ids)
        changed = (await self._lane.redrive(dead, actor=actor, reason=reason)).changed if dead else ()
        if changed:
            await self._lane.count_soon()
        for id_ in set(dead).difference(changed):
            refused[id_] = f"schedule {id_} was brought back by somebody else just now"
        return Acted(changed=sorted(set(dead).intersection(changed)), refused=refused)

    @reads
    def _to_retry(self, connection: Connection, ids: Collection[int]) -> tuple[list[int], dict[Any, str]]:
        """Those that a person may bring back, and of the others why not."""
        found, t = tables.read_by_id(connection, ids), tables.flags
        now = self._database.present(connection)
        named = select(t.c.id, t.c.last_set).where(t.c.id.in_({one.flag_id for one in found.values()} - {None}))
        last_set = {row.id: LastSet(row.last_set) for row in connection.execute(named)}
        refused: dict[Any, str] = {id_: _absent(id_) for id_ in ids if id_ not in found}
        for id_, schedule in found.items():
            why = _not_to_retry(schedule, last_set.get(schedule.flag_id or 0), now)
            if why is not None:
                refused[id_] = f"schedule {id_} {why}"
        return [id_ for id_ in found if id_ not in refused], refused

    async def _after(self, acted: Acted, key: str, id: int, environment: str) -> FlagSchedule:
        """The one schedule that was acted on, as it stands; `InvalidStateError` if it was left alone."""
        if acted.refused:
            raise InvalidStateError(acted.refused[id])
        return await self.get_schedule(key, id, environment=environment)


def _count_tries(connection: Connection, ids: Sequence[int]) -> dict[int, int]:
    """How often each was tried, in all its life; what a worker gave back was not a try."""
    if not ids:
        return {}
    t = ATTEMPTS
    counted = select(t.c.task_id, func.count().label("tries")).where(
        t.c.ledger == FLAG_SCHEDULES.name, t.c.task_id.in_([str(id_) for id_ in ids]), t.c.outcome != "released"
    )
    return {int(row.task_id): row.tries for row in connection.execute(counted.group_by(t.c.task_id))}


def _seen(schedule: FlagSchedule, tries: int) -> SeenSchedule:
    if schedule.last_error is not None:  # others may have written it
        schedule = replace(schedule, last_error=redact(schedule.last_error))
    return SeenSchedule(schedule=schedule, tries=tries, upcoming=schedule.upcoming())


def _absent(id: int) -> str:
    return f"there is no schedule {id}"


def _not_to_retry(schedule: FlagSchedule, last_set: LastSet | None, now: datetime) -> str | None:
    """Why a person may not bring it back: it has not failed for good, or would end the same way at once."""
    if schedule.status != "failed" or schedule.is_open:
        state = "waiting for its next try" if schedule.is_open else schedule.status
        return f"is {state}: only one that failed for good can be retried"
    if schedule.expires_by(now):
        return "has expired: make a new one instead"
    if last_set is None:
        return "has no flag any more, it was deleted: make a new flag and a new schedule"
    newer = last_set.newer_than(readable_values(schedule.updates), schedule.scheduled_at, schedule.id)
    return None if newer is None else f"would be {superseded(*newer)}: make a new one instead"
