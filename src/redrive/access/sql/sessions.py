"""Sessions in a table of SQL."""

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from redrive.access.keys import PROGRAM, SESSIONS_AUDITED, ApiKey, digest
from redrive.access.sql.keys import key_of_row
from redrive.ledgers.sql.audit_lines import write_line
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.ledgers.sql.schema import key as keys
from redrive.ledgers.sql.schema import session as sessions
from redrive.ports import Actor


class SqlSessions(OnDatabase):
    """The sessions of one database; see `Sessions`."""

    @writes
    def start(
        self,
        connection: Connection,
        token: str,
        key_id: str,
        now: datetime,
        expires_at: datetime,
        *,
        by: Actor = PROGRAM,
    ) -> None:
        """See `Sessions.start`."""
        connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
        connection.execute(insert(sessions).values(sha256=digest(token), key_id=key_id, expires_at=expires_at))
        write_line(connection, ledger=SESSIONS_AUDITED, act="logged in", things=[key_id], actor=by, at=now)

    @reads
    def find(self, connection: Connection, token: str) -> tuple[ApiKey, datetime] | None:
        """See `Sessions.find`."""
        ends = sessions.c.expires_at.label("session_ends")
        asked = select(ends, *keys.c).join_from(sessions, keys, keys.c.id == sessions.c.key_id)
        row = connection.execute(asked.where(sessions.c.sha256 == digest(token))).first()
        return None if row is None else (key_of_row(row), row.session_ends)

    @writes
    def end(self, connection: Connection, token: str, *, by: Actor = PROGRAM) -> None:
        """See `Sessions.end`."""
        ended = delete(sessions).where(sessions.c.sha256 == digest(token)).returning(sessions.c.key_id)
        if key_id := connection.execute(ended).scalar():
            at = self._database.now()
            write_line(connection, ledger=SESSIONS_AUDITED, act="logged out", things=[key_id], actor=by, at=at)
