"""Figures of a table that takes long to count, and whether somebody who has acted there sees it soon."""

from sqlalchemy import select, update

from redrive.lane import Lane
from redrive.ledgers.sql import schema
from redrive.operator.sql.census import SqlCensus


async def take_long_to_count(lane: Lane) -> None:
    """From now on the next census of the ledger is minutes away."""
    ledger = await lane.ledger()
    await SqlCensus(ledger).take()
    c = schema.census
    slow = update(c).where(c.c.ledger == lane.name).values(seconds=60.0)
    await ledger.database.write(lambda connection: connection.execute(slow))


async def are_counted_soon(lane: Lane) -> bool:
    """Whether the next census waits for nothing but the shortest rest."""
    ledger = await lane.ledger()
    took = select(schema.census.c.seconds).where(schema.census.c.ledger == lane.name)
    return bool(await ledger.database.read(lambda connection: connection.execute(took).scalar_one()) == 0)
