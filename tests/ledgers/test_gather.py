"""Many callers, one batch: what they share and what they must not."""

import asyncio
from collections.abc import Sequence

import pytest

from redrive.errors import LedgerAwayError
from redrive.ledgers.gather import Gather


class Doubler:
    """Doubles numbers once its gate is open; remembers its batches; refuses negative numbers."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.error: type[Exception] = ValueError

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.gate.wait()
        if any(item < 0 for item in items):
            raise self.error("below zero")
        return [item * 2 for item in items]


@pytest.fixture
def doubler() -> Doubler:
    return Doubler()


async def start(gather: Gather[int, int], *calls: list[int]) -> list[asyncio.Task[list[int]]]:
    """Calls under way, the first in a batch of its own and the others waiting for the next."""
    tasks = []
    for call in calls:
        tasks.append(asyncio.create_task(gather(call)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return tasks


async def test_calls_that_come_meanwhile_share_the_next_batch(doubler: Doubler) -> None:
    """A lone call goes out at once; those that come while it runs go out together, each with its own results."""
    tasks = await start(Gather(doubler), [1], [2, 3], [], [4])
    doubler.gate.set()
    assert await asyncio.gather(*tasks) == [[2], [4, 6], [], [8]]
    assert doubler.batches == [[1], [2, 3, 4]]


async def test_a_batch_has_a_limit(doubler: Doubler) -> None:
    """A batch grows to its limit only, and a single larger call goes alone."""
    tasks = await start(Gather(doubler, items_max=3), [0], [1, 2], [3], [4, 5, 6, 7], [8])
    doubler.gate.set()
    await asyncio.gather(*tasks)
    assert doubler.batches == [[0], [1, 2, 3], [4, 5, 6, 7], [8]]


async def test_a_full_batch_waits_for_no_other(doubler: Doubler) -> None:
    """It would not grow any more. Two are under way at most, and what does not fill a batch waits as ever."""
    tasks = await start(Gather(doubler, items_max=2, at_once=2), [1, 2], [3], [4, 5], [6, 7], [8])
    assert doubler.batches == [[1, 2], [3]], "the third call made the second one's batch a full one"
    doubler.gate.set()
    assert await asyncio.gather(*tasks) == [[2, 4], [6], [8, 10], [12, 14], [16]]
    assert sorted(doubler.batches) == [[1, 2], [3], [4, 5], [6, 7], [8]]


async def test_many_that_wait_go_in_halves(doubler: Doubler) -> None:
    """Half of them, down to a size that is worth a batch; the others go with what comes meanwhile."""
    tasks = await start(Gather(doubler, halved_from=2), *([n] for n in range(9)))
    doubler.gate.set()
    await asyncio.gather(*tasks)
    assert doubler.batches == [[0], [1, 2, 3, 4], [5, 6], [7, 8]]


async def test_an_error_reaches_its_caller_only(doubler: Doubler) -> None:
    """Of a batch that fails, each call is run by itself: the good ones get their results."""
    tasks = await start(Gather(doubler), [1], [2], [-3], [4])
    doubler.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[:2] == [[2], [4]]
    assert isinstance(results[2], ValueError)
    assert results[3] == [8]


async def test_an_outage_reaches_all_without_asking_each(doubler: Doubler) -> None:
    """While the ledger is away nobody's call would fare better alone."""
    doubler.error = LedgerAwayError
    tasks = await start(Gather(doubler), [1], [2], [-3], [4])
    doubler.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, LedgerAwayError) for result in results] == [False, True, True, True]
    assert len(doubler.batches) == 2


async def test_a_cancelled_caller_takes_nobody_along(doubler: Doubler) -> None:
    """A caller that gives up, waiting or under way, leaves the others their results."""
    tasks = await start(Gather(doubler), [1], [2], [3])
    tasks[0].cancel()
    tasks[1].cancel()
    doubler.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert isinstance(results[1], asyncio.CancelledError)
    assert results[2] == [6]


async def test_it_goes_on_after_an_error(doubler: Doubler) -> None:
    """An error ends its batch, not the gathering."""
    doubler.gate.set()
    gather = Gather(doubler)
    with pytest.raises(ValueError, match="below zero"):
        await gather([-1])
    assert await gather([5]) == [10]


async def test_everybody_hears_when_the_batch_is_cancelled() -> None:
    """If what runs the batch is itself cancelled, no caller waits for ever."""

    async def run(items: Sequence[int]) -> list[int]:
        raise asyncio.CancelledError

    gather: Gather[int, int] = Gather(run)
    results = await asyncio.gather(gather([1]), gather([2]), return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
