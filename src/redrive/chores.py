"""What a service does beside its work, again and again; and whether what it writes goes through."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog

from redrive.core.durations import ZERO
from redrive.core.failure import describe_error
from redrive.operator.verdict import StoreNow
from redrive.stores.port import Store

PROVE_EVERY = timedelta(seconds=2)
PROVE_WITHIN = timedelta(seconds=5)
"""How long one small write may take before it is given up and tried again."""
PROOF_MAX_AGE = timedelta(seconds=10)
"""A store that has taken no write for longer is not well."""


async def repeat(name: str, every: timedelta, chore: Callable[[], Awaitable[object]]) -> None:
    """Do a chore for ever. An outage is one line in the log when it begins and one when it is over, whatever is wrong."""
    log: Any = structlog.get_logger().bind(system="service")
    failing = False
    while True:
        try:
            await chore()
        except Exception as error:  # the service must outlive whatever happens here
            if not failing:
                log.warning("chore_failing", chore=name, error=describe_error(error))
            failing = True
        else:
            if failing:
                log.info("chore_works_again", chore=name)
            failing = False
        # Never in step with other services.
        await asyncio.sleep(every.total_seconds() * random.uniform(0.8, 1.2))


class WriteProof:
    """Proves now and then that the store takes writes, so that whoever looks need not write to find out.

    Each process writes a row of its own: one that stands still with its row locked holds up no other's proof.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._turn = f"write {name}"
        self._began: float | None = None
        self._proved: float | None = None
        self._took: timedelta | None = None
        self._error: str | None = None

    async def prove(self) -> None:
        """Write once; raises what the store says instead, or after a while."""
        began = time.monotonic()
        self._began = began if self._began is None else self._began
        try:
            async with asyncio.timeout(PROVE_WITHIN.total_seconds()):
                await self._store.turns.take(self._turn, ZERO)
        except Exception as error:
            self._error = describe_error(error)
            raise
        self._proved = time.monotonic()
        self._took, self._error = timedelta(seconds=self._proved - began), None

    @property
    def age(self) -> timedelta | None:
        """How long ago a write last went through, or the first one was tried; None where nobody has tried."""
        since = self._proved if self._proved is not None else self._began
        return None if since is None else timedelta(seconds=time.monotonic() - since)

    @property
    def is_stale(self) -> bool:
        """Whether no write has gone through for too long."""
        return self.age is not None and self.age > PROOF_MAX_AGE

    def sentence(self) -> str | None:
        """What is wrong; None where writes go through."""
        if not self.is_stale or self.age is None:
            return None
        return f"no write has gone through for {self.age.total_seconds():.0f} s"

    def once(self) -> StoreNow:
        """The same for who has tried once and does not run on: what failed then is the trouble."""
        seen = self.now()
        if seen.trouble is None and self._proved is None and self._began is not None:
            return replace(seen, trouble=f"The store takes no write: {self._error or 'it did not answer in time'}.")
        return seen

    def now(self) -> StoreNow:
        """What a verdict is judged on."""
        trouble = self._store.trouble()
        if trouble is None and self.is_stale and self.age is not None:
            why = f": {self._error}" if self._error else ": it is locked, full or away"
            trouble = f"The store has taken no write for {self.age.total_seconds():.0f} s{why}."
        return StoreNow(
            trouble=trouble, wrote_at=None if self.age is None else self._store.now() - self.age, write_took=self._took
        )
