"""Sessions of people who logged in with a key. Only the SHA-256 of a session's token is kept, so a copy of the database opens nothing."""

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from redrive.access.keys import ApiKey, digest, key_of_row
from redrive.ledgers.sql.schema import key as keys
from redrive.ledgers.sql.schema import session as sessions


def start(connection: Connection, token: str, key_id: str, now: datetime, expires_at: datetime) -> None:
    """Keep a session; those that have ended are forgotten on the occasion."""
    connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
    connection.execute(insert(sessions).values(sha256=digest(token), key_id=key_id, expires_at=expires_at))


def find(connection: Connection, token: str) -> tuple[ApiKey, datetime] | None:
    """Whose session this token is, and until when; its key may be revoked by now."""
    ends = sessions.c.expires_at.label("session_ends")
    asked = select(ends, *keys.c).join_from(sessions, keys, keys.c.id == sessions.c.key_id)
    row = connection.execute(asked.where(sessions.c.sha256 == digest(token))).first()
    return None if row is None else (key_of_row(row), row.session_ends)


def end(connection: Connection, token: str) -> None:
    """Forget a session: its token opens nothing from now on."""
    connection.execute(delete(sessions).where(sessions.c.sha256 == digest(token)))
