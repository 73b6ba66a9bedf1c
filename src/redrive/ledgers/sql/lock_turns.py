"""Waiting in short turns for locks that somebody else holds.

Whoever asks for the lock of a whole table makes all wait who come behind: behind a dump, that is everybody for as long as the dump takes. So
a turn is short, well within the time in which a worker extends its leases, and between two of them everybody goes on.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from redrive.core.durations import format_duration
from redrive.errors import NotMigratedError
from redrive.ledgers.sql.database import Database, StillLocked

FIRST = timedelta(seconds=2)
LONGEST = timedelta(seconds=8)
"""Each turn is twice as long as the one before: where short transactions overlap all the time, two seconds are not enough."""
PAUSE_SECONDS = (1.0, 3.0)
PATIENCE_SECONDS = 300.0
"""How long to wait in total for locks that others hold."""
LOOK_EVERY_SECONDS = 0.5
TELL_EVERY_SECONDS = 30.0

R = TypeVar("R")
_log = logging.getLogger("redrive")


@dataclass(slots=True)
class Turn:
    """One turn, and who was in the way."""

    span: timedelta
    session: int | None = None
    """Who waits, as the database calls it; set when the turn begins."""
    others: Sequence[str] = ()


async def in_turns(database: Database, once: Callable[[Turn], Awaitable[R]]) -> R:
    """Run it until no lock is in its way; it takes all back where one was. In the end it says whose it was."""
    span, since, told_at = FIRST, math.inf, -math.inf
    while True:
        turn = Turn(span)
        looking = asyncio.create_task(_look(database, turn))
        try:
            return await once(turn)
        except StillLocked as error:
            now = time.monotonic()
            since = min(since, now - span.total_seconds())
            who = " and ".join(turn.others) or "somebody"
            if now - since > PATIENCE_SECONDS:
                waited = format_duration(timedelta(seconds=round(now - since)))
                raise NotMigratedError(
                    f"nothing was migrated: for {waited} the tables in {database.url} were held by {who}. "
                    "Run this again when that has ended, or end it"
                ) from error
            if now - told_at > TELL_EVERY_SECONDS:
                told_at = now
                _log.warning("the migration waits for %s; workers go on meanwhile", who)
        finally:
            looking.cancel()
            await asyncio.wait([looking])
        await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
        span = min(2 * span, LONGEST)


async def _look(database: Database, turn: Turn) -> None:
    """Find who is in the way while it is waited for: a word for people, and no more."""
    with suppress(Exception):
        while not turn.others:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            if turn.session is not None:
                turn.others = await database.read(database.dialect.in_the_way, turn.session)
