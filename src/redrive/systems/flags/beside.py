"""The books of what people do to schedules, wherever they do it: over the routes of the flags, on a page, by command.

The ledger calls `acted` in the transaction of each act, so who and why are recorded if and only if it was done.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from redrive import State
from redrive.errors import UsageError
from redrive.extend import Act, Beside, Database
from redrive.ports import Actor
from redrive.systems.flags.audit import Audit
from redrive.systems.flags.schedules import Schedule, as_schedule
from redrive.systems.flags.tables import Tables


class ActsOnSchedules(Beside):
    """Writes beside every act on the table of schedules; see `Beside`."""

    refused_ends = frozenset({State.DONE})

    def __init__(self, database: Database, tables: Tables, audit: Audit) -> None:
        self._database = database
        self._table = tables.schedules
        self._audit = audit

    def acted(
        self, connection: Connection, act: Act, state: State, ids: Sequence[Any], actor: Actor, note: Any
    ) -> None:
        """Record a schedule that was cancelled or brought back."""
        del act, note
        if state in self.refused_ends:
            raise UsageError(
                "a schedule is applied when its flag was changed, not because somebody says so: change the flag by hand, and "
                "resolve the schedule as cancelled"
            )
        found = connection.execute(select(self._table).where(self._table.c.id.in_(ids)).order_by(self._table.c.id))
        schedules = [as_schedule(row) for row in found]
        if state is State.CANCELLED:
            self.cancelled(connection, schedules, actor)
        else:
            self._brought_back(connection, schedules, actor)

    def cancelled(self, connection: Connection, schedules: Sequence[Schedule], by: Actor) -> None:
        """Write who cancelled schedules, and record why. The state itself is the ledger's to write."""
        values = {"cancelled_by": by.name, "cancelled_at": self._database.present(connection)}
        named = self._table.c.id.in_([one.id for one in schedules])
        connection.execute(update(self._table).where(named).values(values))
        why = {"reason": by.reason} if by.reason else {}
        self._audit.record(
            connection, [one.entry("cancelled", by.name, {"updates": one.updates, **why}) for one in schedules]
        )

    def _brought_back(self, connection: Connection, schedules: Sequence[Schedule], by: Actor) -> None:
        told = {"byHand": True, "reason": by.reason}
        self._audit.record(
            connection, [one.entry("retried", by.name, {**told, "lastError": one.last_error}) for one in schedules]
        )
