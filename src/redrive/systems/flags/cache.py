"""Whether flags are on, asked of memory: kept for at most five minutes, and forgotten everywhere as soon as one of them changes.

A change is announced in its own transaction, so other processes hear of it when it commits: by NOTIFY on PostgreSQL, by the
file's data version on SQLite. Nobody waits for a cache: one that cannot be told forgets by itself in time.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import structlog
from sqlalchemy import Connection, select

from redrive import Redrive
from redrive.operator.words import describe_error
from redrive.sql import after_commit
from redrive.systems.flags import tables
from redrive.systems.flags.evaluate import FlagFacts, is_on
from redrive.systems.flags.values import PRODUCTION

R = TypeVar("R")

KEPT = timedelta(seconds=300)
"""How long what was read is believed without hearing of a change."""
CHANGES = "feature_flags"
"""The name under which changes of flags are announced."""
FLAGS_MAX = 10_000
"""How many flags there may be in all: they are read together."""
USERS_MAX = 10_000
"""How many users' overrides are kept; those asked for longest ago go first."""
AFTER_A_FAULT_SECONDS = 1.0

Known = dict[tuple[str, str], FlagFacts]
"""Flags by environment and key."""
Overrides = dict[int, str]
"""A user's overrides by the id of the flag."""


class FlagCache:
    """What evaluations need, read when it is first asked for."""

    def __init__(self, app: Redrive, *, now: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._database = app.database
        self._now = now
        self._flags: tuple[float, Known] | None = None
        self._overrides: OrderedDict[str, tuple[float, Overrides]] = OrderedDict()
        self._version = 0
        self._one_reader = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._log = structlog.get_logger(system="flags")

    async def is_enabled(self, key: str, *, user_id: str | None = None, environment: str = PRODUCTION) -> bool:
        """Whether a flag is on, for a user if one is named. An unknown flag is off."""
        flag = (await self.flags()).get((environment, key))
        override = None
        if flag is not None and flag.enabled and user_id is not None:
            override = (await self.overrides(user_id)).get(flag.id)
        return is_on(flag, override, user_id)

    async def all_enabled(self, *, user_id: str | None = None, environment: str = PRODUCTION) -> dict[str, bool]:
        """Every flag of an environment by its key, and whether it is on."""
        flags = await self.flags()
        overrides = {} if user_id is None else await self.overrides(user_id)
        return {
            key: is_on(flag, overrides.get(flag.id), user_id)
            for (where, key), flag in flags.items()
            if where == environment
        }

    def announce(self, connection: Connection) -> None:
        """Flags change with this transaction: forget, and tell other processes. Never raises for what is wrong with that."""
        after_commit(connection, self.forget)
        try:
            with connection.begin_nested():
                self._database.announce(connection, CHANGES, soon=False)
        except Exception as error:  # they forget by themselves in time; the change goes on
            self._log.warning("Flag caches could not be told of a change", error=describe_error(error))

    def forget(self) -> None:
        """Believe nothing any more. What is being read just now is not kept either: it may be older than the change."""
        self._version += 1
        self._flags = None
        self._overrides.clear()

    async def flags(self) -> Known:
        """All flags."""
        if self._flags is None or self._is_old(self._flags[0]):
            async with self._one_reader:  # a crowd that finds nothing reads once
                if self._flags is None or self._is_old(self._flags[0]):
                    read, version, flags = await self._read(lambda: self._database.read(self._read_flags))
                    if version == self._version:
                        self._flags = (read, flags)
                    return flags
        return self._flags[1]

    async def overrides(self, user_id: str) -> Overrides:
        """The overrides of one user."""
        kept = self._overrides.get(user_id)
        if kept is not None and not self._is_old(kept[0]):
            self._overrides.move_to_end(user_id)
            return kept[1]
        read, version, found = await self._read(lambda: self._database.read(self._read_overrides, user_id))
        if version == self._version:
            self._overrides[user_id] = (read, found)
            self._overrides.move_to_end(user_id)
            while len(self._overrides) > USERS_MAX:
                self._overrides.popitem(last=False)
        return found

    async def close(self) -> None:
        """Stop listening."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        self.forget()

    async def _read(self, read: Callable[[], Awaitable[R]]) -> tuple[float, int, R]:
        """Since when what was read may be believed, the version it belongs to, and what it was."""
        await self._app.open()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="redrive-flags-watch")
        began, version = self._now(), self._version
        return began, version, await read()

    def _is_old(self, read: float) -> bool:
        return self._now() - read >= KEPT.total_seconds()

    async def _watch(self) -> None:
        """Forget whenever another process has changed a flag; also after anything that may have been missed."""
        while True:
            try:
                with self._database.waiter(CHANGES) as waiter:
                    while True:
                        waiter.clear()
                        if await waiter.wait(KEPT):
                            self.forget()
            except Exception as error:  # the store may be well again later
                self._log.warning("Flag changes are not heard now", error=describe_error(error))
                self.forget()
            await asyncio.sleep(AFTER_A_FAULT_SECONDS)

    def _read_flags(self, connection: Connection) -> Known:
        t = tables.flags
        found = select(t.c.environment, t.c.flag_key, t.c.id, t.c.enabled, t.c.rollout_percentage).limit(FLAGS_MAX)
        return {(environment, key): FlagFacts(*facts) for environment, key, *facts in connection.execute(found)}

    def _read_overrides(self, connection: Connection, user_id: str) -> Overrides:
        t = tables.overrides
        found = select(t.c.flag_id, t.c.override_type).where(t.c.user_id == user_id).limit(FLAGS_MAX)
        return {row.flag_id: row.override_type for row in connection.execute(found)}
