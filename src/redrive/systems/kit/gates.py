"""Gates for systems whose destinations have none until somebody limits or pauses one: relay, commands, webhooks, flags.

Rows name no gate, and cost what they always did, until a limit fits its name or a person pauses it. All processes look for that once a second. What
waits then is put behind its gate, and so is what comes, and what ran meanwhile when it waits again; when the limit goes, what comes has no gate again.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Connection, Table, select, update

from redrive.errors import LedgerAwayError
from redrive.extend import Database, GatesInUse
from redrive.lane import Lane
from redrive.operator.words import describe_error

LOOK_EVERY_SECONDS = 1.0
TAKE_IN_SHARE = 50
"""Of the time, at most a part of this goes into looking for what waits without its gate."""
AT_ONCE = 500
NAMES_MAX = 1000


class GatesWhenSet:
    """The gates of one lane that somebody has limited or paused."""

    def __init__(
        self, lane: Lane, database: Database, table: Table, named: ColumnElement[str], waiting: ColumnElement[bool],
        *, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`named` is the gate that a row of the table would have, and `waiting` says whether a row waits."""
        self._lane = lane
        self._database = database
        self._table = table
        self._named = named
        self._loose = waiting & table.c.lease_until.is_(None) & table.c.gate.is_(None)
        self._clock = clock
        self._looked_at: float | None = None
        self._used = GatesInUse(frozenset(), frozenset())
        self._take_in_at = -math.inf
        self._log: Any = structlog.get_logger(ledger=lane.name)

    def name(self, candidate: str) -> str | None:
        """The gate of what is for this destination; None while nobody has limited or paused it."""
        return candidate if self._used.has(candidate) else None

    async def look(self) -> None:
        """Look who is limited, if the last look was a second ago; what waits is put behind its gate."""
        if self._looked_at is not None and self._clock() - self._looked_at < LOOK_EVERY_SECONDS:
            return
        self._looked_at = self._clock()
        ledger: Any = await self._lane.ledger()
        if not ledger.has_gates:
            return
        used = await ledger.gates_in_use()
        if used != self._used:
            self._used, self._take_in_at = used, -math.inf
        if self._clock() >= self._take_in_at:  # at once again where the store went away in the midst of it
            begun = self._clock()
            await self.take_in()
            # What ran when its gate was set comes back without one. To look for it takes as long as much waits without.
            self._take_in_at = self._clock() + (self._clock() - begun) * TAKE_IN_SHARE

    async def take_in(self) -> int:
        """Put behind its gate what waits without one; how many rows. What runs just now stays without until it has ended."""
        if not self._used:
            return 0
        names = await self._database.read(self._loose_names)
        taken, some = 0, AT_ONCE if (wanted := [name for name in names if self._used.has(name)]) else 0
        while some == AT_ONCE:
            some = await self._database.write(self._take_some, wanted)
            taken += some
        if taken:
            await (await self._lane.ledger()).discover()
        return taken

    def put(self, connection: Connection, names: Iterable[str]) -> None:
        """Put behind these gates what waits for them without one, in the transaction of this connection."""
        loose = update(self._table).where(self._loose, self._named.in_(list(names)))
        connection.execute(loose.values(gate=self._named))

    def _loose_names(self, connection: Connection) -> list[str]:
        return list(connection.execute(select(self._named).where(self._loose).distinct().limit(NAMES_MAX)).scalars())

    def _take_some(self, connection: Connection, names: Sequence[str]) -> int:
        id_ = self._table.c.id
        some = select(id_).where(self._loose, self._named.in_(names)).limit(AT_ONCE).with_for_update(skip_locked=True)
        ids = list(connection.execute(some).scalars())
        connection.execute(update(self._table).where(id_.in_(ids), self._loose).values(gate=self._named))
        return len(ids)

    async def run(self, stopped: asyncio.Event) -> None:
        """Look once a second until told to stop. A store that is away the worker tells."""
        told = ""
        while not stopped.is_set():
            try:
                await self.look()
            except LedgerAwayError:
                pass
            except Exception as error:  # the work goes on all the same
                if told != (told := describe_error(error)):
                    self._log.warning("gates_unread", error=told)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_SECONDS):
                    await stopped.wait()
