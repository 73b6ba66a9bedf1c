"""Lanes: runs that never wait share a task, and none of them can tell."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from redrive.engine.lanes import Lanes

NOTE: ContextVar[str] = ContextVar("note", default="")
Body = Callable[[], Awaitable[Any]]


class One:
    """A run of a function."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.came_to: Any = None


async def run(one: One) -> None:
    """As the worker's: what a handler raises is its outcome."""
    try:
        one.came_to = await one.body()
    except (Exception, asyncio.CancelledError) as error:
        one.came_to = error
    finally:
        one.ended.set()


async def ended(*runs: One) -> list[Any]:
    async with asyncio.timeout(30):
        for one in runs:
            await one.ended.wait()
    return [one.came_to for one in runs]


async def current() -> asyncio.Task[Any] | None:
    return asyncio.current_task()


async def test_runs_that_never_wait_share_a_task() -> None:
    """A hundred runs that only compute take a few tasks, each of them a real one."""
    lanes = Lanes(run)
    runs = [One(current) for _ in range(100)]
    for one in runs:
        lanes.start(one, "computes")
    tasks = await ended(*runs)
    assert None not in tasks
    assert tasks == [one.task for one in runs], "whoever looks for the run of a task finds it"
    assert len(set(tasks)) < 50


async def test_a_run_that_waits_has_its_task_for_itself() -> None:
    """Once a run has waited, nothing runs in its task before or after its end; the others do not wait for it."""
    lanes, free = Lanes(run), asyncio.Event()

    async def wait() -> Any:
        before = asyncio.current_task()
        await free.wait()
        assert asyncio.current_task() is before
        return before

    waits, others, later = One(wait), [One(current) for _ in range(5)], [One(wait) for _ in range(5)]
    lanes.start(waits, "waits")
    for one in others:
        lanes.start(one, "computes")
    tasks = await ended(*others)
    for one in later:
        lanes.start(one, "waits")
    free.set()
    own = await ended(waits, *later)
    assert len(set(own)) == 6
    assert not set(own) & set(tasks)


async def test_many_that_wait_start_at_once() -> None:
    """When one run of a handler waits, the others of that handler behind it get tasks of their own in the same turn of the loop."""
    lanes, free, begun = Lanes(run), asyncio.Event(), 0

    async def wait() -> None:
        nonlocal begun
        begun += 1
        await free.wait()

    runs = [One(wait) for _ in range(50)]
    for one in runs:
        lanes.start(one, "waits")
    for _ in range(4):
        await asyncio.sleep(0)
    assert begun == 50
    free.set()
    await ended(*runs)


async def test_a_context_variable_is_not_handed_on() -> None:
    """What a run sets in its context no other run sees, and what was set before the start all see."""
    lanes, seen = Lanes(run), []

    async def note() -> None:
        seen.append(NOTE.get())
        NOTE.set("left behind")

    token = NOTE.set("from outside")
    runs = [One(note) for _ in range(5)]
    for one in runs:
        lanes.start(one, "notes")
    NOTE.reset(token)
    await ended(*runs)
    assert seen == ["from outside"] * 5


class Odd:
    """A value that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    __hash__ = object.__hash__


async def test_values_that_cannot_be_compared_do_no_harm() -> None:
    """A context with odd values costs no run its turn."""
    lanes = Lanes(run)
    odd: ContextVar[Odd] = ContextVar("odd")

    async def note() -> str:
        odd.set(Odd())
        return "ran"

    odd.set(Odd())
    runs = [One(note) for _ in range(5)]
    for one in runs:
        lanes.start(one, "notes")
    assert await ended(*runs) == ["ran"] * 5


async def test_a_timeout_ends_only_what_it_encloses() -> None:
    """`asyncio.timeout` works from the first line of a run, and leaves the others alone."""
    lanes = Lanes(run)

    async def too_slow() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    async def in_time() -> str:
        async with asyncio.timeout(60):
            return "in time"

    runs = [One(in_time), One(too_slow), One(in_time), One(in_time)]
    for number, one in enumerate(runs):
        lanes.start(one, f"handler {number}")
    first, slow, *others = await ended(*runs)
    assert isinstance(slow, TimeoutError)
    assert [first, *others] == ["in time"] * 3


async def test_cancelling_a_run_cancels_no_other() -> None:
    """A run that is cancelled while it waits, or that cancels itself, is the only one that hears of it."""
    lanes = Lanes(run)

    async def cancel_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "not awaited any more"

    async def pause() -> str:
        await asyncio.sleep(0)
        return "paused"

    async def wait() -> None:
        await asyncio.Event().wait()

    runs = [One(cancel_itself), One(pause), One(wait), One(pause), One(pause)]
    for number, one in enumerate(runs):
        lanes.start(one, f"handler {number}")
    assert await ended(runs[0], runs[1], *runs[3:]) == ["not awaited any more", "paused", "paused", "paused"]
    assert runs[2].task is not None
    runs[2].task.cancel()
    [came_to] = await ended(runs[2])
    assert isinstance(came_to, asyncio.CancelledError)


async def test_what_has_not_begun_can_be_taken_back() -> None:
    """Whoever stops takes the line with it."""
    lanes = Lanes(run)
    runs = [One(current) for _ in range(3)]
    for one in runs:
        lanes.start(one, "computes")
    assert lanes.give_up() == runs
    await asyncio.sleep(0)
    assert [one.ended.is_set() for one in runs] == [False] * 3


@pytest.mark.parametrize("amount", [1, 2000])
async def test_the_loop_has_its_turn(amount: int) -> None:
    """A line that never ends does not keep the loop from others: a lane goes on for a moment and then lets them."""
    lanes, left, turns = Lanes(run), amount, 0

    async def again() -> None:
        nonlocal left
        left -= 1
        if left > 0:
            lanes.start(One(again), "again")

    lanes.start(One(again), "again")
    async with asyncio.timeout(30):
        while left > 0:
            turns += 1
            await asyncio.sleep(0)
    assert turns
