"""Turns in a table of SQL."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, update

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.on_database import OnDatabase, writes
from redrive.ledgers.sql.upsert import upsert

KEPT = timedelta(days=1)


class SqlTurns(OnDatabase):
    """The turns of one database; see `Turns`."""

    @writes
    def take(self, connection: Connection, name: str, lasts: timedelta) -> datetime | None:
        """See `Turns.take`."""
        t, now = schema.turn, self._database.present(connection)
        statement: Any = upsert(self._database, t, where=t.c.until <= now).returning(t.c.until)
        until: datetime | None = connection.execute(statement, {"name": name, "until": now + lasts}).scalar()
        return until

    @writes
    def give_back(self, connection: Connection, name: str, until: datetime) -> None:
        """See `Turns.give_back`."""
        t = schema.turn
        ours = update(t).where(t.c.name == name, t.c.until == until)
        connection.execute(ours.values(until=self._database.present(connection)))

    @writes
    def forget(self, connection: Connection) -> int:
        """See `Turns.forget`."""
        t = schema.turn
        return int(connection.execute(delete(t).where(t.c.until < self._database.present(connection) - KEPT)).rowcount)
