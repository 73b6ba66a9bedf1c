"""The limit of requests per key: held across processes, without a write per request."""

import asyncio
from datetime import timedelta

import pytest

from redrive.errors import LedgerAwayError
from redrive.systems.triggers.hosting import FUNCTION, Hosting
from redrive.systems.triggers.limits import Limiter

from .conftest import House


def limiter_of(house: House, per_minute: int, hosting: Hosting = Hosting()) -> Limiter:
    """The limiter of a process on this store."""
    return Limiter(house.triggers.stores.limits, house.triggers.stores.clock, per_minute, hosting)


async def used(house: House) -> int:
    """How much of the key's minute was given out."""
    return await house.triggers.stores.limits.add("k", int(house.clock.now().timestamp()) // 60, 0)


async def admitted(limiters: list[Limiter], asked: int) -> int:
    """How many of so many requests are let in, dealt to the processes in turn."""
    waits = [await limiters[number % len(limiters)].wait_for("k") for number in range(asked)]
    return sum(wait is None for wait in waits)


async def test_the_limit_holds_across_processes(house: House) -> None:
    """However many processes share it, within a few percent of 1,000 a minute are let in."""
    for count in (1, 2, 4):
        house.clock.advance(timedelta(minutes=1))
        limiters = [limiter_of(house, 1000) for _ in range(count)]
        assert 970 <= await admitted(limiters, 1500) <= 1030
        assert await limiters[0].wait_for("k") is not None
        assert await limiters[0].wait_for("another") is None
        house.clock.advance(timedelta(minutes=1))
        assert await limiters[0].wait_for("k") is None


async def test_copies_of_a_function_let_no_more_through(house: House) -> None:
    """Thirty copies, each with a few requests: none of them gives a share away, and each may leave one."""
    limiters = [limiter_of(house, 200, FUNCTION) for _ in range(30)]
    assert 200 - 30 * 2 < await admitted(limiters, 300) <= 200


async def test_few_writes(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that asks seldom costs no write at all; one that uses its minute up costs one in twenty requests."""
    limiter = limiter_of(house, 1000)
    add, writes = limiter._limits.add, list[int]()

    async def counting(key_id: str, minute: int, amount: int) -> int:
        writes.append(amount)
        return await add(key_id, minute, amount)

    monkeypatch.setattr(limiter._limits, "add", counting)
    for key in range(200):
        assert await limiter.wait_for(f"k{key}") is None
    assert writes == []
    assert await admitted([limiter], 1500) == 1000
    assert len(writes) <= 52


@pytest.mark.every_store
async def test_many_at_once_take_one_block(house: House) -> None:
    """Waiting together they do not lease the whole minute away from the other processes."""
    limiter = limiter_of(house, 1000)
    waits = await asyncio.gather(*(limiter.wait_for("k") for _ in range(30)))
    assert waits == [None] * 30
    assert await used(house) == 40


async def test_nobody_is_refused_while_there_is_something_left(house: House) -> None:
    """A thousand at the same moment all pass, and the next does not."""
    limiter = limiter_of(house, 1000)
    assert await asyncio.gather(*(limiter.wait_for("k") for _ in range(1000))) == [None] * 1000
    assert await limiter.wait_for("k") is not None


async def test_a_small_limit_is_exact(house: House) -> None:
    """Where the limit is too small to be shared, every request asks."""
    assert await admitted([limiter_of(house, 7) for _ in range(3)], 30) == 7


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
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that could not be taken leaves nothing uncounted: the next one tells of it."""
    limiter = limiter_of(house, 1000)
    for _ in range(20):
        assert await limiter.wait_for("k") is None
    with monkeypatch.context() as away:
        away.setattr(limiter._limits, "add", broken)
        with pytest.raises(LedgerAwayError):
            await limiter.wait_for("k")
    assert await limiter.wait_for("k") is None
    assert await used(house) == 40


async def test_readers_pass_while_the_store_takes_no_write(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes waits with it, one write is under way for all, and what readers used meanwhile is told when it is over."""
    limiter = limiter_of(house, 7)
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


async def test_readers_pass_where_the_store_is_away(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hear of it where they read; a request that writes hears of it here."""
    limiter = limiter_of(house, 7)
    monkeypatch.setattr(limiter._limits, "add", broken)
    assert await limiter.wait_for("k", reads=True) is None
    with pytest.raises(LedgerAwayError):
        await limiter.wait_for("k")
