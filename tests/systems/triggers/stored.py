"""All that a store has of events, read past every port: rows of tables, or items."""

from collections import Counter
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from redrive import Redrive
from redrive.items import from_item, head_from
from redrive.systems.triggers.aws.follow import delivery_of
from redrive.systems.triggers.aws.places import read_standing
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.beside import EVERYBODY
from redrive.systems.triggers.status import STATUSES, Delivery, Standing
from tests.ledgers.aws.ends import read_all

Counts = Counter[tuple[str, str]]
"""How many events of each user are in each status, as the counters say."""


class FoundEvent(NamedTuple):
    """An event with its deliveries."""

    id: str
    user_id: str
    stands: Standing
    deliveries: list[Delivery]


async def read_events(app: Redrive) -> tuple[list[FoundEvent], Counts]:
    """All events, and what is counted of them."""
    return await (app.database.read(_from_tables) if app.store.keeps_tasks else _from_items(app.store))


async def wipe_events(app: Redrive) -> None:
    """Begin anew."""
    if app.store.keeps_tasks:
        await app.database.write(_wipe_tables)
        return
    items: Any = app.store
    client = items.dynamo._client._client
    for item in await read_all(client, items.dynamo.table):
        await client.delete_item(TableName=items.dynamo.table, Key={name: item[name] for name in ("pk", "sk")})


def _from_tables(connection: Connection) -> tuple[list[FoundEvent], Counts]:
    counts: Counts = Counter()
    everybody: Counter[str] = Counter()
    for row in connection.execute(select(t.counts)):
        if row.user_id == EVERYBODY:
            everybody[row.status] += row.amount
        else:
            counts[row.user_id, row.status] += row.amount
            everybody[row.status] -= row.amount
    assert not any(everybody.values())  # all users together are what each of them has
    deliveries: dict[str, list[Delivery]] = {}
    for row in connection.execute(select(t.deliveries)):
        deliveries.setdefault(row.event_id, []).append(Delivery(*(getattr(row, name) for name in Delivery._fields)))
    events = [
        FoundEvent(row.id, row.user_id, Standing(*(getattr(row, name) for name in Standing._fields)), deliveries.get(row.id, []))
        for row in connection.execute(select(t.events))
    ]  # fmt: skip
    return events, +counts


def _wipe_tables(connection: Connection) -> None:
    for table in (t.deliveries, t.events, t.endpoints, t.counts):
        connection.execute(table.delete())


async def _from_items(store: Any) -> tuple[list[FoundEvent], Counts]:
    items = await read_all(store.dynamo._client._client, store.dynamo.table)
    heads = [head for head in (head_from(item) for item in items if item["sk"]["S"] == "E") if not head.tombstone]
    counts: Counts = Counter()
    for item in items:
        if item["pk"]["S"].startswith("C#"):
            values = from_item(item)
            for word in STATUSES:
                counts[values["pk"].removeprefix("C#"), word] += values.get(word, 0)
    events = [
        FoundEvent(head.id, head.user_id, read_standing(head.facts), [delivery_of(part) for part in head.parts.values()])
        for head in heads
    ]  # fmt: skip
    return events, +counts
