"""One locked row: what a stranger has locked costs nobody else anything, and is written when the lock goes.

SQLite locks no rows, so these promises are PostgreSQL's: over our own table, over foreign shapes, and over queues.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Connection, select, text

from redrive.core.decide import Settlement
from redrive.core.durations import minutes, seconds
from redrive.core.outcome import Done, LeaseExpired
from redrive.core.states import State
from redrive.core.task import Claim, ClaimLocked, ClaimLost, TaskId
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.keeper import Keeper
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.errors import UsageError
from redrive.events import AttemptEnded, SettleFailed, SettleLost
from redrive.ledgers.postgres.limits import LIMITS
from redrive.ledgers.sql import acts, schema
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import StillLocked
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.predicates import columns_of
from tests.engine.workbench import Heard, working
from tests.ledgers.homes import ADA, LEASE, POLICY, TRANSIENT, Home, settlement

pytestmark = pytest.mark.on_store("postgres")
LONG = minutes(10)
PATIENCE_SECONDS = 150


class Stranger:
    """Somebody with a transaction of their own on the table."""

    def __init__(self, home: Home, connection: psycopg.AsyncConnection[Any]) -> None:
        self._home = home
        self._connection = connection

    async def lock(self, id_: TaskId) -> None:
        """What `SELECT … FOR UPDATE` does, until `let_go`."""
        table = self._home.sql_table
        named = sql.Identifier(*([table.schema] if table.schema else []), table.name)
        id_column = sql.Identifier(self._home.table.id_column)
        await self._connection.execute(
            sql.SQL("SELECT 1 FROM {} WHERE {} = %s FOR UPDATE").format(named, id_column), [id_]
        )

    async def let_go(self) -> None:
        await self._connection.rollback()

    async def until_somebody_waits(self) -> None:
        """Come back when another session stands in the line for what is locked here."""
        pid = self._connection.info.backend_pid
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                asked = await self._connection.execute(
                    "SELECT count(*) FROM pg_locks WHERE NOT granted AND %s = ANY (pg_blocking_pids(pid))", [pid]
                )
                [waiting] = await asked.fetchone() or [0]
                if waiting:
                    return
                await asyncio.sleep(0.01)


@asynccontextmanager
async def stranger_at(home: Home) -> AsyncIterator[Stranger]:
    async with await psycopg.AsyncConnection.connect(home.url) as connection:
        try:
            yield Stranger(home, connection)
        finally:
            await connection.rollback()


async def claimed(home: Home, amount: int) -> list[Claim]:
    """Tasks that are held, in the order of their ids."""
    await home.put(amount)
    claims = await home.ledger.claim(amount, LEASE)
    assert len(claims) == amount
    return sorted(claims, key=lambda claim: claim.task.id)


async def states(home: Home, claims: list[Claim]) -> list[str]:
    return [(await home.ledger.get(claim.task.id)).state.value for claim in claims]


def kind_of(home: Home) -> str:
    return "mail" if home.table.kind is not None else home.table.name


# --- what the ledger promises -----------------------------------------------------------------------------------------


async def test_a_locked_row_does_not_keep_its_group_from_being_written(home: Home) -> None:
    """Of a group all are written but the one that a stranger has locked, and that one is written when the lock goes."""
    claims = await claimed(home, 5)
    async with stranger_at(home) as stranger:
        await stranger.lock(claims[2].task.id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await home.ledger.settle([settlement(claim) for claim in claims], worker="w1")
        assert answer == [ClaimLocked(claims[2])]
        assert await states(home, claims) == ["done", "done", "claimed", "done", "done"]
        await stranger.let_go()
    assert await home.settle(claims[2], Done()) == []
    assert [len(await home.ledger.attempts(claim.task.id)) for claim in claims] == [1] * 5
    assert [row["done"] for row in await home.rollups()] == [5]


async def test_locked_and_lost_are_told_apart(home: Home) -> None:
    """In one group some are written, one is locked and one is lost, and each is told as what it is."""
    claims = await claimed(home, 4)
    assert await home.settle(claims[3], TRANSIENT) == []
    async with stranger_at(home) as stranger:
        await stranger.lock(claims[0].task.id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await home.ledger.settle([settlement(claim) for claim in claims], worker="w1")
        told = sorted(answer, key=lambda one: one.claim.task.id)
        assert told == [ClaimLocked(claims[0]), ClaimLost(claims[3])]
        assert await states(home, claims) == ["claimed", "done", "done", "waiting"]


async def test_a_locked_row_is_left_out_of_an_extension(home: Home) -> None:
    """The leases of the others are extended. In a queue the message is the lease, so there a locked row does not matter."""
    claims = await claimed(home, 3)
    home.clock.advance(seconds(20))
    async with stranger_at(home) as stranger:
        await stranger.lock(claims[1].task.id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await home.ledger.extend(claims, LEASE)
        assert answer == ([] if home.queued else [ClaimLocked(claims[1])])
    home.clock.advance(seconds(20))
    lost = await home.reclaim(10, LEASE)
    assert [claim.task.id for claim in lost] == ([] if home.queued else [claims[1].task.id])
    assert await home.ledger.extend([claims[0], claims[2]], LEASE) == []


async def test_who_waits_is_written_when_the_lock_goes(home: Home) -> None:
    """A settlement that stands in the line for its row is written as soon as the lock goes. A message is kept meanwhile."""
    [claim] = await claimed(home, 1)
    async with stranger_at(home) as stranger:
        await stranger.lock(claim.task.id)
        waiting = asyncio.create_task(home.ledger.settle([settlement(claim)], worker="w1", wait=LONG))
        await stranger.until_somebody_waits()
        assert not waiting.done()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await home.ledger.extend([claim], LEASE) == ([] if home.queued else [ClaimLocked(claim)])
            await stranger.let_go()
            assert await waiting == []
    assert await states(home, [claim]) == ["done"]


async def test_waiting_has_an_end(home: Home) -> None:
    """Whoever waits for a row that does not come free is told that it is locked, and nothing is written."""
    [claim] = await claimed(home, 1)
    async with stranger_at(home) as stranger:
        await stranger.lock(claim.task.id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            short = await home.ledger.settle([settlement(claim)], worker="w1", wait=timedelta(milliseconds=5))
        assert short == [ClaimLocked(claim)]
    assert await home.ledger.attempts(claim.task.id) == []
    assert await home.settle(claim, Done()) == []


async def test_a_lock_of_ones_own_is_none(home: Home) -> None:
    """A transaction that has locked its row settles it, without waiting for itself."""
    [claim] = await claimed(home, 1)
    async with home.ledger.transaction() as transaction, asyncio.timeout(PATIENCE_SECONDS):
        await transaction.connection.run_sync(lock_own, home, claim.task.id)
        assert await home.ledger.settle([settlement(claim)], worker="w1", within=transaction.connection) == []
    assert await states(home, [claim]) == ["done"]


def lock_own(connection: Connection, home: Home, id_: TaskId) -> None:
    c = columns_of(home.sql_table)[home.table.id_column]
    connection.execute(select(c).where(c == id_).with_for_update()).all()


class Noted(Beside):
    """Keeps what it is told of."""

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []

    def settled(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        self.settlements += settlements


@pytest.mark.homes(lambda table: table.name != "command")
async def test_what_is_beside_is_told_only_of_what_was_written(home: Home) -> None:
    """A `Beside` hears of a locked settlement when it is written, and not before."""
    beside = Noted()
    ledger = SqlLedger(home.database, home.table, home.sql_table, beside=beside)
    settled = [settlement(claim) for claim in await claimed(home, 3)]
    async with stranger_at(home) as stranger:
        await stranger.lock(settled[0].claim.task.id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await ledger.settle(settled, worker="w1") == [ClaimLocked(settled[0].claim)]
        assert beside.settlements == settled[1:]
    assert await ledger.settle(settled[:1], worker="w1", wait=LONG) == []
    assert beside.settlements == [*settled[1:], settled[0]]


async def test_what_the_fence_refuses_does_not_part_counters_from_rows(home: Home) -> None:
    """The minute's counters are in the commit of the history that they count, also where a group is written in part."""
    claims = await claimed(home, 3)
    assert await home.settle(claims[1], TRANSIENT) == []
    answer = await home.ledger.settle([settlement(claim) for claim in claims], worker="w2")
    assert answer == [ClaimLost(claims[1])]

    def commits(connection: Connection) -> set[int]:
        a, m = schema.attempt, schema.minute
        found = [
            *connection.execute(select(text("xmin::text")).select_from(a).where(a.c.worker == "w2")).scalars(),
            *connection.execute(select(text("xmin::text")).select_from(m).where(m.c.worker == "w2")).scalars(),
        ]
        assert len(found) == 3
        return set(found)

    assert len(await home.database.read(commits)) == 1
    assert [row["done"] for row in await home.rollups() if row["worker"] == "w2"] == [2]


# --- what a worker makes of it ----------------------------------------------------------------------------------------


class Gate:
    """A handler that notes what it runs and waits to be let out."""

    def __init__(self) -> None:
        self.runs: list[TaskId] = []
        self.out = asyncio.Event()
        self._changed = asyncio.Event()

    async def __call__(self, task: Any) -> None:
        self.runs.append(task.id)
        self._changed.set()
        await self.out.wait()

    async def started(self, amount: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.runs) < amount:
                self._changed.clear()
                await self._changed.wait()


def handled(home: Home, function: Any, **options: Any) -> Handlers:
    handlers = Handlers()
    handlers.add(make_handler(kind_of(home), function, POLICY, **options))
    return handlers


async def test_a_stranger_locks_one_of_fifty(home: Home) -> None:
    """While one row is locked 49 of 50 finished tasks are written; the last is when the lock goes. Each ran once.

    The lock outlasts the lease, and another worker's keeper looks meanwhile.
    """
    ids = await home.put(50)
    heard, gate = Heard(), Gate()
    ledger, another = await home.another(), await home.another()
    handlers = handled(home, gate)
    other = Keeper(
        another, handlers, Settler(another, "other", Patience("x", heard.tell), heard.tell, batch=100),
        Patience("x", heard.tell), heard.tell,
    )  # fmt: skip
    async with (
        stranger_at(home) as stranger,
        working(ledger, handlers, heard=heard, lease=LEASE),
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        await gate.started(50)
        await stranger.lock(ids[7])
        gate.out.set()
        await heard.amount(AttemptEnded, 49)
        await stranger.until_somebody_waits()
        home.clock.advance(LEASE + seconds(1))
        if home.queued:  # there a claim hands out what was lost: marked, and not if its row is locked
            assert await another.claim(100, LEASE) == []
        for _ in range(3):
            await other.settle_expired()
        assert len(heard.of(AttemptEnded)) == 49
        await stranger.let_go()
        await heard.amount(AttemptEnded, 50)
        await other.settle_expired()
    assert sorted(gate.runs) == sorted(ids)
    assert heard.of(SettleLost, SettleFailed) == []
    assert {event.settlement.outcome for event in heard.of(AttemptEnded)} == {"done"}
    assert [len(await home.ledger.attempts(id_)) for id_ in ids] == [1] * 50


async def test_a_handler_that_locks_its_own_row_costs_its_neighbours_nothing(home: Home) -> None:
    """While a transactional handler holds its own row, the leases of its neighbours are extended, and it is written itself."""
    ids = await home.put(10)
    heard, neighbours, ledger = Heard(), Gate(), await home.another()
    holds, out = asyncio.Event(), asyncio.Event()

    async def locking(task: Any, context: Any) -> None:
        if task.id != ids[0]:
            await neighbours(task)
        else:
            await context.connection.run_sync(lock_own, home, task.id)
            holds.set()
            await out.wait()

    async with (
        working(ledger, handled(home, locking, transactional=True), heard=heard, lease=seconds(1)),
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        await neighbours.started(9)
        await holds.wait()
        home.clock.advance(timedelta(milliseconds=900))
        while min([(await home.row(id_))["lease_until"] for id_ in ids[1:]]) < home.clock.now() + timedelta(seconds=1):
            await asyncio.sleep(0.02)  # only time itself can show that they are extended
        out.set()
        neighbours.out.set()
        await heard.amount(AttemptEnded, 10)
    assert sorted(neighbours.runs) == sorted(ids[1:])
    assert heard.of(SettleLost, SettleFailed) == []
    assert {event.settlement.outcome for event in heard.of(AttemptEnded)} == {"done"}


async def test_limits_of_a_role_throw_no_finished_work_away(home: Home) -> None:
    """A lock that outlasts every limit that a role or a database may have costs a finished task nothing."""
    ids = await home.put(3)
    heard, gate = Heard(), Gate()
    async with stranger_at(home) as stranger:
        await home.database.write(set_limits, "300ms")
        try:
            limited = await home.another()
            async with working(limited, handled(home, gate), heard=heard), asyncio.timeout(PATIENCE_SECONDS):
                await gate.started(3)
                await stranger.lock(ids[1])
                gate.out.set()
                await heard.amount(AttemptEnded, 2)
                await stranger.until_somebody_waits()
                await asyncio.sleep(0.5)  # longer than the limits: nothing tells from outside that they have passed
                await stranger.let_go()
                await heard.amount(AttemptEnded, 3)
        finally:
            await home.database.write(set_limits, None)
    assert sorted(gate.runs) == sorted(ids)
    assert {event.settlement.outcome for event in heard.of(AttemptEnded)} == {"done"}
    assert heard.of(SettleLost, SettleFailed) == []


def set_limits(connection: Connection, value: str | None) -> None:
    database = connection.execute(text("SELECT quote_ident(current_database())")).scalar_one()
    for name in LIMITS:
        said = f"SET {name} = '{value}'" if value else f"RESET {name}"
        connection.execute(text(f"ALTER DATABASE {database} {said}"))


async def test_a_lost_claim_whose_row_is_locked_holds_up_no_other(home: Home) -> None:
    """What can be taken over is taken over while a stranger has locked one of the lost rows."""
    # Lost alone, so that those which are settled wait for their backoff.
    claims = [alone for claim in await claimed(home, 3) if (alone := await home.ledger.run_alone(claim))]
    home.clock.advance(LEASE + seconds(1))
    async with stranger_at(home) as stranger:
        await stranger.lock(claims[1].task.id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = await home.reclaim(10, LEASE)
            assert sorted(claim.task.id for claim in found) == [claims[0].task.id, claims[2].task.id]
            assert await home.ledger.settle([settlement(one, LeaseExpired()) for one in found], worker="k") == []
    home.clock.advance(LEASE + seconds(1))
    assert [claim.task.id for claim in await home.reclaim(10, LEASE)] == [claims[1].task.id]


# --- what people and keepers do ----------------------------------------------------------------------------------------


async def test_a_locked_row_keeps_no_other_from_being_claimed(home: Home) -> None:
    """What nobody has locked is claimed, and the other one when its lock goes; in a queue when its message is visible again."""
    ids = sorted(await home.put(3))
    async with stranger_at(home) as stranger:
        await stranger.lock(ids[1])
        async with asyncio.timeout(PATIENCE_SECONDS):
            claims = await home.ledger.claim(10, LEASE)
        assert sorted(claim.task.id for claim in claims) == [ids[0], ids[2]]
    if home.queued:
        assert await home.ledger.settle([settlement(claim) for claim in claims], worker="w1") == []
        home.clock.advance(LEASE + seconds(1))
    assert [claim.task.id for claim in await home.ledger.claim(10, LEASE)] == [ids[1]]


@pytest.mark.homes(lambda table: table.words.has(State.CANCELLED))
async def test_a_locked_row_keeps_nobody_from_acting_on_the_others(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many that are cancelled all are but the one that is locked; alone it is said to be locked."""
    monkeypatch.setattr(acts, "LOCKED_WAIT", timedelta(seconds=0.2))
    ids = sorted(await home.put(3))
    async with stranger_at(home) as stranger:
        await stranger.lock(ids[1])
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert sorted(await home.ledger.cancel(ids, ADA)) == [ids[0], ids[2]]
            with pytest.raises(StillLocked):
                await home.ledger.cancel(ids, ADA)
        assert [(await home.ledger.get(id_)).state.value for id_ in ids] == ["cancelled", "waiting", "cancelled"]
    assert await home.ledger.cancel(ids, ADA) == [ids[1]]
    assert await home.ledger.cancel(ids, ADA) == []


@pytest.mark.homes(lambda table: table.words.has(State.CANCELLED))
async def test_a_lock_that_goes_soon_is_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever acts on a task that somebody else is just writing does so a moment later."""
    monkeypatch.setattr(acts, "LOCKED_WAIT", LONG)
    ids = sorted(await home.put(2))
    async with stranger_at(home) as stranger:
        await stranger.lock(ids[1])
        acting = asyncio.create_task(home.ledger.cancel(ids, ADA))
        await stranger.until_somebody_waits()
        await stranger.let_go()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert sorted(await acting) == ids


async def test_a_locked_row_keeps_no_other_from_being_pruned(home: Home) -> None:
    """Old tasks are deleted but for the one that is locked, which goes the next time."""
    claims = await claimed(home, 3)
    assert await home.ledger.settle([settlement(claim) for claim in claims], worker="w1") == []
    home.clock.advance(LONG)
    try:
        home.ledger._acting.old([State.DONE])
    except UsageError:
        pytest.skip("nothing of this table is ever pruned")
    async with stranger_at(home) as stranger:
        await stranger.lock(claims[1].task.id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await home.ledger.prune([State.DONE], seconds(1)) == 2
    assert await home.ledger.prune([State.DONE], seconds(1)) == 1
