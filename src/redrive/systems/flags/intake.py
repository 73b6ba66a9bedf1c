"""Taking schedules in: what a change may be, and storing it so that a worker finds it in time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, null, select

from redrive import Redrive
from redrive.lane import Actor
from redrive.operator.json_views import instant_json
from redrive.systems.flags import tables
from redrive.systems.flags.beside import FlagBeside, ScheduleDeed
from redrive.systems.flags.changes import read_values, updates_of
from redrive.systems.flags.errors import InvalidChangeError
from redrive.systems.flags.policy import read_backoff
from redrive.systems.flags.settings import RETRIES_MAX
from redrive.systems.flags.tables import FLAG_SCHEDULES
from redrive.systems.flags.values import PRODUCTION, FlagSchedule, NewSchedule

OPEN_MAX = 1000
"""How many schedules of one flag may wait at once."""
AHEAD_MAX = timedelta(days=3660)
"""How far ahead a change may be planned: ten years."""


class FlagIntake:
    """Where new schedules come in."""

    def __init__(self, app: Redrive, beside: FlagBeside, *, max_retries: int) -> None:
        self._app = app
        self._database = app.database
        self._beside = beside
        self._max_retries = check_retries(max_retries)

    async def schedule(
        self, key: str, *new: NewSchedule, actor: str, environment: str = PRODUCTION
    ) -> list[FlagSchedule]:
        """Plan changes of a flag, all or none."""
        await self._app.open()
        made = await self._database.write(self._store, key, environment, new, Actor(name=actor))
        self._database.wake(FLAG_SCHEDULES.name)
        return made

    def _store(
        self, connection: Connection, key: str, environment: str, new: Sequence[NewSchedule], by: Actor
    ) -> list[FlagSchedule]:
        now = self._database.present(connection)
        rows = [self._row(number, one, now) for number, one in enumerate(new)]
        t, flag = tables.schedules, tables.read_flag(connection, key, environment, stays=True)
        waiting = select(t.c.id).where(t.c.flag_id == flag.id, tables.WAITS).limit(OPEN_MAX)
        if len(connection.execute(waiting).all()) + len(rows) > OPEN_MAX:
            raise InvalidChangeError(f"{OPEN_MAX} schedules of {key!r} are waiting already: cancel some first")
        common = {
            "flag_id": flag.id, "flag_key": key, "environment": environment, "status": "pending", "retry_count": 0,
            "created_by": by.name, "created_at": now, "updated_at": now,
        }  # fmt: skip
        ids = [connection.execute(insert(t).values(**common, **row).returning(t.c.id)).scalar_one() for row in rows]
        found = tables.read_by_id(connection, ids)
        made = [found[id_] for id_ in ids]
        self._beside.record(connection, [_created(one) for one in made], by)
        # Also for what is due later: the worker may sleep for longer than that.
        self._database.announce(connection, FLAG_SCHEDULES.name, soon=True)
        return made

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
            read_backoff(new.backoff)
        except InvalidChangeError as error:
            raise InvalidChangeError(f"schedule {number + 1}: {error}" if number else str(error)) from None
        return {
            "scheduled_at": new.scheduled_at, "updates": updates, "max_retries": retries, "expires_at": new.expires_at,
            "backoff": null() if new.backoff is None else dict(new.backoff),
        }  # fmt: skip


def check_retries(retries: object) -> int:
    """The number of retries, or an `InvalidChangeError` unless it lies between 0 and 10."""
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
        raise InvalidChangeError(f"maxRetries must be a whole number from 0 to {RETRIES_MAX}, not {retries!r:.80}")
    return retries


def _created(schedule: FlagSchedule) -> ScheduleDeed:
    details = {
        "scheduledAt": instant_json(schedule.scheduled_at), "expiresAt": instant_json(schedule.expires_at),
        "updates": schedule.updates, "maxRetries": schedule.max_retries, "backoff": schedule.backoff,
    }  # fmt: skip
    return ScheduleDeed(schedule=schedule, action="created", details=details)
