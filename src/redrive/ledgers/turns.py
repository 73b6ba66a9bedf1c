"""Chores that one of many services does for all of them: whoever takes the turn does it, and the others look again later.

A turn ends by itself, so that a service that dies with it holds nobody up.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select, update

from redrive.ledgers import schema
from redrive.ledgers.database import Database
from redrive.ledgers.statements import upsert


async def take_turn(database: Database, name: str, lasts: timedelta) -> bool:
    """Whether the turn is ours now, for so long."""
    return await database.write(_take, database, name, lasts)


async def give_turn_back(database: Database, name: str) -> None:
    """End a turn before its time."""
    await database.write(_give_back, database, name)


def present(connection: Connection, database: Database) -> datetime:
    """The instant, by the clock that all services of a database share."""
    if not database.server_clock:
        return database.now()
    now: datetime = connection.execute(select(func.statement_timestamp())).scalar_one()
    return now


def _take(connection: Connection, database: Database, name: str, lasts: timedelta) -> bool:
    t, now = schema.turn, present(connection, database)
    statement: Any = upsert(t, connection.dialect.name, where=t.c.until <= now).returning(t.c.name)
    return connection.execute(statement, {"name": name, "until": now + lasts}).first() is not None


def _give_back(connection: Connection, database: Database, name: str) -> None:
    t = schema.turn
    connection.execute(update(t).where(t.c.name == name).values(until=present(connection, database)))
