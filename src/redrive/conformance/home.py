"""A ledger to test, with what a test needs around it: tasks, a clock, and short verbs."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, select

from redrive.app import Redrive
from redrive.core import jitter
from redrive.core.backoff import Fixed
from redrive.core.decide import Settlement, decide
from redrive.core.durations import ZERO, seconds
from redrive.core.outcome import Done, Failed, LeaseExpired, Outcome
from redrive.core.policy import Policy
from redrive.core.table import LedgerTable
from redrive.core.task import Claim, NewTask, TaskId, Unwritten
from redrive.errors import PermanentError, UsageError
from redrive.ledgers.sql import schema
from redrive.ports import Actor
from redrive.testing import VirtualClock

START = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = seconds(30)
BACKOFF = seconds(60)
RAN = seconds(1.5)
POLICY = Policy(Fixed(BACKOFF), retries=3, jitter=jitter.none, name="test")
ADA = Actor(name="ada", reason="the bank is back")
PERMANENT = Failed(PermanentError("no such account"))
TRANSIENT = Failed(TimeoutError("too slow"))


def settlement(claim: Claim, outcome: Outcome = Done(), policy: Policy = POLICY) -> Settlement:
    """What must be written for a claim that ran for a second and a half."""
    return decide(claim, outcome, policy, elapsed=RAN)


class Home:
    """A ledger and its surroundings. For a ledger of your own make a subclass with `put` and `another`."""

    ledger: Any
    clock: Any
    """A `VirtualClock` that the ledger believes, at `START`."""

    @property
    def table(self) -> LedgerTable:
        """How the ledger's columns and words are called."""
        table: LedgerTable = self.ledger.table
        return table

    @property
    def queued(self) -> bool:
        """Whether tasks wait in a queue, which hands out what was abandoned by itself: in `claim`, and never in `reclaim`."""
        return False

    async def put(
        self, amount: int = 1, *, kind: str = "mail", delay: timedelta = ZERO, failures_max: int | None = None
    ) -> list[TaskId]:
        """Tasks in the ledger, as their owner puts them there, due after `delay`; their ids."""
        raise NotImplementedError

    async def another(self) -> Any:
        """The same ledger over connections of its own, as another process would have it."""
        raise NotImplementedError

    async def claim_one(self) -> Claim:
        """The one task that is due."""
        [claim] = await self.ledger.claim(1, LEASE)
        assert isinstance(claim, Claim)
        return claim

    async def settle(self, claim: Claim, outcome: Outcome, policy: Policy = POLICY) -> list[Unwritten]:
        """Write what became of a claim; what was not written."""
        unwritten: list[Unwritten] = await self.ledger.settle([settlement(claim, outcome, policy)], worker="w1")
        return unwritten

    async def run(self, outcome: Outcome, policy: Policy = POLICY) -> Claim:
        """Claim the one due task and settle it."""
        claim = await self.claim_one()
        assert await self.settle(claim, outcome, policy) == []
        return claim

    async def dead(self, amount: int = 1) -> list[TaskId]:
        """Tasks that died of a permanent error."""
        ids = await self.put(amount)
        claims = await self.ledger.claim(amount, LEASE)
        assert await self.ledger.settle([settlement(claim, PERMANENT) for claim in claims], worker="w1") == []
        return ids

    async def expire(self) -> list[Claim]:
        """What a keeper does: settle the claims that ran out."""
        found = await self.reclaim(100, LEASE)
        assert await self.ledger.settle([settlement(claim, LeaseExpired()) for claim in found], worker="keeper") == []
        return found

    async def reclaim(
        self, limit: int, lease: timedelta, *, kinds: list[str] | None = None, ledger: Any = None
    ) -> list[Claim]:
        """Claims that ran out, marked: by `reclaim`, or by `claim` where a queue hands them out again by itself."""
        ledger = ledger or self.ledger
        found: list[Claim] = await ledger.reclaim(limit, lease, kinds=kinds)
        if self.queued:
            assert found == []
            found = await ledger.claim(limit, lease, kinds=kinds)
            assert all(claim.abandoned is not None for claim in found)
        return found


Insert = Callable[[Connection, datetime, int | None], TaskId]
"""Inserts one row as your application does, due at this instant and with this many failures at most; its id."""


class _TableHome(Home):
    """A table of somebody's."""

    def __init__(self, app: Redrive, url: str, ledger: Any, clock: VirtualClock, insert: Insert | None) -> None:
        self.ledger, self.clock = ledger, clock
        self._app, self._url, self._insert = app, url, insert
        self._serial = 0
        self._opened: list[Redrive] = []

    async def put(
        self, amount: int = 1, *, kind: str = "mail", delay: timedelta = ZERO, failures_max: int | None = None
    ) -> list[TaskId]:
        """See `Home.put`."""
        insert, due = self._insert, self.clock.now() + delay
        if insert is None:
            self._serial += amount
            keys = [f"conformance-{self._serial - n}" for n in range(amount)]
            tasks = [NewTask(kind=kind, key=key, delay=delay, failures_max=failures_max) for key in keys]
            return [added.id for added in await self.ledger.add(tasks)]
        return await self._app.database.write(
            lambda connection: [insert(connection, due, failures_max) for _ in range(amount)]
        )

    async def another(self) -> Any:
        """See `Home.another`."""
        app = Redrive(self._url, clock=self.clock, durable=False)
        self._opened.append(app)
        return await app.adopt(self.table).ledger()

    async def leave(self) -> None:
        """Delete what the test left behind, and close."""
        await self._app.database.write(self._forget)
        for app in self._opened:
            await app.close()

    def _forget(self, connection: Connection) -> None:
        connection.execute(delete(self.ledger.sql_table))
        for table in schema.metadata.sorted_tables:
            if "ledger" in table.c:
                connection.execute(delete(table).where(table.c.ledger == self.ledger.name))


@asynccontextmanager
async def table_home(url: str, table: LedgerTable, *, insert: Insert | None = None) -> AsyncIterator[Home]:
    """A home over a table of yours, which must be there and empty; it is left empty, and time is virtual.

    `insert` inserts one row as your application does; without, redrive's own `add` is used, where the table has a column for the
    payload. PostgreSQL needs `redrive migrate` before.
    """
    if insert is None and table.payload is None:
        raise UsageError(f"{table.name!r} has no column for the payload, so redrive adds nothing there: pass insert=")
    clock = VirtualClock(START)
    async with Redrive(url, clock=clock, durable=False) as app:
        ledger: Any = await app.adopt(table).ledger()
        rows = await app.database.read(
            lambda connection: connection.execute(select(func.count()).select_from(ledger.sql_table)).scalar_one()
        )
        if rows:
            raise UsageError(
                f"{table.name!r} holds {rows:,} rows: promises are tested on an empty table of a test database"
            )
        home = _TableHome(app, url, ledger, clock, insert)
        try:
            yield home
        finally:
            await home.leave()
