"""PostgreSQL: many workers, one server, through asyncpg.

Single statements run in autocommit, which saves two round trips each. The engine's own pool plans without sequential scans:
its statements are all served by indexes, and a plan cached while a table was empty would stay bad for ever. User code
gets connections from a pool of its own without that setting. Through a pooler (`address.py`) no statement has a name: each is
planned when it runs, so no plan can go stale.

A connection belongs to the event loop that opened it, so each loop has pools of its own. Most programs have one.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Table, event, func, select, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from redrive.errors import MissingExtraError, SettingsError
from redrive.ledgers.postgres.dialect import PostgresDialect
from redrive.ledgers.sql.beside_the_loop import terminate_on_the_loop
from redrive.ledgers.sql.compiled import KEPT_MAX, OWN, Compiled
from redrive.ledgers.sql.database import Changes, OpenTransaction, call_all, run_collecting, user_transaction
from redrive.ledgers.sql.forks import leave_to_parent, watch_forks
from redrive.ledgers.sql.json_text import decode_json
from redrive.ledgers.sql.waiters import WakeUps
from redrive.ports import Clock

try:
    from redrive.ledgers.postgres.address import (
        LISTEN_URL,
        PostgresAddress,
        listen_address,
    )
    from redrive.ledgers.postgres.connect import connect, shares_servers
    from redrive.ledgers.postgres.errors import DRIVER_ERRORS, is_passing, is_spent, translated
    from redrive.ledgers.postgres.limits import SET, lift, lift_for_transaction
    from redrive.ledgers.postgres.wake_up import WakeUp
except ImportError as error:  # pragma: no cover - the extra is installed in every test run
    raise MissingExtraError("PostgreSQL", "postgres") from error

P = ParamSpec("P")
R = TypeVar("R")

POOL_SIZE = 8
COMMAND_TIMEOUT_SECONDS = 60.0
"""How long a statement is waited for: whoever asks a server that is gone must hear of it. A migration may take longer."""
BACKOFF_SECONDS_MAX = 0.25
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
PLANNED_ANEW = MappingProxyType({"plan_cache_mode": "force_custom_plan"})
"""For just what is asked, instead of a plan that was made for anything."""
_PRESENT = Compiled(select(func.statement_timestamp()))


class _Pools:
    """The connections of one event loop."""

    def __init__(self, of: "PostgresDatabase") -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._opened: WeakSet[Any] = WeakSet()
        self.engine = of.make_engine(
            opened=self._opened,
            settings={"enable_seqscan": "off", "jit": "off"},
            isolation_level="AUTOCOMMIT",
            query_cache_size=KEPT_MAX,
        )
        self.atomic = self.engine.execution_options(isolation_level=of.isolation)
        self.user_engine = of.make_engine("handler", own=False, opened=self._opened, isolation_level=of.user_isolation)
        self.wake_up = WakeUp(of.find_listen, self._leave, of.address.schema)

    def _leave(self) -> Callable[[], None]:
        """Note the connections that are open now, to cut them: who waits for a server that has gone hears of it at once."""
        there = list(self._opened)

        def cut() -> None:
            for connection in there:
                connection.terminate()

        return cut

    async def close(self) -> None:
        await self.wake_up.close()
        await self.engine.dispose()
        await self.user_engine.dispose()

    def drop(self) -> None:
        """Forget connections whose loop is closed, and with it all that could say goodbye."""
        self.engine.sync_engine.dispose(close=False)
        self.user_engine.sync_engine.dispose(close=False)


class PostgresDatabase:
    """A PostgreSQL database as a `Database`."""

    migrates_itself = False
    transactions_max = 2 * POOL_SIZE
    connections_max = 4 * POOL_SIZE + 1
    """How many connections one process opens at most: for the engine, for user code, and one that listens."""
    file = None
    isolation: IsolationLevel = "READ COMMITTED"
    user_isolation: IsolationLevel | None = None
    """Of transactions of user code; None: whatever the server's is."""
    tries_max = 4
    """How often a transaction is tried that the server takes back."""
    dialect_class = PostgresDialect
    lifts_limits = True
    """Whether the limits of a role are lifted; not every engine that speaks this protocol knows them."""

    def __init__(self, address: PostgresAddress, *, clock: Clock | None = None) -> None:
        self.address = address
        self.url = self.address.shown
        self._pooled: bool | None = self.address.pooler
        self._limited = False
        """Whether sessions that a pooler hands on have limits, which each transaction has to lift."""
        self._clock = clock
        self.server_clock = clock is None
        self._latest = _Pools(self)
        self._pools: dict[asyncio.AbstractEventLoop, _Pools] = {}
        self.dialect = self.dialect_class(
            self._latest.engine.dialect, server_clock=self.server_clock, schema=address.schema
        )
        watch_forks(self)

    @property
    def _here(self) -> _Pools:
        """The pools of the running loop."""
        loop = asyncio.get_running_loop()
        latest = self._latest
        return latest if latest.loop is loop else self._pools_of(loop)

    def _pools_of(self, loop: asyncio.AbstractEventLoop) -> _Pools:
        found = self._pools.get(loop)
        if found is None:
            self._drop_closed()
            found = self._latest if self._latest.loop is None else _Pools(self)
            found.loop = loop
            self._pools[loop] = found
        self._latest = found
        return found

    def _drop_closed(self) -> None:
        for loop, pools in list(self._pools.items()):
            if loop.is_closed():
                del self._pools[loop]
                pools.drop()

    def now(self) -> datetime:
        """See `Database.now`."""
        return self._clock.now() if self._clock is not None else datetime.now(UTC)

    def present(self, connection: Connection) -> datetime:
        """See `Database.present`."""
        if self._clock is not None:
            return self._clock.now()
        now: datetime = _PRESENT.scalar(connection, {})
        return now

    def changes(self, connection: Connection) -> Changes | None:  # noqa: ARG002 - a server has many writers
        """See `Database.changes`."""
        return None

    def insert(self, table: Table) -> Any:
        """See `Database.insert`."""
        return self.dialect.insert(table)

    async def describe(self) -> str:
        """See `Database.describe`."""
        asked = text("SELECT current_setting('server_version'), current_setting('synchronous_commit')")
        version, commit = await self.read(lambda connection: connection.execute(asked).one())
        pooler = ", through a pooler" if await self.is_pooled() else ""
        return f"PostgreSQL {version}, synchronous_commit={commit}{pooler}"

    async def is_pooled(self) -> bool:
        """Whether a pooler shares the server's sessions among its clients; asked once."""
        if self._pooled is None:
            self._pooled = await shares_servers(self.address)
        return self._pooled

    async def find_listen(self) -> PostgresAddress | None:
        """Where to listen for wake-ups; None where nothing would be heard."""
        return listen_address(self.address, pooled=await self.is_pooled())

    async def open(self) -> None:
        """See `Database.open`."""
        here = await self.read(lambda connection: connection.execute(select(func.current_schema())).scalar())
        wanted = self.address.schema
        if wanted is not None and here != wanted and await self.is_pooled():
            raise SettingsError(
                f"the pooler does not pass the schema {wanted!r} on, tables are looked for in {here!r}: "
                f"ALTER ROLE … SET search_path = {wanted}"
            )

    async def close(self) -> None:
        """See `Database.close`."""
        await self._here.close()
        self._drop_closed()

    async def statement(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.statement`."""
        if self._limited:
            return await self.write(run, *args, **kwargs)
        return await self._in_autocommit(run, *args, **kwargs)

    async def _in_autocommit(
        self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        async def once() -> R:
            async with self._here.engine.connect() as connection:
                return await connection.run_sync(run, *args, **kwargs)

        return await self._patiently(once)

    async def write(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.write`."""

        async def once() -> R:
            calls: list[Callable[[], None]] = []
            async with self._here.atomic.begin() as connection:
                if self._limited:
                    await connection.run_sync(lift_for_transaction)
                result = await connection.run_sync(run_collecting, calls, run, *args, **kwargs)
            call_all(calls)
            return result

        return await self._patiently(once)

    async def stand_in_line(
        self, span: timedelta, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """See `Database.stand_in_line`."""
        return await self._set({"lock_timeout": _milliseconds(span)}, run, *args, **kwargs)

    async def rebuild(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.rebuild`. On a connection of its own, whose statements have no limit."""
        engine = self.make_engine("migrate", limited=False)

        async def once() -> R:
            async with engine.begin() as connection:
                await connection.run_sync(lift_for_transaction)
                return await connection.run_sync(run, *args, **kwargs)

        try:
            return await self._patiently(once)
        finally:
            await engine.dispose()

    async def read(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.read`."""
        return await self.statement(run, *args, **kwargs)

    async def scan(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.scan`. Planned anew, and for reading whole tables, which the engine's own statements must not do."""
        return await self._set({"enable_seqscan": "on", **PLANNED_ANEW}, run, *args, **kwargs)

    async def look(
        self, within: timedelta, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """See `Database.look`. Planned anew: a plan for every flag alike reads through all to find those of one with few."""
        return await self._set({"statement_timeout": _milliseconds(within), **PLANNED_ANEW}, run, *args, **kwargs)

    async def _set(
        self,
        settings: Mapping[str, str],
        run: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """As `write`, with settings that hold for this transaction."""

        def with_settings(connection: Connection) -> R:
            connection.execute(select(*(func.set_config(name, value, True) for name, value in settings.items())))
            return run(connection, *args, **kwargs)

        return await self.write(with_settings)

    async def _patiently(self, once: Callable[[], Awaitable[R]]) -> R:
        """Run it, again at once where PostgreSQL broke a deadlock or a plan went stale."""
        for attempt in range(1, self.tries_max + 1):
            try:
                return await once()
            except DRIVER_ERRORS as error:
                if attempt == self.tries_max or not is_passing(error):
                    raise translated(error) from error
            await asyncio.sleep(random.uniform(0, min(0.01 * 2**attempt, BACKOFF_SECONDS_MAX)))
        raise AssertionError("unreachable")

    def transaction(self) -> AbstractAsyncContextManager[OpenTransaction]:
        """See `Database.transaction`."""
        return user_transaction(self._here.user_engine, translated)

    def check_free(self) -> None:
        """See `Database.check_free`: a transaction holds its rows alone."""

    def trouble(self) -> str | None:
        """See `Database.trouble`: what is slow here shows in its answers."""
        return None

    async def advice(self) -> Sequence[tuple[str, str]]:
        """See `Database.advice`."""
        found = self._url_advice()
        if await self.find_listen() is None:
            said = "a pooler stands before the server: nobody is woken, and workers find new work by their poll"
            found.append((said, f"name a direct way for wake-ups: {LISTEN_URL}=postgresql://…"))
        return found

    def _url_advice(self) -> list[tuple[str, str]]:
        return [(notice, "take it out of the URL, and let the server insist on it") for notice in self.address.notices]

    def before_fork(self) -> None:
        """See `Forking.before_fork`: connections are sockets, and a copy that nobody uses does no harm."""

    def in_parent(self) -> None:
        """See `Forking.in_parent`."""

    def in_child(self) -> None:
        """See `Forking.in_child`."""
        leave_to_parent(self._latest, *self._pools.values())
        self._latest = _Pools(self)
        self._pools = {}

    def waiter(self, ledger: str) -> AbstractContextManager[WakeUps]:
        """See `Database.waiter`."""
        return self._here.wake_up.waiter(ledger)

    def wake(self, ledger: str) -> None:
        """See `Database.wake`."""
        self._here.wake_up.wake(ledger)

    def announce(self, connection: Connection, ledger: str, *, soon: bool) -> None:
        """See `Database.announce`."""
        self._latest.wake_up.announce(connection, ledger, soon=soon)

    def make_engine(
        self,
        role: str = "",
        *,
        own: bool = True,
        opened: "WeakSet[Any] | None" = None,
        settings: Mapping[str, str] = NO_SETTINGS,
        limited: bool = True,
        **options: Any,
    ) -> AsyncEngine:
        """An engine whose connections say what they are for; `opened` gets each of them. Limits hold for those that are not our own."""

        async def creating(**arguments: Any) -> Any:
            connection = await connect(self.address, **arguments)
            try:
                if self._pooled:
                    self._limited = self.lifts_limits and bool(await connection.fetch(SET))
                elif own and self.lifts_limits:
                    await lift(connection)
            except BaseException:
                connection.terminate()
                raise
            if opened is not None:
                opened.add(connection)
            return connection

        engine = create_async_engine(
            "postgresql+asyncpg://",  # where it goes is said when it connects
            hide_parameters=True,  # payloads and errors of strangers do not belong into tracebacks
            json_deserializer=decode_json,
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_use_lifo=True,
            connect_args={
                "async_creator_fn": creating,
                "command_timeout": COMMAND_TIMEOUT_SECONDS if limited else None,
            },
            execution_options={OWN: own},
            **options,
        )

        def connecting(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> None:
            pooled = await_only(self.is_pooled())
            named.update(self.address.arguments(role, pooled=pooled, settings=settings))
            if pooled:
                named["prepared_statement_cache_size"] = 0  # SQLAlchemy's own, which remembers the types of a statement

        event.listen(engine.sync_engine, "do_connect", connecting)
        event.listen(engine.sync_engine, "handle_error", _leave_spent)
        terminate_on_the_loop(engine)
        return engine


def _leave_spent(context: ExceptionContext) -> None:
    """The connections of a server that only reads or says nothing are dropped, and the next ones look for the primary."""
    if is_spent(context.original_exception):
        context.is_disconnect = True


def _milliseconds(span: timedelta) -> str:
    return str(max(1, int(span.total_seconds() * 1000)))
