"""What was given out of keys' minutes, in its table; and what signs cursors, which its migration made."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from redrive.extend import Database, OnDatabase, reads, writes
from redrive.sql import Gather
from redrive.systems.triggers.sql import tables as t

FORGET_EVERY_SECONDS = 60.0


class _Spent(NamedTuple):
    key_id: str
    minute: int
    amount: int


class SqlRateLimits(OnDatabase):
    """See `RateLimits`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._adds: Gather[_Spent, int] = Gather(self._add_some)
        self._forgotten_at = time.monotonic()

    async def add(self, key_id: str, minute: int, amount: int) -> int:
        """See `RateLimits.add`."""
        [used] = await self._adds([_Spent(key_id, minute, amount)])
        return used

    async def _add_some(self, spent: Sequence[_Spent]) -> list[int]:
        forget = time.monotonic() - self._forgotten_at > FORGET_EVERY_SECONDS
        if forget:
            self._forgotten_at = time.monotonic()
        return await self._add(spent, forget=forget)

    @writes
    def _add(self, connection: Connection, spent: Sequence[_Spent], *, forget: bool) -> list[int]:
        used = {}
        # In the order of keys: two processes that take for the same keys never wait in a circle.
        for position, one in sorted(enumerate(spent), key=lambda placed: placed[1]):
            row = self._database.insert(t.limits).values(key_id=one.key_id, minute=one.minute, used=one.amount)
            summed = row.on_conflict_do_update(
                index_elements=["key_id", "minute"], set_={"used": t.limits.c.used + row.excluded.used}
            )
            used[position] = connection.execute(summed.returning(t.limits.c.used)).scalar_one()
        if forget:
            # Each process's clock may be a little off: the minute before is left alone.
            last = max(one.minute for one in spent) - 1
            connection.execute(delete(t.limits).where(t.limits.c.minute < last))
        return [used[position] for position in range(len(spent))]


class SqlCursorSecret(OnDatabase):
    """See `CursorSecret`."""

    @reads
    def read(self, connection: Connection) -> str:
        """See `CursorSecret.read`."""
        s = t.secrets
        shared: str = connection.execute(select(s.c.value).where(s.c.name == "cursor")).scalar_one()
        return shared
