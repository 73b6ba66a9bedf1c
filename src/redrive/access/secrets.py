"""Random secrets that all processes on a database share: made by whoever needs one first, and kept."""

import secrets as random_secrets

from sqlalchemy import Connection, select

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.upsert import upsert

BYTES = 32


async def shared_secret(database: Database, name: str) -> bytes:
    """The secret with this name."""
    return bytes.fromhex(await database.write(_shared, database, name))


def _shared(connection: Connection, database: Database, name: str) -> str:
    s = schema.secret
    # Whoever comes second finds the first one's: storing keeps what is there.
    made = {"name": name, "value": random_secrets.token_hex(BYTES)}
    connection.execute(upsert(database, s, keep=True), made)
    value: str = connection.execute(select(s.c.value).where(s.c.name == name)).scalar_one()
    return value
