"""Taking schedules in: what a change may be, and storing it so that a worker finds it in time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Text, insert, literal_column, null, select

from redrive import Redrive
from redrive.extend import Gated, NamedGate
from redrive.lane import Actor, Lane
from redrive.operator.json_views import instant_json
from redrive.systems.flags import tables
from redrive.systems.flags.beside import FlagBeside, ScheduleDeed
from redrive.systems.flags.changes import read_values, updates_of
from redrive.systems.flags.errors import InvalidChangeError
from redrive.systems.flags.policy import read_backoff
from redrive.systems.flags.settings import RETRIES_MAX
from redrive.systems.flags.tables import FLAG_SCHEDULES
from redrive.systems.flags.values import NORMAL, PRIORITIES, PRODUCTION, FlagSchedule, NewSchedule
from redrive.systems.kit.gates import GatesWhenSet

RUNNER = "schedules"
"""The gate of all schedules."""
OPEN_MAX = 1000
"""How many schedules of one flag may wait at once."""
AHEAD_MAX = timedelta(days=3660)
"""How far ahead a change may be planned: ten years."""


class FlagIntake:
    """Where new schedules come in."""

    def __init__(self, app: Redrive, beside: FlagBeside, lane: Lane, *, max_retries: int) -> None:
        self._app = app
        self._lane = lane
        # One gate for the whole runner. Rows name it when somebody limits or pauses it, or when one of them goes before others.
        self.gates = GatesWhenSet(
            lane, app.database, tables.schedules, literal_column(f"'{RUNNER}'", Text), tables.WAITS
        )
        self._database = app.database
        self._beside = beside
        self._max_retries = check_retries(max_retries)

    async def schedule(
        self, key: str, *new: NewSchedule, actor: str, environment: str = PRODUCTION
    ) -> list[FlagSchedule]:
        """Plan changes of a flag, all or none."""
        await self._app.open()
        await self.gates.look()
        ledger: Any = await self._lane.ledger()
        made = await self._database.write(self._store, key, environment, new, Actor(name=actor), ledger)
        self._database.wake(FLAG_SCHEDULES.name)
        return made

    def _store(
        self, connection: Connection, key: str, environment: str, new: Sequence[NewSchedule], by: Actor, ledger: Gated
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
        if any(row["priority"] is not None for row in rows) or self._is_gated(connection):
            # All that waits, or what goes before others would be claimed beside them.
            self.gates.put(connection, [RUNNER])
            ledger.make_gates(connection, [NamedGate(RUNNER, None, "")])
        return made

    def _is_gated(self, connection: Connection) -> bool:
        """Whether the runner is limited or paused, or something waits behind its gate already."""
        if self.gates.name(RUNNER) is not None:
            return True
        t = tables.schedules
        return (
            connection.execute(select(t.c.id).where(t.c.gate.is_not(None), tables.WAITS).limit(1)).first() is not None
        )

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
            if new.priority not in PRIORITIES:
                raise InvalidChangeError(f"priority must be high, normal or low, not {new.priority!r:.80}")
        except InvalidChangeError as error:
            raise InvalidChangeError(f"schedule {number + 1}: {error}" if number else str(error)) from None
        return {
            "scheduled_at": new.scheduled_at, "updates": updates, "max_retries": retries, "expires_at": new.expires_at,
            "backoff": null() if new.backoff is None else dict(new.backoff),
            "priority": None if new.priority == NORMAL else PRIORITIES.index(new.priority),
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
        "priority": schedule.priority,
    }  # fmt: skip
    return ScheduleDeed(schedule=schedule, action="created", details=details)
