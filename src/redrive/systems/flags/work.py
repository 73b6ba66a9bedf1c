"""Applying a schedule: the transactional handler of the lane.

The flag, the schedule and the audit change in one commit, or none of them does. What can never work is a `PermanentError`, so
the schedule is dead at once; anything else that goes wrong rolls the change back, and the engine retries it.
"""

from sqlalchemy import Connection

from redrive import Cancelled, Context, PermanentError, Task
from redrive.extend import Database
from redrive.systems.flags import tables
from redrive.systems.flags.aftermath import Aftermath
from redrive.systems.flags.changes import LastSet, Stamp, read_values, superseded
from redrive.systems.flags.errors import InvalidChangeError
from redrive.systems.flags.store import FlagStore


class ScheduleExpired(PermanentError):  # noqa: N818 - its name is the reason that people read
    """It is too late: late would be worse than never."""


class FlagDeleted(PermanentError):  # noqa: N818 - the same
    """The flag is not there any more."""


class Applier:
    """Applies schedules, each in the transaction that the engine has begun for it."""

    def __init__(self, database: Database, store: FlagStore, aftermath: Aftermath) -> None:
        self._database = database
        self._store = store
        self._aftermath = aftermath

    def apply(self, task: Task, context: Context) -> Cancelled | None:
        """Set what the schedule says, unless it is too late, the flag is gone, or a newer change has been made."""
        connection: Connection = context.connection
        assert isinstance(task.id, int)
        schedule = tables.read_by_id(connection, [task.id]).get(task.id)
        if schedule is None:
            raise PermanentError(f"schedule {task.id} is not there any more")
        try:
            values = read_values(schedule.updates)
        except InvalidChangeError as error:
            raise PermanentError(str(error)) from error
        flag = self._store.lock(connection, tables.flags.c.id == schedule.flag_id)
        if flag is None:
            raise FlagDeleted(
                f"flag {schedule.flag_key!r} in environment {schedule.environment!r} does not exist any more"
            )
        # Only now: waiting for the lock may have taken its time.
        now = self._database.present(connection)
        if schedule.expires_by(now):
            raise ScheduleExpired(f"expired: it was not to be applied after {schedule.expires_at}")
        newer = LastSet(flag.last_set).newer_than(values, schedule.scheduled_at, schedule.id)
        if newer is not None:
            return Cancelled(superseded(*newer))
        stamp = Stamp(schedule.scheduled_at, schedule.id)
        ended = self._store.change(connection, flag, values, stamp, set(values), f"schedule {schedule.id}")
        self._aftermath.gave_way(schedule.id, ended)
        return None
