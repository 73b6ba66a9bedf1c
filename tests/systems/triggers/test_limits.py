"""The limit of requests per key: held across processes, without a write per request."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import Connection, func, select

from redrive import Redrive
from redrive.errors import LedgerAwayError
from redrive.extend import Database
from redrive.systems.triggers.limits import Limiter
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.limits import SqlRateLimits
from redrive.testing import VirtualClock

from .conftest import House


def limiter_of(database: Database, per_minute: int) -> Limiter:
    """The limiter of a process on this database."""
    return Limiter(SqlRateLimits(database), database, per_minute)


async def admitted(limiters: list[Limiter], asked: int) -> int:
    """How many of so many requests are let in, dealt to the processes in turn."""
    waits = [await limiters[number % len(limiters)].wait_for("k") for number in range(asked)]
    return sum(wait is None for wait in waits)


async def test_the_limit_holds_across_processes(url: str, clock: VirtualClock) -> None:
    """However many processes share it, within a few percent of 1,000 a minute are let in."""
    apps = [Redrive(url, clock=clock, durable=False) for _ in range(4)]
    try:
        for count in (1, 2, 4):
            clock.advance(timedelta(minutes=1))
            limiters = [limiter_of(app.database, 1000) for app in apps[:count]]
            assert 970 <= await admitted(limiters, 1500) <= 1030
            assert await limiters[0].wait_for("k") is not None
            assert await limiters[0].wait_for("another") is None
            clock.advance(timedelta(minutes=1))
            assert await limiters[0].wait_for("k") is None
    finally:
        for app in apps:
            await app.close()


class Counting:
    """A database that counts its writes."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.writes = 0

    def __getattr__(self, name: str) -> object:
        if name == "write":
            self.writes += 1
        return getattr(self._inner, name)


async def test_few_writes(database: Database) -> None:
    """A key that asks seldom costs no write at all; one that uses its minute up costs one in twenty requests."""
    counting = Counting(database)
    limiter = limiter_of(counting, 1000)  # type: ignore[arg-type]
    for key in range(200):
        assert await limiter.wait_for(f"k{key}") is None
    assert counting.writes == 0
    assert await admitted([limiter], 1500) == 1000
    assert counting.writes <= 52


async def test_many_at_once_take_one_block(database: Database) -> None:
    """Waiting together they do not lease the whole minute away from the other processes."""
    limiter = limiter_of(database, 1000)
    waits = await asyncio.gather(*(limiter.wait_for("k") for _ in range(30)))
    assert waits == [None] * 30

    def used(connection: Connection) -> int:
        return int(connection.execute(select(func.sum(t.limits.c.used))).scalar_one())

    assert await database.read(used) == 40


async def test_nobody_is_refused_while_there_is_something_left(database: Database) -> None:
    """A thousand at the same moment all pass, and the next does not."""
    limiter = limiter_of(database, 1000)
    assert await asyncio.gather(*(limiter.wait_for("k") for _ in range(1000))) == [None] * 1000
    assert await limiter.wait_for("k") is not None


async def test_a_small_limit_is_exact(url: str, clock: VirtualClock) -> None:
    """Where the limit is too small to be shared, every request asks."""
    apps = [Redrive(url, clock=clock, durable=False) for _ in range(3)]
    try:
        assert await admitted([limiter_of(app.database, 7) for app in apps], 30) == 7
    finally:
        for app in apps:
            await app.close()


async def test_429_says_when(house: House) -> None:
    """The answer has the code and a Retry-After to the end of the minute, rounded up; after it requests pass again."""
    object.__setattr__(
        house.triggers, "settings", house.triggers.settings.model_copy(update={"rate_limit_per_minute": 3})
    )
    async with house.client(await house.key()) as client:
        house.clock.advance(timedelta(seconds=20.4))
        answers = [await client.get("/v1/inbox") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[3].json()["error"]["code"] == "RATE_LIMIT_EXCEEDED"
        assert answers[3].headers["Retry-After"] == "40"
        house.clock.advance(timedelta(seconds=40))
        assert (await client.get("/v1/inbox")).status_code == 200


async def broken(*_: object) -> int:
    """A store that is away."""
    raise LedgerAwayError("away")


async def test_what_was_handed_out_is_told_although_the_store_was_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that could not be taken leaves nothing uncounted: the next one tells of it."""
    limiter = limiter_of(database, 1000)
    for _ in range(20):
        assert await limiter.wait_for("k") is None
    with monkeypatch.context() as away:
        away.setattr(limiter._limits, "add", broken)
        with pytest.raises(LedgerAwayError):
            await limiter.wait_for("k")
    assert await limiter.wait_for("k") is None

    def used(connection: Connection) -> int:
        return int(connection.execute(select(func.sum(t.limits.c.used))).scalar_one())

    assert await database.read(used) == 40


async def test_readers_pass_while_the_store_takes_no_write(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes waits with it, one write is under way for all, and what readers used meanwhile is told when it is over."""
    limiter = limiter_of(database, 7)
    add, asked, free = limiter._limits.add, [], asyncio.Event()

    async def blocked(key_id: str, minute: int, amount: int) -> int:
        asked.append(amount)
        await free.wait()
        return await add(key_id, minute, amount)

    monkeypatch.setattr(limiter._limits, "add", blocked)
    writer = asyncio.create_task(limiter.wait_for("k"))
    assert [await limiter.wait_for("k", reads=True) for _ in range(20)] == [None] * 20
    assert (len(asked), writer.done()) == (1, False)
    free.set()
    assert await writer is None
    assert await limiter.wait_for("k", reads=True) is not None
    assert asked == [1, 21]


async def test_readers_pass_where_the_store_is_away(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hear of it where they read; a request that writes hears of it here."""
    limiter = limiter_of(database, 7)
    monkeypatch.setattr(limiter._limits, "add", broken)
    assert await limiter.wait_for("k", reads=True) is None
    with pytest.raises(LedgerAwayError):
        await limiter.wait_for("k")
