"""Rows of others with every odd value that their columns allow: each hurts nobody but itself."""

import asyncio
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from proof.ground import STORES, ground_on
from proof.scenario import Found, chance, scenario, sized
from redrive.core.backoff import Fixed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.table import LedgerTable, Words
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import TableError, TransientError
from redrive.ledgers.open import open_database, open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.pages import SqlTaskPages
from redrive.ports import Actor, Filter
from tests.ledgers.homes import execute

ROWS, ODD_ROWS = 60, 40
"""In each round, and how many of them get an odd value."""
PAGE = 7
LEASE = timedelta(seconds=30)
PATIENCE_SECONDS = 120.0
RUNS_MAX = 4
"""A row that others spoil may fail, and come back, as often as its policy allows."""
ADA = Actor(name="ada", reason="a proof")
POLICY = Policy(Fixed(timedelta(milliseconds=1)), attempts=3)
DEEP = "[" * 5_000 + "]" * 5_000
LONG = '{"n": ' + "9" * 5_000 + "}"
FENCE = "0B7C5A58-4F31-4C1B-9E0F-0D5A3F7F9E11"

ORDERS = LedgerTable(
    "orders", payload="data", count="attempts", last_error="error", deadline="expires_at", claimed_at="claimed_at",
    ended_at="ended_at",
    words=Words(waiting="waiting", done="done", dead="dead", cancelled="cancelled"),
)  # fmt: skip
MAPPINGS = {"a payload column": ORDERS, "the row as payload": replace(ORDERS, payload=None)}
COLUMNS = {
    "sqlite": {
        "status": "TEXT NOT NULL DEFAULT 'waiting'", "due_at": "TEXT", "expires_at": "TEXT",
        "attempts": "INTEGER NOT NULL DEFAULT 0", "error": "TEXT", "lease_until": "TEXT", "claim_id": "TEXT",
        "claimed_at": "TEXT", "ended_at": "TEXT", "data": "TEXT NOT NULL DEFAULT '{}'", "note": "DATE", "extra": "JSON",
        "amount": "NUMERIC", "size": "REAL", "paid": "BOOLEAN", "raw": "BLOB", "span": "DATETIME",
    },
    "postgres": {
        "status": "text NOT NULL DEFAULT 'waiting'", "due_at": "timestamptz", "expires_at": "timestamptz",
        "attempts": "integer NOT NULL DEFAULT 0", "error": "text", "lease_until": "timestamptz", "claim_id": "uuid",
        "claimed_at": "timestamptz", "ended_at": "timestamptz", "data": "jsonb NOT NULL DEFAULT '{}'", "note": "date",
        "extra": "json", "amount": "numeric", "size": "double precision", "paid": "boolean", "raw": "bytea", "span": "interval",
        "shade": "shade", "clock": "time", "there": "inet", "tags": "text[]", "spot": "point", "numbers": "int4range",
        "local": "timestamp", "small": "smallint", "cost": "money", "bits": "bit varying", "words": "tsvector",
    },
}  # fmt: skip
WORDS = ("waiting", "claimed", "done", "dead", "cancelled", "WAITING", " waiting", "dead ", "", "paused", "\u202eenod")
TEXTS = (
    "", "x", "many", "\u202eltr", "é\u0301", "\U0001f4a5" * 50, "x" * 100_000, "9" * 5_000, "'; DROP TABLE orders; --", "NaN",
    "null", DEEP, LONG, '{"a": NaN}', '{"a": 1e999}', '"\\ud800"', "[]", "true", '{"a": "\\u0000"}', "\t\r\n",
)  # fmt: skip
INSTANTS = (
    "infinity", "-infinity", "12026-01-01", "294276-12-31 23:59:59+00", "4713-01-01 00:00:00+00 BC", "0001-01-01 00:00:00+00",
    "9999-12-31 23:59:59.999999+00", "epoch", "2001-01-01 00:00:00+15:59",
)  # fmt: skip
SPELLED = (
    "2026-02-30 25:61:61", "2026-11-18T05:00:00+25:00", "2026-11-18 05:00", "2026-11-18T05:00:00.123456789Z", "0000-00-00",
    "2026-11-18T05:00:00-23:59", "20261118", "1", "now", "2026-W47-3", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
    "24:00", "-1", "1e400", "2001-01-01T00:00:00Z", " 2001-01-01T00:00:00Z", "2001-01-01T00:00:00z",
)  # fmt: skip
FENCES = (
    FENCE,
    FENCE.lower(),
    FENCE.replace("-", ""),
    f"{{{FENCE}}}",
    "0" * 8,
    "worker 7",
    "00000000-0000-0000-0000-000000000000",
)
ANYTHING = (
    "NULL", "-1", "0", "9223372036854775807", "-9223372036854775808", "1e308", "9e999", "-9e999", "0.5", "x''", "x'ff00'",
    "CAST(x'ff' AS TEXT)", "CAST(x'00' AS TEXT)", "char(0, 120)", "zeroblob(1000)",
)  # fmt: skip
"""SQLite keeps anything anywhere."""


def _quoted(values: Sequence[str]) -> tuple[str, ...]:
    return tuple("'" + value.replace("'", "''") + "'" for value in values)


_INSTANTS = ("NULL", *_quoted(INSTANTS))
_BY_TYPE: dict[str, tuple[str, ...]] = {
    "text": ("NULL", *_quoted(TEXTS)),
    "timestamptz": _INSTANTS,
    "timestamp": _INSTANTS,
    "integer": ("-1", "2147483647", "-2147483648", "1000000", "3"),
    "smallint": ("NULL", "-32768", "32767"),
    "uuid": ("NULL", *_quoted([FENCE, "00000000-0000-0000-0000-000000000000", "f" * 32])),
    "jsonb": ("'null'", "'1'", "'\"x\"'", "'[]'", "'1e400'", f"'{DEEP}'", f"'{LONG}'", "'{\"a\": 1.5e-400}'"),
    "json": ("NULL", "'null'", "'{\"a\": \"\\ud800\"}'", "'{\"a\": \"\\u0000\"}'", "'1e999'", f"'{DEEP}'", f"'{LONG}'"),
    "date": ("NULL", "'infinity'", "'-infinity'", "'12026-01-01'", "'4713-01-01 BC'", "'5874897-12-31'"),
    "numeric": ("NULL", "'NaN'", "'Infinity'", "'-Infinity'", "repeat('9', 5000)::numeric", "'1e-1000'", "1e1000"),
    "double precision": ("NULL", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e308"),
    "boolean": ("NULL", "true"),
    "bytea": ("NULL", "''", "'\\xff00'", "decode(repeat('ff', 10000), 'hex')"),
    "interval": ("NULL", "'infinity'", "'-infinity'", "'178000000 years'", "'-5 mons 3 days -00:00:00.000001'", "'1000000000 days'"),
    "shade": ("NULL", "'red'", "'mauve'"),
    "time": ("NULL", "'24:00'", "'00:00:00.000001'"),
    "inet": ("NULL", "'::1/0'", "'10.0.0.1/8'"),
    "text[]": ("NULL", "'{}'", "'{NULL,\"\"}'", "'{{a,b},{c,d}}'", "'[5:6]={a,b}'"),
    "point": ("NULL", "'(NaN,Infinity)'", "'(1e308,-1e308)'"),
    "int4range": ("NULL", "'empty'", "'(,)'", "'[1,2147483647)'"),
    "money": ("NULL", "'-92233720368547758.08'"),
    "bit varying": ("NULL", "B''", "B'101'"),
    "tsvector": ("NULL", "to_tsvector('a b c')"),
}  # fmt: skip


def odd_values(store: str, column: str) -> tuple[str, ...]:
    """Expressions of SQL whose values a column may hold."""
    if column == "status":
        return _quoted(WORDS) + (ANYTHING if store == "sqlite" else ())
    if store == "sqlite":
        texts = {"claim_id": FENCES}.get(column, (*INSTANTS, *SPELLED) if column.endswith(("_at", "until")) else TEXTS)
        return ANYTHING + _quoted(texts)
    return _BY_TYPE[COLUMNS[store][column].partition(" NOT NULL")[0]]


@scenario("bad rows hurt only themselves")
def odd_rows(short: bool) -> Iterator[Found]:
    """In adopted tables: before they are claimed and while they are held; all other rows run once, and people see and do everything beside them."""
    wanted = 200 if short else sized(10_000)
    for store in STORES:
        rng = chance()
        with ground_on(store, in_memory=True) as ground:
            tried = asyncio.run(try_odd_rows(ground.url, store, rng, wanted // len(STORES)))
        for one in tried.faults[:20]:
            print("  ", one)
        yield Found(
            tried=f"{store}: {tried.mutations:,} odd values in {len(COLUMNS[store])} columns of an adopted table, in {tried.rounds:,} rounds",
            figure=f"{tried.others:,} other rows, each run and done once; the odd ones ended {tried.told()}; {len(tried.faults)} faults",
            holds=not tried.faults,
        )


@dataclass(slots=True)
class Tried:
    """What came of it."""

    rounds: int = 0
    mutations: int = 0
    others: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def told(self) -> str:
        return ", ".join(f"{state} ({amount:,})" for state, amount in self.ends.most_common())


async def try_odd_rows(url: str, store: str, rng: random.Random, mutations: int) -> Tried:
    """So many odd values, some in each round."""
    tried = Tried()
    database = open_database(url, durable=False)
    try:
        ledgers = await _adopted(database, store)
        while tried.mutations < mutations:
            how = rng.choice([*MAPPINGS])
            await _Round(database, store, ledgers[how], rng, tried).run(how)
    finally:
        await database.close()
    return tried


async def _adopted(database: Database, store: str) -> dict[str, SqlLedger]:
    if store == "postgres":
        await execute(database, ["CREATE TYPE shade AS ENUM ('red', 'blue')"])
    key = "id INTEGER PRIMARY KEY" if store == "sqlite" else "id bigint PRIMARY KEY"
    columns = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS[store].items())
    await execute(database, [f"CREATE TABLE orders ({key}, {columns})"])
    try:
        await open_ledger(database, ORDERS)
    except TableError as error:
        await execute(database, error.migration)
    ledgers = {how: await open_ledger(database, table) for how, table in MAPPINGS.items()}
    if store == "postgres":  # a word that came after everybody has looked at the table
        await execute(database, ["ALTER TYPE shade ADD VALUE 'mauve'"])
    return ledgers


def _told_of(error: BaseException) -> str:
    """The error, and where it came from."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{' '.join(repr(error).split())[:300]} in {last.name}, line {last.lineno} of {Path(last.filename).name}"


class _Round:
    """Some rows, of which most get an odd value; then a worker, and people."""

    def __init__(self, database: Database, store: str, ledger: SqlLedger, rng: random.Random, tried: Tried) -> None:
        self.database, self.store, self.ledger, self.rng, self.tried = database, store, ledger, rng, tried
        self.ran: Counter[int] = Counter()
        first = tried.rounds * ROWS + 1  # never used before: attempts and kinds of other rounds belong to others
        self.ids = range(first, first + ROWS)
        self.written: dict[int, str] = {}
        self.fails = set(rng.sample(self.ids, 5))

    async def run(self, how: str) -> None:
        await execute(self.database, ["DELETE FROM orders"])
        await execute(self.database, [f"INSERT INTO orders (id) VALUES {', '.join(f'({id_})' for id_ in self.ids)}"])
        held = self.rng.random() < 0.4
        if held:
            await self.ledger.claim(ROWS, LEASE)
        for id_ in self.rng.sample(self.ids, ODD_ROWS):
            await self._spoil(id_)
        self.others = [id_ for id_ in self.ids if id_ not in self.written]
        if held:  # their worker is gone; of leases that are odd themselves nobody knows when they are over
            over = [id_ for id_ in self.ids if not self.written.get(id_, "").startswith("lease_until")]
            await execute(
                self.database, [f"UPDATE orders SET lease_until = '2001-01-01T00:00:00Z' WHERE id IN {(*over,)}"]
            )
        when = f"{self.store}, {how}, {'held' if held else 'waiting'}"
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._look(State.CLAIMED if held else State.WAITING)
                await self._work()
                await self._look(State.DONE)
                self.tried.ends.update(state for id_, state in await self._states() if id_ in self.written)
                await self._act()
        except Exception as error:
            self.tried.faults.append(f"{when}: {_told_of(error)}; odd: {self._told()}")
        self.tried.rounds += 1
        self.tried.mutations += len(self.written)
        self.tried.others += len(self.others)

    async def _spoil(self, id_: int) -> None:
        """Write an odd value, if its column takes it."""
        column = self.rng.choice([*COLUMNS[self.store]])
        value = self.rng.choice(odd_values(self.store, column))
        try:
            await execute(self.database, [f"UPDATE orders SET {column} = {value.replace('%', '%%')} WHERE id = {id_}"])
        except DBAPIError:
            return
        self.written[id_] = f"{column} = {value[:60]}"

    async def _work(self) -> None:
        """Until all other rows have run; each in a while, whatever is beside it."""
        handlers = Handlers()
        handlers.add(make_handler(self.ledger.name, self._handle, POLICY))
        ends = time.monotonic() + PATIENCE_SECONDS
        while True:
            worker = Worker(self.ledger, handlers, WorkerSettings(lease=LEASE, poll=timedelta(seconds=0.05)))
            await worker.run(until_idle=True)
            left = {id_ for id_ in self.others if self.ran[id_] < 1 + (id_ in self.fails)}
            if not left or time.monotonic() > ends:
                break
            await asyncio.sleep(0.01)
        done = {id_ for id_, state in await self._states() if state == State.DONE}
        for id_ in self.others:
            if id_ not in done or self.ran[id_] != 1 + (id_ in self.fails):
                self._fault(
                    f"row {id_} has nothing odd: it ran {self.ran[id_]} times and is {'done' if id_ in done else 'not done'}"
                )
        for id_ in self.written:
            if self.ran[id_] > RUNS_MAX:
                self._fault(f"row {id_} ran {self.ran[id_]} times ({self.written[id_]})")

    async def _handle(self, task: Any) -> None:
        self.ran[task.id] += 1
        if task.id in self.fails and self.ran[task.id] == 1:
            raise TransientError("not yet")

    async def _look(self, now: State) -> None:
        """All that people look at is there, with all rows in it that have nothing odd and are in this state now."""
        await self.ledger.counts()
        await SqlCensus(self.ledger).take()
        for state in State:
            for newest_first in (False, True):
                seen = await self._pages(state, newest_first=newest_first)
                if state is now and not seen.keys() >= {*self.others}:
                    self._fault(
                        f"{len({*self.others} - seen.keys())} rows without anything odd are on no page of {state} tasks"
                    )
                if seen and max(seen.values()) > 1:
                    self._fault(f"{max(seen, key=seen.__getitem__)} is on more than one page of {state} tasks")
        seen = Counter(task.id for task in (await self.ledger.find(Filter(), limit=ROWS)).items)
        if not seen.keys() >= {*self.others}:
            self._fault("a list of all lacks rows that have nothing odd")
        for id_ in self.written:
            try:
                await self.ledger.get(id_)
                await self.ledger.attempts(id_)
            except Exception as error:
                self._fault(f"row {id_} cannot be looked at: {error!r:.200} ({self.written[id_]})")

    async def _pages(self, state: State, *, newest_first: bool) -> Counter[Any]:
        """How often each row is on a page."""
        pages, seen, cursor = SqlTaskPages(self.ledger), Counter[Any](), None
        for _ in range(ROWS):
            page = await pages.page(Filter(state=state), cursor=cursor, limit=PAGE, newest_first=newest_first)
            seen.update(task.id for task in page.items)
            cursor = page.cursor
            if cursor is None:
                break
        return seen

    async def _act(self) -> None:
        """People act on all odd rows at once, and those that it fits are changed."""
        ids = [*self.written]
        await self.ledger.redrive(ids, ADA)
        await self.ledger.cancel(ids, ADA)
        await self.ledger.resolve(ids, State.DONE, ADA)

    def _fault(self, what: str) -> None:
        self.tried.faults.append(f"{self.store}: {what}; odd: {self._told()}")

    def _told(self) -> str:
        return "; ".join(self.written.values())[:1500]

    async def _states(self) -> list[tuple[int, str]]:
        """Where each row stands, by the words of the table."""
        known = ", ".join(f"'{state}'" for state in State)
        asked = text(
            f"SELECT id, CASE WHEN status IN ({known}) THEN status ELSE 'under a strange word' END FROM orders"
        )

        def read(connection: Connection) -> list[tuple[int, str]]:
            return [(row[0], row[1]) for row in connection.execute(asked)]

        return await self.database.read(read)
