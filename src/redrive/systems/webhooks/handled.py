"""Which types have a handler, here or in another process: each worker says so from time to time.

A type that no worker takes waits. It must not fill the queue for all others meanwhile, nor go unseen, and the process that takes
webhooks in need not be the one that handles them.
"""

import asyncio
import random
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import Connection, bindparam, select

from redrive.errors import LedgerAwayError
from redrive.extend import Database, When
from redrive.lane import Lane
from redrive.operator.words import describe_error
from redrive.sql import comparable
from redrive.systems.webhooks.tables import handlers

SAY_EVERY = timedelta(seconds=15)
ALIVE_FOR = timedelta(seconds=60)
"""What nobody has said for so long is not handled any more."""
TYPES_MAX = 10_000

_ALIVE = select(handlers.c.event_type).where(
    comparable(handlers.c.seen_at) > comparable(bindparam("since", type_=When))
).limit(TYPES_MAX)  # fmt: skip


class HandledTypes:
    """The types that are handled, by the lane of this process and by others."""

    def __init__(self, database: Database, lane: Lane) -> None:
        self._database = database
        self._lane = lane
        self._log: Any = structlog.get_logger(system="webhooks")

    async def run(self, stopped: asyncio.Event) -> None:
        """Say what is handled here until told to stop, whatever happens. A store that is away the worker tells."""
        failing = False
        while len(self._lane.handlers) and not stopped.is_set():
            try:
                await self.say()
                failing = False
            except LedgerAwayError:
                pass
            except Exception as error:  # the webhooks are worked off all the same
                if not failing:
                    self._log.warning("webhook_handlers_unsaid", error=describe_error(error))
                failing = True
            with suppress(TimeoutError):
                async with asyncio.timeout(SAY_EVERY.total_seconds() * random.uniform(0.8, 1.2)):
                    await stopped.wait()
        await stopped.wait()

    async def say(self) -> None:
        """Say once what is handled here."""
        await self._database.write(self._say)

    def _say(self, connection: Connection) -> None:
        now = self._database.present(connection)
        # In one order: two workers that say the same then never wait in a circle.
        rows = [{"event_type": kind, "seen_at": now} for kind in sorted(one.kind for one in self._lane.handlers)]
        said = self._database.insert(handlers).values(rows)
        connection.execute(
            said.on_conflict_do_update(index_elements=["event_type"], set_={"seen_at": said.excluded.seen_at})
        )

    def among(self, connection: Connection, types: Iterable[str]) -> set[str]:
        """Those of the types that have a handler."""
        asked = set(types)
        found = set(self._lane.handlers.among(asked))
        rest = asked - found
        if rest:
            since = {"since": self._database.present(connection) - ALIVE_FOR}
            said = set(connection.execute(_ALIVE, since).scalars())
            patterns = [_pattern(one) for one in said if "*" in one]
            found |= {one for one in rest if one in said or any(pattern.fullmatch(one) for pattern in patterns)}
        return found


def _pattern(event_type: str) -> re.Pattern[str]:
    """Only the star is special, as everywhere in handlers."""
    return re.compile(".*".join(map(re.escape, event_type.split("*"))), re.DOTALL)
