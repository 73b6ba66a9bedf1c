"""Keys and statuses in one look, and events with their endpoints in another: what is asked thousands of times a second."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from redrive.access.sql.keys import read_keys
from redrive.extend import Database, OnDatabase, reads
from redrive.sql import Gather
from redrive.systems.triggers.ports import Found
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.endpoints import read_endpoint
from redrive.systems.triggers.sql.inbox import read_statuses
from redrive.systems.triggers.values import Address, DueEvent, Endpoint

TOGETHER_MAX = 500


class _Ask(NamedTuple):
    hashed: str
    event_id: str | None


class SqlLooks(OnDatabase):
    """See `Looks`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._looks: Gather[_Ask, Found] = Gather(self._look, items_max=TOGETHER_MAX)

    async def look(self, hashed: str, event_id: str | None) -> Found:
        """See `Looks.look`."""
        [found] = await self._looks([_Ask(hashed, event_id)])
        return found

    @reads
    def _look(self, connection: Connection, asks: Sequence[_Ask]) -> list[Found]:
        keys = read_keys(connection, list({ask.hashed for ask in asks}))
        ids = list({ask.event_id for ask in asks if ask.event_id is not None})
        events = read_statuses(connection, ids) if ids else {}
        return [Found(keys.get(ask.hashed), events.get(ask.event_id or "")) for ask in asks]


class SqlLoads(OnDatabase):
    """See `Loads`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._loads: Gather[Address, tuple[DueEvent | None, Endpoint | None]] = Gather(
            self._load, items_max=TOGETHER_MAX
        )

    async def load(self, address: Address) -> tuple[DueEvent | None, Endpoint | None]:
        """See `Loads.load`."""
        [found] = await self._loads([address])
        return found

    @reads
    def _load(self, connection: Connection, asked: Sequence[Address]) -> list[tuple[DueEvent | None, Endpoint | None]]:
        e, p = t.events, t.endpoints
        rows = connection.execute(_DUE.where(e.c.id.in_({one.event_id for one in asked})))
        events = {row[0]: DueEvent(*row) for row in rows}
        found = connection.execute(select(p).where(p.c.id.in_({one.endpoint_id for one in asked})))
        endpoints = {row.id: read_endpoint(row) for row in found}
        return [(events.get(one.event_id), endpoints.get(one.endpoint_id)) for one in asked]


_DUE = select(*(t.events.c[name] for name in DueEvent._fields))
