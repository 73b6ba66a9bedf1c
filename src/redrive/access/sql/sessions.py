"""Sessions in a table of SQL."""

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from redrive.access.keys import ApiKey, digest
from redrive.access.sql.keys import key_of_row
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.ledgers.sql.schema import key as keys
from redrive.ledgers.sql.schema import session as sessions


class SqlSessions(OnDatabase):
    """The sessions of one database; see `Sessions`."""

    @writes
    def start(self, connection: Connection, token: str, key_id: str, now: datetime, expires_at: datetime) -> None:
        """See `Sessions.start`."""
        connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
        connection.execute(insert(sessions).values(sha256=digest(token), key_id=key_id, expires_at=expires_at))

    @reads
    def find(self, connection: Connection, token: str) -> tuple[ApiKey, datetime] | None:
        """See `Sessions.find`."""
        ends = sessions.c.expires_at.label("session_ends")
        asked = select(ends, *keys.c).join_from(sessions, keys, keys.c.id == sessions.c.key_id)
        row = connection.execute(asked.where(sessions.c.sha256 == digest(token))).first()
        return None if row is None else (key_of_row(row), row.session_ends)

    @writes
    def end(self, connection: Connection, token: str) -> None:
        """See `Sessions.end`."""
        connection.execute(delete(sessions).where(sessions.c.sha256 == digest(token)))
