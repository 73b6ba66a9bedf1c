"""Whether flags are on, asked of memory: kept for at most five minutes, and forgotten everywhere as soon as one of them changes.

A change is announced in its own transaction, so other processes hear of it when it commits: by NOTIFY on PostgreSQL, by the
file's data version on SQLite. Nobody waits for a cache: one that cannot be told forgets by itself in time.

What is forgotten is read again, and kept until that has succeeded: while the store is away it is the last known state, and flags are
answered from it.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Concatenate, Generic, ParamSpec, TypeVar

import structlog
from sqlalchemy import Connection, select

from redrive import Redrive
from redrive.errors import LedgerAwayError, TooSlowError
from redrive.operator.words import describe_error
from redrive.sql import after_commit
from redrive.systems.flags import tables
from redrive.systems.flags.evaluate import FlagFacts, is_on
from redrive.systems.flags.values import PRODUCTION

P = ParamSpec("P")
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
"""How long the store is left alone after it could not be read."""
ANSWER_WITHIN_SECONDS = 1.0
"""How long the store is waited for where there is a last known state to answer from."""

Known = dict[tuple[str, str], FlagFacts]
"""Flags by environment and key."""
Overrides = dict[int, str]
"""A user's overrides by the id of the flag."""


@dataclass(frozen=True, slots=True)
class Kept(Generic[R]):
    """What was read: since when it may be believed, and up to which change."""

    read: float
    version: int
    value: R


class FlagCache:
    """What evaluations need, read when it is first asked for.

    `outage_max` is how long the last known state is answered from while the store is away; None is until it is back.
    """

    def __init__(
        self, app: Redrive, *, outage_max: timedelta | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._database = app.database
        self._outage_seconds_max = None if outage_max is None else outage_max.total_seconds()
        self._now = now
        self._flags: Kept[Known] | None = None
        self._overrides: OrderedDict[str, Kept[Overrides]] = OrderedDict()
        self._version = 0
        self._away_since: float | None = None
        self._asked_again_at = -math.inf
        self._one_reader = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._log = structlog.get_logger(system="flags")

    async def is_enabled(
        self, key: str, *, user_id: str | None = None, environment: str = PRODUCTION, default: bool | None = None
    ) -> bool:
        """Whether a flag is on, for a user if one is named. An unknown flag is off.

        While the store is away the last known state answers. Where there is none, it is `default`; without one the error is
        raised.
        """
        try:
            flag = (await self.flags()).get((environment, key))
            override = None
            if flag is not None and flag.enabled and user_id is not None:
                override = (await self.overrides(user_id)).get(flag.id)
        except LedgerAwayError:
            if default is None:
                raise
            return default
        return is_on(flag, override, user_id)

    async def all_enabled(
        self, *, user_id: str | None = None, environment: str = PRODUCTION, default: Mapping[str, bool] | None = None
    ) -> dict[str, bool]:
        """Every flag of an environment by its key, and whether it is on. `default` as in `is_enabled`."""
        try:
            flags = await self.flags()
            overrides = {} if user_id is None else await self.overrides(user_id)
        except LedgerAwayError:
            if default is None:
                raise
            return dict(default)
        return {
            key: is_on(flag, overrides.get(flag.id), user_id)
            for (where, key), flag in flags.items()
            if where == environment
        }

    @property
    def age_seconds(self) -> float | None:
        """How old the last known state is that flags are answered from; None while the store answers."""
        if self._away_since is None or self._flags is None:
            return None
        return max(0.0, self._now() - self._flags.read)

    def announce(self, connection: Connection) -> None:
        """Flags change with this transaction: forget, and tell other processes. Never raises for what is wrong with that."""
        after_commit(connection, self.forget)
        try:
            with connection.begin_nested():
                self._database.announce(connection, CHANGES, soon=False)
        except Exception as error:  # they forget by themselves in time; the change goes on
            self._log.warning("Flag caches could not be told of a change", error=describe_error(error))

    def forget(self) -> None:
        """Read again before anything is believed. What is being read just now is not either: it may be older than the change."""
        self._version += 1

    async def flags(self) -> Known:
        """All flags."""
        if not self._is_fresh(self._flags):
            async with self._one_reader:  # a crowd that finds nothing reads once
                if not self._is_fresh(self._flags):
                    self._flags = await self._renewed(self._flags, self._read_flags)
        assert self._flags is not None
        return self._flags.value

    async def overrides(self, user_id: str) -> Overrides:
        """The overrides of one user. While the store is away, of a user that nobody asked for before none are known."""
        kept = self._overrides.get(user_id)
        if not self._is_fresh(kept):
            try:
                kept = await self._renewed(kept, self._read_overrides, user_id)
            except LedgerAwayError:
                if not self._may_answer():
                    raise
                return {}
            self._overrides[user_id] = kept
            while len(self._overrides) > USERS_MAX:
                self._overrides.popitem(last=False)
        assert kept is not None
        self._overrides.move_to_end(user_id)
        return kept.value

    async def close(self) -> None:
        """Stop listening."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        self.forget()
        self._flags = None
        self._overrides.clear()

    def _is_fresh(self, kept: Kept[R] | None) -> bool:
        """Whether it may be believed without asking."""
        return kept is not None and kept.version == self._version and self._now() - kept.read < KEPT.total_seconds()

    async def _renewed(
        self, kept: Kept[R] | None, read: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Kept[R]:
        """What the store says now; what it said last, if it cannot be reached and that may still be answered."""
        began, version = self._now(), self._version
        if began < self._asked_again_at:
            if kept is not None and self._may_answer():
                return kept
            raise LedgerAwayError("the store of the flags could not be reached a moment ago: try again")
        try:
            value = await self._ask(read, *args, **kwargs)
        except (LedgerAwayError, TooSlowError, TimeoutError) as error:
            self._asked_again_at = self._now() + AFTER_A_FAULT_SECONDS
            if self._away_since is None:
                self._away_since = began
                self._log.warning("Flags cannot be read now", error=describe_error(error))
            if kept is not None and self._may_answer():
                return kept
            if isinstance(error, LedgerAwayError):
                raise
            raise LedgerAwayError("the store of the flags does not answer in time: try again") from error
        self._asked_again_at = -math.inf
        if self._away_since is not None:
            self._log.info("Flags can be read again", away_seconds=round(began - self._away_since, 3))
            self._away_since = None
        return Kept(began, version, value)

    async def _ask(self, read: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with asyncio.timeout(None if self._flags is None else ANSWER_WITHIN_SECONDS):
            await self._app.open()
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch(), name="redrive-flags-watch")
            return await self._database.read(read, *args, **kwargs)

    def _may_answer(self) -> bool:
        """Whether there is a last known state that may be answered from."""
        if self._flags is None:
            return False
        if self._away_since is None or self._outage_seconds_max is None:
            return True
        return self._now() - self._away_since < self._outage_seconds_max

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
