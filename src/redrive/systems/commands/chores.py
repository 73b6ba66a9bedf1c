"""Commands that nobody handles: noticed, and after a while put before a person.

Each worker says from time to time what it can handle. A command that has been due for `unhandled_after` while no worker at all
could handle its type, in a domain that this worker looks after, is moved to the troubleshooting queue. It is not enough that
this worker cannot: another may, and be behind. The time counts from when this worker began to look, so that the first worker
to come back after an outage does not give up what the next one is for.

A command of such a type may also be held by a worker that was lost, and workers look only for types that they handle. It is
settled here as theirs are, and then waits like the others.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Connection, Text, select
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from redrive import Policy
from redrive.errors import LedgerAwayError
from redrive.events import AttemptEnded, SettleLost
from redrive.extend import Actor, Batch, Database, LeaseExpired, SqlLedger, decide, describe_error
from redrive.lane import Lane
from redrive.systems.commands.beside import Records
from redrive.systems.commands.tables import Tables

EVERY_MAX = timedelta(seconds=15)
BURIED_AT_ONCE = 500
LEASE = timedelta(seconds=5)
"""How long what was lost is held while it is settled: a write takes milliseconds."""
WORKER = "chores"
"""Who settles it, in the history."""
NO_HANDLER = "NO_HANDLER"


class Chores:
    """Keeps house for the handlers of one lane."""

    def __init__(
        self,
        database: Database,
        tables: Tables,
        records: Records,
        ledger: SqlLedger,
        lane: Lane,
        unhandled_after: timedelta,
        policy: Policy,
    ) -> None:
        self._database = database
        self._tables = tables
        self._records = records
        self._ledger = ledger
        self._lane = lane
        self._after = unhandled_after
        self._policy = policy
        self._batch = Batch(database.dialect, {"domain": Text(), "command_type": Text()})
        self._began: datetime | None = None
        self._told: set[type[Exception]] = set()
        self._log: Any = structlog.get_logger(system="commands")

    async def run(self, stopped: asyncio.Event) -> None:
        """Keep until told to stop, whatever happens: no trouble here may stop the worker.

        It is logged once for as long as it lasts; a store that is away not at all, because the worker says so already.
        """
        every = min(EVERY_MAX, self._after / 4).total_seconds()
        while not stopped.is_set():
            try:
                await self.once()
                self._told.clear()
            except LedgerAwayError:
                pass
            except Exception as error:
                if type(error) not in self._told:
                    self._told.add(type(error))
                    self._log.warning("housekeeping failed, and is tried again", error=describe_error(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(every * random.uniform(0.8, 1.2)):
                    await stopped.wait()

    async def once(self) -> int:
        """Say what is handled here, and see to what nobody handles; how many commands were given up."""
        kinds = sorted(one.kind for one in self._lane.handlers)
        if not kinds:
            return 0
        now, handled = await self._database.write(self._beat, kinds)
        if self._began is None:
            self._began = now
        if now - self._began < self._after:
            return 0
        domains = {kind.partition("/")[0] for kind in kinds}
        buried = 0
        for kind in await self._ledger.open_kinds():
            if kind not in handled and kind.partition("/")[0] in domains:
                buried += await self._bury(kind)
                await self._settle_lost(kind)
        return buried

    async def _bury(self, kind: str) -> int:
        buried = 0
        why = f"no worker has had a handler for {kind} for {self._after}"
        while ids := await self._ledger.overdue(kind, self._after, limit=BURIED_AT_ONCE):
            changed = await self._ledger.bury(ids, Actor(name="redrive", reason=NO_HANDLER), note=why)
            buried += len(changed)
            if not changed:  # somebody else was quicker
                break
        return buried

    async def _settle_lost(self, kind: str) -> None:
        """Charge the tries of workers that were lost: the commands wait again, or have spent their budget."""
        name = self._ledger.name
        while claims := await self._ledger.take_lost(kind, BURIED_AT_ONCE, LEASE):
            group = [decide(claim, LeaseExpired(), self._policy) for claim in claims]
            lost = {one.claim.task.id for one in await self._ledger.settle(group, worker=WORKER)}
            self._lane.tell(
                [SettleLost(name, one) if one.claim.task.id in lost else AttemptEnded(name, one) for one in group]
            )

    def _beat(self, connection: Connection, kinds: Sequence[str]) -> tuple[datetime, set[str]]:
        table = self._tables.handler
        sqlite = self._database.dialect.name == "sqlite"
        make: Any = sqlite_insert if sqlite else postgres_insert
        rows = [tuple(kind.split("/", 1)) for kind in kinds]
        batch = self._batch.rows
        seen = select(batch.c.domain, batch.c.command_type, self._records.now().label("seen_at")).select_from(batch)
        seen = seen.where(batch.c.domain.is_not(None))  # SQLite reads ON CONFLICT as a join without a condition
        upsert = make(table).from_select(["domain", "command_type", "seen_at"], seen)
        upsert = upsert.on_conflict_do_update(
            index_elements=["domain", "command_type"], set_={"seen_at": upsert.excluded.seen_at}
        )
        connection.execute(upsert, self._batch.parameters(rows) | self._records.times())
        now = self._database.present(connection)
        alive = select(table.c.domain, table.c.command_type).where(table.c.seen_at > now - self._after)
        return now, {f"{domain}/{command_type}" for domain, command_type in connection.execute(alive)}
