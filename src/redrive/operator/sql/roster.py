"""The roster in a table of SQL."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, select

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.ledgers.sql.upsert import upsert
from redrive.operator.roster import KEPT, SHOWN_MAX, WorkerSeen, WorkerSign


class SqlRoster(OnDatabase):
    """The roster of one database; see `Roster`."""

    @writes
    def sign(self, connection: Connection, sign: WorkerSign) -> None:
        """See `Roster.sign`."""
        w = schema.worker
        now, drift = self._clocks(connection)
        row = {
            "name": sign.name, "host": sign.host, "pid": sign.pid, "version": sign.version, "started_at": sign.started_at,
            "slots": sign.slots, "holds": sign.holds, "seen_at": now, "stopped_at": now if sign.stops else None,
            "lease_seconds": None if sign.lease is None else sign.lease.total_seconds(),
            "tries_a_minute": sign.tries_a_minute, "held_since": sign.held_since, "drift_ms": drift,
        }  # fmt: skip
        connection.execute(upsert(self._database, w), row)

    def _clocks(self, connection: Connection) -> tuple[datetime, float | None]:
        """The present of the database, and how many milliseconds the clock of this process is ahead of it, to half the time that it took to ask."""
        before = datetime.now(UTC)
        now = self._database.present(connection)
        if not self._database.server_clock:
            return now, None
        middle = before + (datetime.now(UTC) - before) / 2
        return now, (middle - now) / timedelta(milliseconds=1)

    @reads
    def seen(self, connection: Connection, *, limit: int = SHOWN_MAX) -> Sequence[WorkerSeen]:
        """See `Roster.seen`."""
        w = schema.worker
        found = select(w).order_by(w.c.seen_at.desc(), w.c.name).limit(limit)
        return [_seen(row._asdict()) for row in connection.execute(found)]

    @writes
    def forget(self, connection: Connection) -> int:
        """See `Roster.forget`."""
        w = schema.worker
        gone = delete(w).where(w.c.seen_at < self._database.present(connection) - KEPT)
        return int(connection.execute(gone).rowcount)


def _seen(row: dict[str, Any]) -> WorkerSeen:
    seconds = row.pop("lease_seconds")
    return WorkerSeen(**row, lease=None if seconds is None else timedelta(seconds=seconds))
