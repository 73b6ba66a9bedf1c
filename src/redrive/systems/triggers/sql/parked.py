"""What waits behind the gates of endpoints: how much it is, and that its events are `queued`.

Events that were received before the gate of their endpoint began to hold, and were never tried, are
`queued`. Those that come later are stored so. When a gate begins to hold nothing is written for what waits behind it, so somebody has to look:
now and then, in blocks, and at each delivery once as long as its gate holds.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import Connection, select

from redrive.extend import Database, OnDatabase
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.beside import EventStatus
from redrive.systems.triggers.values import COUNTED_MAX

LOOKED_AT_ONCE = 500


class ParkedEvents(OnDatabase):
    """Looks for them."""

    def __init__(self, database: Database, status: EventStatus, ledger: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(database)
        self._status = status
        self._ledger = ledger
        self._seen: dict[str, str] = {}
        """Endpoints that are held, and the last delivery to each that was looked at."""

    async def queue(self) -> None:
        """Look once."""
        shut = await (await self._ledger()).shut_gates()
        self._seen = {endpoint_id: self._seen.get(endpoint_id, "") for endpoint_id in shut}
        for endpoint_id in shut:
            while last := await self._database.write(self._queue_some, endpoint_id, self._seen[endpoint_id]):
                self._seen[endpoint_id] = last

    async def amounts(self, endpoint_ids: Sequence[str]) -> dict[str, int]:
        """How many due deliveries wait behind the gates of these endpoints, counted up to `COUNTED_MAX`."""
        amounts: dict[str, int] = await (await self._ledger()).parked_amounts(endpoint_ids, COUNTED_MAX)
        return amounts

    def _queue_some(self, connection: Connection, endpoint_id: str, after: str) -> str | None:
        """A block of deliveries; the last of it, None if there was nothing left."""
        d, e = t.deliveries, t.events
        mine = (d.c.endpoint_id == endpoint_id, d.c.id > after, d.c.status == "waiting", d.c.claimed_at.is_(None))
        some = select(d.c.id, d.c.event_id, e.c.status).join(e, e.c.id == d.c.event_id).where(*mine)
        found = connection.execute(some.order_by(d.c.id).limit(LOOKED_AT_ONCE)).all()
        received = {row.event_id for row in found if row.status == "received"}
        if received:
            self._status.park(connection, received, self._database.present(connection))
        return str(found[-1].id) if found else None
