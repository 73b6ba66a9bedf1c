"""The audit of schedules: who did what and when, in an append-only table and in the commit of what it tells.

The ledger calls `settled` in the transaction of each settlement and `acted` in that of each act, from wherever it came: the routes
of the flags, a page, the command line. An entry stands behind a savepoint: one that cannot be written is logged, and does not take
the change with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection, insert, update

from redrive import State
from redrive.errors import UsageError
from redrive.events import Act, Settlement
from redrive.extend import Beside, Database
from redrive.lane import Actor
from redrive.operator.json_views import instant_json
from redrive.operator.words import describe_error
from redrive.systems.flags import tables
from redrive.systems.flags.aftermath import Aftermath
from redrive.systems.flags.values import FlagSchedule

PROCESSOR = Actor(name="processor")
"""Who applied, retried or gave way, where it was not a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDeed:
    """What is recorded of a schedule: that it was `created`, `cancelled`, `applied`, `failed` or `retried`."""

    schedule: FlagSchedule
    action: str
    details: Mapping[str, Any]


class FlagBeside(Beside):
    """Writes beside every settlement of and every act on schedules; see `Beside`."""

    refused_ends = frozenset({State.DONE})

    def __init__(self, database: Database, aftermath: Aftermath) -> None:
        self._database = database
        self._aftermath = aftermath
        self._log: Any = structlog.get_logger(system="flags")

    def settled(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        """Record what a try came to. One that was given back was not a try."""
        ended = {one.claim.task.id: one for one in settlements if one.state is not State.WAITING or one.explanation}
        schedules = tables.read_by_id(connection, ended).values()
        for schedule in schedules:
            self._aftermath.planned(ended[schedule.id], schedule.next_retry_at)
        entries = [_outcome(schedule, ended[schedule.id]) for schedule in schedules]
        gave_way = [one.schedule.id for one in entries if one.action == "cancelled"]
        if gave_way:
            self._mark_cancelled(connection, gave_way, PROCESSOR, error_message="superseded")
        self.record(connection, entries, PROCESSOR)

    def acted(
        self, connection: Connection, act: Act, state: State, ids: Sequence[Any], actor: Actor, note: Any
    ) -> None:
        """Record who cancelled a schedule or brought it back, and why."""
        del act, note
        if state in self.refused_ends:
            raise UsageError(
                "a schedule is applied when its flag was changed, not because somebody says so: change the flag by hand, and "
                "resolve the schedule as cancelled"
            )
        schedules = tables.read_by_id(connection, ids).values()
        if state is State.CANCELLED:
            self._mark_cancelled(connection, ids, actor)
            entries = [_cancelled(one, actor.reason) for one in schedules]
        else:
            told = {"byHand": True, "reason": actor.reason}
            entries = [
                ScheduleDeed(schedule=one, action="retried", details={**told, "lastError": one.last_error})
                for one in schedules
            ]
        self.record(connection, entries, actor)

    def record(self, connection: Connection, entries: Sequence[ScheduleDeed], by: Actor) -> None:
        """Add to the audit in the caller's transaction. Never raises for what is wrong with the audit alone."""
        if not entries:
            return
        try:
            with connection.begin_nested():
                now = self._database.present(connection)
                rows = [
                    {
                        "at": now,
                        "action": f"flag_schedule.{one.action}",
                        "actor": by.name,
                        "flag_key": one.schedule.flag_key,
                        "environment": one.schedule.environment,
                        "schedule_id": one.schedule.id,
                        "details": dict(one.details),
                    }
                    for one in entries
                ]
                connection.execute(insert(tables.audit), rows)
        except Exception as error:  # whatever is wrong with the audit, the change goes on
            for one in entries:
                self._log.error(
                    "Audit entry could not be written", action=f"flag_schedule.{one.action}",
                    scheduleId=one.schedule.id, flagKey=one.schedule.flag_key, error=describe_error(error),
                )  # fmt: skip

    def _mark_cancelled(self, connection: Connection, ids: Sequence[Any], by: Actor, **more: str) -> None:
        """Write into the rows who cancelled them. The state itself is the ledger's to write."""
        values = {"cancelled_by": by.name, "cancelled_at": self._database.present(connection), **more}
        t = tables.schedules
        connection.execute(update(t).where(t.c.id.in_(ids)).values(values))


def _outcome(schedule: FlagSchedule, settlement: Settlement) -> ScheduleDeed:
    """What is told of a try; its row has been written already."""
    counted = {"retryCount": schedule.retry_count}
    if settlement.state is State.DONE:
        return ScheduleDeed(schedule=schedule, action="applied", details={"updates": schedule.updates, **counted})
    if settlement.explanation is None:
        return _cancelled(schedule, settlement.error)
    why = {
        "error": settlement.error, "outcome": settlement.outcome, "verdict": settlement.explanation.verdict, **counted
    }  # fmt: skip
    if settlement.state is State.DEAD:
        return ScheduleDeed(schedule=schedule, action="failed", details=why)
    planned = {"nextRetryAt": instant_json(schedule.next_retry_at)}
    return ScheduleDeed(schedule=schedule, action="retried", details=why | planned)


def _cancelled(schedule: FlagSchedule, reason: str | None) -> ScheduleDeed:
    why = {"reason": reason} if reason else {}
    return ScheduleDeed(schedule=schedule, action="cancelled", details={"updates": schedule.updates, **why})
