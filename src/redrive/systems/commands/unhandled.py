"""Commands that no worker handles: after a while they are moved to the troubleshooting queue.

Each worker says from time to time which types it handles. A command is moved when it has been due for `unhandled_after`, is in
a domain that this worker serves, and no worker at all has said that it handles the type. It is not enough that this worker does
not: another one may, and be behind. The time counts from when this worker started, so the first worker to come back after an
outage does not give up what the next one is for.

A lost worker may still hold a command of such a type, and other workers only claim types that they handle. Its try is charged
here as any other lost try, and the command then waits like the rest.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Connection, select

from redrive import Policy
from redrive.errors import LedgerAwayError
from redrive.events import AttemptEnded, SettleLost
from redrive.lane import Actor, Lane
from redrive.operator.words import describe_error
from redrive.queues import ClaimLocked, ClaimLost, LeaseExpired, SqlLedger, decide
from redrive.systems.commands.messages import Messages

EVERY_MAX = timedelta(seconds=15)
BURIED_AT_ONCE = 500
LEASE = timedelta(seconds=5)
"""How long a lost command is held while its try is charged: a write takes milliseconds."""
WORKER = "chores"
"""The name in the history of who charged it."""
NO_HANDLER = "NO_HANDLER"


class UnhandledCommands:
    """Looks after the commands that nobody handles, for the worker of one lane."""

    def __init__(self, messages: Messages, ledger: SqlLedger, lane: Lane, *, after: timedelta, policy: Policy) -> None:
        """After how long without a handler they are given up; `policy` charges the tries of lost workers."""
        self._database = messages.database
        self._messages = messages
        self._ledger = ledger
        self._lane = lane
        self._after = after
        self._policy = policy
        self._began: datetime | None = None
        self._told: set[type[Exception]] = set()
        self._log: Any = structlog.get_logger(system="commands")

    async def run(self, stopped: asyncio.Event) -> None:
        """Run until told to stop, whatever happens: no error here may stop the worker.

        An error is logged once for as long as it lasts. A store that is away is not logged: the worker does that already.
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
        """Say what is handled here, and deal with what nobody handles; returns how many commands were given up."""
        kinds = sorted(one.kind for one in self._lane.handlers)
        if not kinds:
            return 0
        now, handled = await self._database.write(self._say, kinds)
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
        """Charge the tries of lost workers: the commands wait again, or have spent their budget."""
        name = self._ledger.name
        while claims := await self._ledger.take_lost(kind, BURIED_AT_ONCE, LEASE):
            group = [decide(claim, LeaseExpired(), self._policy) for claim in claims]
            unwritten = {one.claim.task.id: one for one in await self._ledger.settle(group, worker=WORKER)}
            for one in group:
                match unwritten.get(one.claim.task.id):
                    case None:
                        self._lane.tell([AttemptEnded(name, one)])
                    case ClaimLost():
                        self._lane.tell([SettleLost(name, one)])
                    case ClaimLocked():
                        pass  # its lease is over soon, and it is found here again

    def _say(self, connection: Connection, kinds: Sequence[str]) -> tuple[datetime, set[str]]:
        """Say what is handled here. Returns the time, and what is handled anywhere."""
        table, now = self._messages.tables.handler, self._database.present(connection)
        rows = [dict(zip(("domain", "command_type"), kind.split("/", 1), strict=True), seen_at=now) for kind in kinds]
        said = self._database.insert(table).values(rows)
        said = said.on_conflict_do_update(
            index_elements=["domain", "command_type"], set_={"seen_at": said.excluded.seen_at}
        )
        connection.execute(said)
        alive = select(table.c.domain, table.c.command_type).where(table.c.seen_at > now - self._after)
        return now, {f"{domain}/{command_type}" for domain, command_type in connection.execute(alive)}
