"""Lanes: runs that never wait share a task of the event loop, one after the other.

A task for each run takes 1.5 µs, a fifth of what is spent on a handler that only computes. So runs stand in line, and a lane, which
is a task, runs them one by one. Each of them finds what it would find in a task of its own:

- Once a run waits, the task is its own: another lane goes on with the line, and nothing runs in this one afterwards.
- The same if a run has changed its context or was cancelled: the next one starts clean.
- The same if somebody has kept the task: to cancel a task that has ended does nothing, and must not hit a later run.
- A handler that has been seen to wait gets tasks of its own from then on, so that many of them start at once.
"""

import asyncio
import contextvars
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar
from weakref import getweakrefcount

SLICE_SECONDS = 0.005
"""How long a lane goes on before others in the loop have their turn."""


class Run(Protocol):
    """What stands in line."""

    task: "asyncio.Task[None] | None"
    """The task that it runs in, once it has begun. A lane takes it back afterwards."""


R = TypeVar("R", bound=Run)


class Lanes(Generic[R]):
    """Starts runs of one worker; `run` takes each of them to its end and raises nothing."""

    def __init__(self, run: Callable[[R], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._line: deque[tuple[R, str]] = deque()
        self._waited: set[str] = set()
        """Handlers that have been seen to wait."""
        self._runs: str | None = None
        """The handler that the open lane runs now."""
        self._is_open = False
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, one: R, handler: str) -> None:
        """Start a run soon; `handler` names what it runs."""
        if handler in self._waited:
            self.start_apart(one)
            return
        self._line.append((one, handler))
        if not self._is_open:
            self._open()

    def start_apart(self, one: R) -> None:
        """Start a run in a task of its own."""
        one.task = asyncio.get_running_loop().create_task(self._run(one))

    def has_line(self) -> bool:
        """Whether runs stand in line: a lane comes to them in the loop's next turn."""
        return bool(self._line)

    def give_up(self) -> list[R]:
        """Take what has not begun out of the line."""
        left = [one for one, _ in self._line]
        self._line.clear()
        return left

    def _open(self) -> None:
        self._is_open = True
        lane = asyncio.get_running_loop().create_task(self._lane())
        self._tasks.add(lane)  # the loop itself does not keep it
        lane.add_done_callback(self._tasks.discard)

    def _go_on(self) -> None:
        """Called when the run in the open lane waits, or the lane has ended."""
        self._turn += 1
        self._is_open = False
        if self._runs is not None:
            self._waited.add(self._runs)
            self._runs = None
            line = list(self._line)
            self._line.clear()
            for one, handler in line:
                self.start(one, handler)
        elif self._line:
            self._open()

    async def _lane(self) -> None:
        me, line, turn = asyncio.current_task(), self._line, self._turn
        assert me is not None
        clean = contextvars.copy_context()
        asyncio.get_running_loop().call_soon(self._go_on)
        ends = time.monotonic() + SLICE_SECONDS
        known = _holders(me)
        while line:
            one, handler = line.popleft()
            one.task, self._runs = me, handler
            await self._run(one)
            if turn != self._turn:  # it has waited
                return
            one.task = self._runs = None
            if me.cancelling() or _holders(me) != known or time.monotonic() > ends or not _is_still(clean):
                return


def _holders(task: "asyncio.Task[None]") -> tuple[int, int]:
    """How many hold the task, strongly and weakly."""
    return sys.getrefcount(task), getweakrefcount(task)


def _is_still(clean: contextvars.Context) -> bool:
    """Whether the context is what it was."""
    try:
        return contextvars.copy_context() == clean
    except Exception:  # two values that cannot be compared are not the same
        return False
