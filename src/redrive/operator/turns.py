"""Chores that one of many services does for all of them: whoever takes the turn does it, and the others look again later.

A turn ends by itself, so that a service that dies with it holds nobody up.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, update

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.upsert import upsert


async def take_turn(database: Database, name: str, lasts: timedelta) -> datetime | None:
    """Until when the turn is ours, for so long from now; None if it is somebody else's."""
    return await database.write(_take, database, name, lasts)


async def give_turn_back(database: Database, name: str, until: datetime) -> None:
    """End a turn that was ours until then before its time. Whoever was too late for that leaves the next one's alone."""
    await database.write(_give_back, database, name, until)


def _take(connection: Connection, database: Database, name: str, lasts: timedelta) -> datetime | None:
    t, now = schema.turn, database.present(connection)
    statement: Any = upsert(database, t, where=t.c.until <= now).returning(t.c.until)
    until: datetime | None = connection.execute(statement, {"name": name, "until": now + lasts}).scalar()
    return until


def _give_back(connection: Connection, database: Database, name: str, until: datetime) -> None:
    t = schema.turn
    ours = update(t).where(t.c.name == name, t.c.until == until)
    connection.execute(ours.values(until=database.present(connection)))
