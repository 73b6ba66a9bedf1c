"""A ledger to test, on any shape and database, with what a test needs around it: rows, a clock, and short verbs."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
from sqlalchemy import Connection, Table, insert, make_url, select, update

from redrive import conformance
from redrive.conformance.home import ADA, BACKOFF, LEASE, PERMANENT, POLICY, RAN, START, TRANSIENT, settlement  # noqa: F401 - for the tests
from redrive.core.durations import ZERO
from redrive.core.table import LedgerTable
from redrive.core.task import NewTask, TaskId
from redrive.errors import TableError
from redrive.ledgers.adopt.check import adopt
from redrive.ledgers.open import open_database, open_ledger, own_ledger
from redrive.ledgers.pgmq.ledger import PgmqLedger
from redrive.ledgers.pgmq.queues import message_table
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.migrate import migrate
from redrive.ledgers.sql.predicates import columns_of
from redrive.systems.commands.beside import CommandBeside
from redrive.systems.commands.messages import InQueues, Messages, open_messages
from redrive.systems.commands.values import NewCommand, queue_of, queues_of
from redrive.testing import VirtualClock
from tests.ledgers.shapes import COMMANDS, OWN, Shape

DOMAIN = "work"


class ServerClock:
    """The clock of a PostgreSQL server, made movable: a function before the catalogue's on the search path.

    So the statements run as they do in production, with the server's own idea of the time, and yet the test owns it.
    """

    SETUP = (
        "CREATE SCHEMA virtual",
        f"CREATE TABLE virtual.clock AS SELECT timestamptz '{START.isoformat()}' AS instant",
        "CREATE FUNCTION virtual.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE"
        " AS 'SELECT instant FROM virtual.clock'",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, virtual, pg_catalog',"
        " current_database()); END $$",
    )

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._now = START
        self.advance(ZERO)

    def now(self) -> datetime:
        return self._now

    def advance(self, span: timedelta) -> datetime:
        self._now += span
        self._connection.execute("UPDATE virtual.clock SET instant = %s", [self._now])
        return self._now

    def close(self) -> None:
        self._connection.close()


@dataclass(slots=True)
class Home(conformance.Home):
    """A ledger and its surroundings."""

    store: str
    shape: Shape
    url: str
    clock: Any
    database: Database
    ledger: SqlLedger
    messages: Messages | None = None
    through: str = ""
    """The URL that the ledger reaches its tables through, if that is another one."""
    _opened: list[Database] = field(default_factory=list)
    _serial: int = 0

    @property
    def table(self) -> LedgerTable:
        return self.ledger.table

    @property
    def sql_table(self) -> Table:
        return self.ledger.sql_table

    async def another(self) -> SqlLedger:
        """The same ledger through a `Database` of its own, as another process would have it."""
        clock = None if isinstance(self.clock, ServerClock) else self.clock
        database = open_database(self.through or self.url, clock=clock, durable=False)
        self._opened.append(database)
        if self.shape is COMMANDS:
            return command_ledger(database)[0]
        return await open_ledger(database, self.table)

    @property
    def queued(self) -> bool:
        """Whether tasks wait in a queue, which hands out what was abandoned by itself."""
        return isinstance(self.ledger, PgmqLedger)

    @property
    def lists_all(self) -> bool:
        """Whether tasks of every state can be listed without naming any."""
        return True

    @property
    def keeps_errors_of_the_done(self) -> bool:
        """Whether a task that is done still tells its last error, without a look into its history."""
        return self.messages is None

    def new(self, kind: str = "mail", **given: Any) -> NewTask:
        """A task with a key that was not used before."""
        self._serial += 1
        return NewTask(kind=kind, key=given.pop("key", None) or self.shape.key(self._serial), **given)

    async def put(
        self, amount: int = 1, *, kind: str = "mail", delay: timedelta = ZERO, failures_max: int | None = None
    ) -> list[TaskId]:
        """Tasks in the ledger, as their owner puts them there; their ids."""
        if self.messages is not None:
            return await self._send(amount, kind, delay, failures_max)
        if self.table.payload is not None:
            tasks = [self.new(kind, delay=delay, payload={"n": n}, failures_max=failures_max) for n in range(amount)]
            return [added.id for added in await self.ledger.add(tasks)]
        assert self.table.first_due is not None
        row = {**(self.shape.extra or {}), self.table.first_due: self.clock.now() + delay}
        if failures_max is not None:
            row["max_retries"] = failures_max - 1
        return await self.database.write(self._put, [row] * amount)

    def _put(self, connection: Connection, rows: list[dict[str, Any]]) -> list[TaskId]:
        named, id_ = columns_of(self.sql_table), self._column(self.table.id_column)
        given = [{named[name]: value for name, value in row.items()} for row in rows]
        return [connection.execute(insert(self.sql_table).values(row).returning(id_)).scalar_one() for row in given]

    async def _send(self, amount: int, kind: str, delay: timedelta, failures_max: int | None) -> list[TaskId]:
        commands = []
        for number in range(amount):
            self._serial += 1
            commands.append(
                NewCommand(
                    domain=DOMAIN, command_type=kind, command_id=self.shape.key(self._serial), data={"n": number},
                    max_attempts=failures_max,
                )
            )  # fmt: skip

        def send(connection: Connection) -> list[TaskId]:
            self.messages.make_queues(connection, queues_of(commands))
            self.messages.send(connection, DOMAIN, commands, None)
            self.database.announce(connection, self.ledger.name, soon=False)
            c = self.sql_table.c
            ids = select(c.id).where(c.command_id.in_([one.command_id for one in commands])).order_by(c.id)
            found = list(connection.execute(ids).scalars())
            connection.execute(update(self.sql_table).where(c.id.in_(found)).values(due_at=self.clock.now() + delay))
            if self.queued:
                messages = message_table(queue_of(DOMAIN))
                mine = messages.c.message["command_id"].astext.in_([one.command_id for one in commands])
                connection.execute(update(messages).where(mine).values(vt=self.clock.now() + delay))
            return found

        return await self.database.write(send)

    async def row(self, id: TaskId) -> dict[str, Any]:
        """The columns of a row by what they stand for."""

        def look(connection: Connection) -> dict[str, Any]:
            found = connection.execute(select(self.sql_table).where(self._is(id))).one()._mapping
            return {role: found[self._column(name)] for role, name in self.table.columns().items()}

        return await self.database.read(look)

    async def change(self, id: TaskId, **roles: Any) -> None:
        """Write columns behind the ledger's back."""
        named = {self._column(self.table.columns()[role]): value for role, value in roles.items()}
        await self.database.write(
            lambda connection: connection.execute(update(self.sql_table).where(self._is(id)).values(named))
        )

    async def wipe(self) -> None:
        """Delete all tasks behind the ledger's back."""
        await self.database.write(lambda connection: connection.execute(self.sql_table.delete()))

    def _is(self, id: TaskId) -> Any:
        return self._column(self.table.id_column) == id

    def _column(self, name: str) -> Any:
        return columns_of(self.sql_table)[name]

    async def rollups(self) -> list[dict[str, Any]]:
        """What workers settled in each minute; without what was added and pruned."""
        return [row for row in await self.minutes() if not row["worker"].startswith("add:")]

    async def minutes(self) -> list[dict[str, Any]]:
        """All that was counted in each minute."""

        def look(connection: Connection) -> list[dict[str, Any]]:
            return [dict(row._mapping) for row in connection.execute(select(schema.minute))]

        return await self.database.read(look)

    async def leave(self) -> None:
        """Close what this test opened beside the ledger's own database, which the next test uses too."""
        for database in self._opened:
            await database.close()


async def build(url: str, shape: Shape, store: str) -> None:
    """Make the tables: redrive's by its migrations, the shape's by hand and then by what `TableError` prints."""
    database = open_database(url, durable=False)
    try:
        await migrate(database, ["commands"] if shape is COMMANDS else [])
        if store == "postgres":  # these databases are thrown away: no test waits for the disk
            name = make_url(url).database
            await execute(database, [f'ALTER DATABASE "{name}" SET synchronous_commit = off'])
        await execute(database, shape.create[store])
        if shape not in (OWN, COMMANDS):
            try:
                await open_ledger(database, shape.on(store))
            except TableError as error:
                await execute(database, error.migration)
            else:
                raise AssertionError("a table without leases was adopted")
            await database.read(adopt, shape.on(store))
    finally:
        await database.close()


async def execute(database: Database, statements: Any) -> None:
    """Run statements as text, in one transaction."""

    def run(connection: Connection) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    await database.write(run)


def wipe_sqlite(url: str, shape: Shape) -> None:
    """Empty all tables of a SQLite database, and count ids from the start again."""
    tables = [*(table.name for table in schema.metadata.sorted_tables), shape.on("sqlite").name, "sqlite_sequence"]
    if shape is COMMANDS:
        tables += [f"commandbus_{name}" for name in ("batch", "handler", "reply")]  # the audit only grows
    with closing(sqlite3.connect(make_url(url).database or "")) as connection:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        for name in dict.fromkeys(tables):
            if name in there:
                connection.execute(f'DELETE FROM "{name}"')
        connection.commit()


def layout_of(url: str) -> int:
    """A number that changes with every table, index and trigger of a SQLite database."""
    with closing(sqlite3.connect(make_url(url).database or "")) as connection:
        [[version]] = connection.execute("PRAGMA schema_version")
    return int(version)


def wipe(connection: psycopg.Connection[Any], shape: Shape, store: str) -> None:
    """Empty all tables of a PostgreSQL database, in one round trip."""
    ours = [table.name for table in schema.metadata.sorted_tables]
    table = shape.on(store)
    name = f'"{table.schema}"."{table.name}"' if table.schema else f'"{table.name}"'
    if shape is COMMANDS:
        ours += ["batch", "handler"]  # the audit only grows
    if shape is COMMANDS and _has_queue(connection):
        ours += [f"q_{queue_of(DOMAIN)}", f"a_{queue_of(DOMAIN)}"]
    wiped = [f"DELETE FROM {each}" for each in dict.fromkeys([*(f'"{one}"' for one in ours), name])]
    connection.execute("; ".join(wiped))  # type: ignore[arg-type]


def _has_queue(connection: psycopg.Connection[Any]) -> bool:
    asked = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [f"pgmq.q_{queue_of(DOMAIN)}"])
    [there] = asked.fetchone() or [False]
    return bool(there)


def command_ledger(database: Database) -> tuple[SqlLedger, Messages]:
    """The ledger of the command bus, and its messages. All of its kinds are of one domain."""
    messages = open_messages(database)
    messages.ledger_table = replace(messages.ledger_table, kind="command_type")
    if isinstance(messages, InQueues):
        layout = replace(messages.layout, split=lambda kind: (queue_of(DOMAIN), kind), join=lambda _, kind: kind)
        messages.layout = layout
    beside = CommandBeside(messages)
    return messages.ledger(beside, beside.extra), messages


@dataclass(slots=True)
class Ground:
    """What the tests of one shape on one database share: the tables, open connections and a clock, all reset for each.

    A new `Database` for each test would connect, look at the table and put every statement into words again, which takes
    longer than most of these tests.
    """

    store: str
    shape: Shape
    url: str
    through: str
    clock: ServerClock | VirtualClock
    database: Database
    table: Table | None
    layout: int | None
    _wiping: psycopg.Connection[Any] | None = None

    @classmethod
    async def at(
        cls, store: str, shape: Shape, url: str, clock: ServerClock | VirtualClock, *, through: str | None = None
    ) -> "Ground":
        """Over tables that are there; the ledger reaches them `through` another URL, if there is a pooler."""
        database = open_database(through or url, clock=None if isinstance(clock, ServerClock) else clock, durable=False)
        table = None if shape in (OWN, COMMANDS) else await database.read(adopt, shape.on(store))
        layout = layout_of(url) if store == "sqlite" else None
        return cls(store, shape, url, through or url, clock, database, table, layout)

    @property
    def intact(self) -> bool:
        """Whether no test has changed the tables themselves, as far as it is easy to tell."""
        return self.layout is None or self.layout == layout_of(self.url)

    async def home(self) -> Home:
        """An empty ledger at the start of time."""
        if self.store == "sqlite":
            wipe_sqlite(self.url, self.shape)
        else:
            # In a thread: whoever still holds a row lets it go in this loop.
            await asyncio.to_thread(wipe, self._wiper(), self.shape, self.store)
        self.clock.advance(START - self.clock.now())
        messages = None
        if self.shape is COMMANDS:
            ledger, messages = command_ledger(self.database)
        elif self.table is None:
            ledger = own_ledger(self.database)
        else:
            ledger = SqlLedger(self.database, self.shape.on(self.store), self.table)
        return Home(
            store=self.store, shape=self.shape, url=self.url, through=self.through, clock=self.clock, database=self.database,
            ledger=ledger, messages=messages,
        )  # fmt: skip

    def _wiper(self) -> psycopg.Connection[Any]:
        if self._wiping is None or self._wiping.closed:
            self._wiping = psycopg.connect(self.url, autocommit=True)
            self._wiping.execute("SET search_path = public, commandbus, pgmq")
        return self._wiping

    async def close(self) -> None:
        await self.database.close()
        if self._wiping is not None:
            self._wiping.close()
        if isinstance(self.clock, ServerClock):
            self.clock.close()
