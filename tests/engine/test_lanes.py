"""Lanes: runs that never wait share a task, and none of them can tell."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
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


async def current() -> str:
    """The name of its task, which no other has; who keeps the task itself keeps others out of it."""
    task = asyncio.current_task()
    assert task is not None
    return task.get_name()


async def test_runs_that_never_wait_share_a_task() -> None:
    """A hundred runs that only compute take a few tasks, each of them a real one."""
    lanes = Lanes(run)
    runs = [One(current) for _ in range(100)]
    for one in runs:
        lanes.start(one, "computes")
    assert len(set(await ended(*runs))) < 50


async def test_a_run_is_found_by_its_task() -> None:
    """Whoever looks for what runs now finds it by the task."""
    lanes, found = Lanes(run), []

    async def look(number: int) -> None:
        found.append([place for place, one in enumerate(runs) if one.task is asyncio.current_task()] == [number])

    runs = [One(partial(look, number)) for number in range(10)]
    for one in runs:
        lanes.start(one, "looks")
    await ended(*runs)
    assert found == [True] * 10


def _weakly(task: asyncio.Task[Any]) -> Callable[[], Any]:
    kept = weakref.ref(task)
    return lambda: None if (there := kept()) is None else there.cancel()


@pytest.mark.parametrize("keep", [lambda task: task.cancel, _weakly], ids=["strongly", "weakly"])
async def test_a_task_that_was_kept_is_no_other_runs(keep: Callable[[Any], Callable[[], Any]]) -> None:
    """A stray `cancel` of a run that has ended does nothing: no later run has the same task."""
    lanes, cancels, free = Lanes(run), list[Callable[[], Any]](), asyncio.Event()

    async def keeps() -> None:
        cancels.append(keep(asyncio.current_task()))

    async def wait() -> str:
        await free.wait()
        return "not cancelled"

    runs = [One(keeps), One(wait), One(keeps), One(wait)]
    for number, one in enumerate(runs):
        lanes.start(one, f"handler {number}")
    await ended(runs[0], runs[2])
    while runs[1].task is None or runs[3].task is None:
        await asyncio.sleep(0)
    for cancel in cancels:
        cancel()
    free.set()
    assert await ended(runs[1], runs[3]) == ["not cancelled"] * 2


async def test_a_run_that_waits_has_its_task_for_itself() -> None:
    """Once a run has waited, nothing runs in its task before or after its end; the others do not wait for it."""
    lanes, free = Lanes(run), asyncio.Event()

    async def wait() -> Any:
        before = asyncio.current_task()
        await free.wait()
        assert asyncio.current_task() is before
        return await current()

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
        seen = NOTE.get()
        odd.set(Odd())
        NOTE.set("left behind")
        return seen

    odd.set(Odd())
    runs = [One(note) for _ in range(5)]
    for one in runs:
        lanes.start(one, "notes")
    assert await ended(*runs) == [""] * 5, "and none finds what another has left"


async def test_what_cannot_be_compared_is_not_the_same() -> None:
    """A run that leaves nothing but such a value behind ends its lane all the same."""
    lanes = Lanes(run)
    odd: ContextVar[Odd | None] = ContextVar("odd", default=None)

    async def leave() -> bool:
        clean = odd.get() is None
        odd.set(Odd())
        return clean

    async def replace() -> int:
        before = odd.get()
        odd.set(Odd())
        return id(before)

    runs = [One(leave) for _ in range(3)]
    for one in runs:
        lanes.start(one, "odd")
    assert await ended(*runs) == [True] * 3
    odd.set(Odd())
    runs = [One(replace) for _ in range(3)]
    for one in runs:
        lanes.start(one, "odd")
    assert len(set(await ended(*runs))) == 1, "each begins with what was there before"


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


async def test_a_line_is_known_while_it_is_there() -> None:
    """Whoever writes what comes of runs may wait for those that are about to end."""
    lanes = Lanes(run)
    assert not lanes.has_line()
    runs = [One(current) for _ in range(2)]
    for one in runs:
        lanes.start(one, "computes")
        assert lanes.has_line()
    await ended(*runs)
    assert not lanes.has_line()


async def test_a_lane_is_kept_until_it_has_ended() -> None:
    """The loop holds its tasks weakly: one that nobody kept could vanish in the midst of a run."""
    lanes, go_on = Lanes(run), asyncio.Event()
    one = One(go_on.wait)
    lanes.start(one, "waits")
    while one.task is None:
        await asyncio.sleep(0)
    assert lanes._tasks == {one.task}
    lane = one.task
    go_on.set()
    await ended(one)
    await asyncio.wait([lane])
    await asyncio.sleep(0)
    assert lanes._tasks == set()
