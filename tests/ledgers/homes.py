"""A ledger to test, on any shape and database, with what a test needs around it: rows, a clock, and short verbs."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from ledgers.shapes import OWN, Shape
from sqlalchemy import Connection, Table, insert, make_url, select, update

from redrive.core import jitter
from redrive.core.backoff import Fixed
from redrive.core.decide import Settlement, decide
from redrive.core.durations import ZERO, seconds
from redrive.core.outcome import Done, Failed, LeaseExpired, Outcome
from redrive.core.policy import Policy
from redrive.core.table import LedgerTable
from redrive.core.task import Claim, ClaimLost, NewTask, TaskId
from redrive.errors import PermanentError, TableError
from redrive.ledgers import schema
from redrive.ledgers.adopt import adopt
from redrive.ledgers.database import Database
from redrive.ledgers.migrate import migrate
from redrive.ledgers.open import open_database, open_ledger
from redrive.ledgers.sql import SqlLedger
from redrive.ports import Actor, Clock

START = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = seconds(30)
BACKOFF = seconds(60)
RAN = seconds(1.5)
POLICY = Policy(Fixed(BACKOFF), retries=3, jitter=jitter.none, name="test")
ADA = Actor(name="ada", reason="the bank is back")
PERMANENT = Failed(PermanentError("no such account"))
TRANSIENT = Failed(TimeoutError("too slow"))


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
class Home:
    """A ledger and its surroundings."""

    store: str
    shape: Shape
    url: str
    clock: Any
    database: Database
    ledger: SqlLedger
    _opened: list[Database] = field(default_factory=list)
    _serial: int = 0

    @property
    def table(self) -> LedgerTable:
        return self.ledger.table

    @property
    def sql_table(self) -> Table:
        return self.ledger._statements.table

    async def another(self) -> SqlLedger:
        """The same ledger through a `Database` of its own, as another process would have it."""
        clock = None if isinstance(self.clock, ServerClock) else self.clock
        database = open_database(self.url, clock=clock, durable=False)
        self._opened.append(database)
        return await open_ledger(database, self.table)

    def new(self, kind: str = "mail", **given: Any) -> NewTask:
        """A task with a key that was not used before."""
        self._serial += 1
        return NewTask(kind=kind, key=given.pop("key", None) or self.shape.key(self._serial), **given)

    async def put(
        self, amount: int = 1, *, kind: str = "mail", delay: timedelta = ZERO, failures_max: int | None = None
    ) -> list[TaskId]:
        """Tasks in the ledger, as their owner puts them there; their ids."""
        if self.table.payload is not None:
            tasks = [self.new(kind, delay=delay, payload={"n": n}, failures_max=failures_max) for n in range(amount)]
            return [added.id for added in await self.ledger.add(tasks)]
        assert self.table.first_due is not None
        row = {**(self.shape.extra or {}), self.table.first_due: self.clock.now() + delay}
        if failures_max is not None:
            row["max_retries"] = failures_max - 1
        return await self.database.write(self._put, [row] * amount)

    def _put(self, connection: Connection, rows: list[dict[str, Any]]) -> list[TaskId]:
        table, id_ = self.sql_table, self.sql_table.c[self.table.id_column]
        return [connection.execute(insert(table).values(row).returning(id_)).scalar_one() for row in rows]

    async def row(self, id: TaskId) -> dict[str, Any]:
        """The columns of a row by what they stand for."""

        def look(connection: Connection) -> dict[str, Any]:
            found = connection.execute(select(self.sql_table).where(self._is(id))).one()._mapping
            return {role: found[name] for role, name in self.table.columns().items()}

        return await self.database.read(look)

    async def change(self, id: TaskId, **roles: Any) -> None:
        """Write columns behind the ledger's back."""
        named = {self.table.columns()[role]: value for role, value in roles.items()}
        await self.database.write(
            lambda connection: connection.execute(update(self.sql_table).where(self._is(id)).values(named))
        )

    def _is(self, id: TaskId) -> Any:
        return self.sql_table.c[self.table.id_column] == id

    async def claim_one(self) -> Claim:
        [claim] = await self.ledger.claim(1, LEASE)
        return claim

    async def settle(self, claim: Claim, outcome: Outcome, policy: Policy = POLICY) -> list[ClaimLost]:
        return await self.ledger.settle([settlement(claim, outcome, policy)], worker="w1")

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
        found = await self.ledger.reclaim(100, LEASE)
        assert await self.ledger.settle([settlement(claim, LeaseExpired()) for claim in found], worker="keeper") == []
        return found

    async def rollups(self) -> list[dict[str, Any]]:
        """What workers settled in each minute; without what was added and pruned."""
        return [row for row in await self.minutes() if not row["worker"].startswith("add:")]

    async def minutes(self) -> list[dict[str, Any]]:
        """All that was counted in each minute."""

        def look(connection: Connection) -> list[dict[str, Any]]:
            return [dict(row._mapping) for row in connection.execute(select(schema.minute))]

        return await self.database.read(look)

    async def close(self) -> None:
        for database in (self.database, *self._opened):
            await database.close()
        if isinstance(self.clock, ServerClock):
            self.clock.close()


def settlement(claim: Claim, outcome: Outcome = Done(), policy: Policy = POLICY) -> Settlement:
    """What must be written for a claim that ran for a second and a half."""
    return decide(claim, outcome, policy, elapsed=RAN)


async def build(url: str, shape: Shape, store: str) -> None:
    """Make the tables: redrive's by its migrations, the shape's by hand and then by what `TableError` prints."""
    database = open_database(url, durable=False)
    try:
        await migrate(database)
        if store == "postgres":  # these databases are thrown away: no test waits for the disk
            name = make_url(url).database
            await execute(database, [f'ALTER DATABASE "{name}" SET synchronous_commit = off'])
        await execute(database, shape.create[store])
        if shape is not OWN:
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


async def wipe(url: str, shape: Shape, store: str) -> None:
    """Empty all tables of a PostgreSQL database."""
    ours = [table.name for table in schema.metadata.sorted_tables]
    table = shape.on(store)
    name = f'"{table.schema}"."{table.name}"' if table.schema else f'"{table.name}"'
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for each in dict.fromkeys([*(f'"{one}"' for one in ours), name]):
            await connection.execute(f"DELETE FROM {each}")  # type: ignore[arg-type]


async def open_home(store: str, shape: Shape, url: str, clock: Clock) -> Home:
    """A ledger over tables that are there."""
    given = None if isinstance(clock, ServerClock) else clock
    database = open_database(url, clock=given, durable=False)
    ledger = await open_ledger(database, shape.on(store))
    return Home(store=store, shape=shape, url=url, clock=clock, database=database, ledger=ledger)
