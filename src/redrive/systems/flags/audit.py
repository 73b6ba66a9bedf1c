"""The audit of schedules: who did what and when, in an append-only table.

What is done in a transaction of ours is recorded in that transaction, behind a savepoint: the entry is there if and only if
the change is, and an entry that cannot be written does not take the change with it. What the engine settles (a try that failed)
is recorded right after. Either way a failure is logged and nothing else.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Connection, insert

from redrive.extend import Database, describe_error
from redrive.systems.flags.tables import Tables

PROCESSOR = "processor"
"""Who applied or retried, where it was no person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is recorded of a schedule: `flag_schedule.created`, `cancelled`, `applied`, `failed` or `retried`."""

    action: str
    actor: str
    schedule_id: int
    flag_key: str
    environment: str
    details: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    """When it happened, if that is not when it is recorded."""


class Audit:
    """Writes the audit of one database."""

    def __init__(self, database: Database, tables: Tables) -> None:
        self._database = database
        self._table = tables.audit
        self._under_way: set[asyncio.Task[None]] = set()
        self._log: Any = structlog.get_logger(system="flags")

    def record(self, connection: Connection, entries: Iterable[Entry]) -> None:
        """Record in the caller's transaction. Never raises for what is wrong with the audit alone."""
        listed = list(entries)
        if not listed:
            return
        try:
            with connection.begin_nested():
                self._insert(connection, listed)
        except Exception as error:  # whatever is wrong with the audit, the change goes on
            self._complain(listed, error)

    def record_soon(self, entries: Iterable[Entry]) -> None:
        """Record in a transaction of its own, without waiting for it."""
        listed = list(entries)
        if listed:
            task = asyncio.get_running_loop().create_task(self._record(listed), name="redrive-flags-audit")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def flush(self) -> None:
        """Come back when everything so far is recorded."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _record(self, entries: list[Entry]) -> None:
        try:
            await self._database.write(self._insert, entries)
        except Exception as error:
            self._complain(entries, error)

    def _insert(self, connection: Connection, entries: list[Entry]) -> None:
        now = self._database.present(connection)
        rows = [
            {
                "at": entry.at or now,
                "action": f"flag_schedule.{entry.action}",
                "actor": entry.actor,
                "flag_key": entry.flag_key,
                "environment": entry.environment,
                "schedule_id": entry.schedule_id,
                "details": dict(entry.details),
            }
            for entry in entries
        ]
        connection.execute(insert(self._table), rows)

    def _complain(self, entries: list[Entry], error: Exception) -> None:
        for entry in entries:
            self._log.error(
                "Audit entry could not be written",
                action=f"flag_schedule.{entry.action}",
                scheduleId=entry.schedule_id,
                flagKey=entry.flag_key,
                error=describe_error(error),
            )
