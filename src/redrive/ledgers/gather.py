"""Many callers, one batch: calls that come in while a batch is under way share the next one.

There is no timer and no added wait: a lone call goes out at once, and the busier it gets the larger the batches grow.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from redrive.errors import LedgerAwayError
from redrive.ledgers.own_transaction import step_out

T = TypeVar("T")
R = TypeVar("R")


class Gather(Generic[T, R]):
    """Gathers calls of many items into calls of `run`, which must return one result per item, in order."""

    def __init__(
        self,
        run: Callable[[Sequence[T]], Awaitable[list[R]]],
        *,
        items_max: int = 1000,
        at_once: int = 1,
        halved_from: int | None = None,
    ) -> None:
        """Of full batches, which would not grow any more, so many are under way `at_once`.

        Where more wait than `halved_from`, half of them are left for the next batch: while one half is stored, the loop answers the other.
        """
        self._run = run
        self._limits = _Limits(items_max, at_once, halved_from)
        self._calls: _Calls[T, R] | None = None

    async def __call__(self, items: Sequence[T]) -> list[R]:
        """The results for these items. An error is raised for the caller whose items it comes from, and for no other."""
        if not items:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[R]] = loop.create_future()
        calls = self._calls
        # Each loop gathers for itself: one that has ended, or that a forked process left to its parent, answers nobody.
        if calls is None or calls.loop is not loop:
            calls = self._calls = _Calls(loop, self._run, self._limits)
        calls.add(items, future)
        return await future


class _Limits(NamedTuple):
    items_max: int
    at_once: int
    halved_from: int | None

    def of(self, waiting: int) -> int:
        """How many items the next batch has at most, where so many wait."""
        if self.halved_from is None:
            return self.items_max
        return min(self.items_max, max(self.halved_from, waiting // 2))


class _Calls(Generic[T, R]):
    """The calls of one event loop that wait for the next batch."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Callable[[Sequence[T]], Awaitable[list[R]]],
        limits: _Limits,
    ) -> None:
        self.loop = loop
        self._pending: list[tuple[Sequence[T], asyncio.Future[list[R]]]] = []
        self._items = 0
        """How many wait."""
        self._flushers: set[asyncio.Task[None]] = set()
        self._run = run
        self._limits = limits

    def add(self, items: Sequence[T], future: asyncio.Future[list[R]]) -> None:
        """Have a call run with the next batch."""
        self._pending.append((items, future))
        self._items += len(items)
        if not self._flushers or (len(self._flushers) < self._limits.at_once and self._items >= self._limits.items_max):
            # A task of its own: a caller that is cancelled must not take the others' batch with it.
            self._flushers.add(asyncio.create_task(self._flush()))

    async def _flush(self) -> None:
        step_out()
        me = asyncio.current_task()
        assert me is not None
        try:
            while self._pending and (len(self._flushers) == 1 or self._items >= self._limits.items_max):
                await self._run_group(self._take())
        finally:
            self._flushers.discard(me)

    async def _run_group(self, group: list[tuple[Sequence[T], asyncio.Future[list[R]]]]) -> None:
        try:
            results = await self._run([item for items, _ in group for item in items])
        except LedgerAwayError as error:  # it is away for each of them: asking one by one would only add to the wait
            _fail(group, error)
        except Exception as error:
            if len(group) == 1:
                _fail(group, error)
                return
            for alone in group:
                await self._run_group([alone])
        except BaseException as error:  # every caller must hear of it, also of a cancellation
            _fail([*group, *self._pending], error)
            self._pending.clear()
            self._items = 0
            raise
        else:
            position = 0
            for part, future in group:
                if not future.done():
                    future.set_result(results[position : position + len(part)])
                position += len(part)

    def _take(self) -> list[tuple[Sequence[T], asyncio.Future[list[R]]]]:
        group: list[tuple[Sequence[T], asyncio.Future[list[R]]]] = []
        size, most = 0, self._limits.of(self._items)
        while self._pending and (not group or size + len(self._pending[0][0]) <= most):
            group.append(self._pending.pop(0))
            size += len(group[-1][0])
        self._items -= size
        return group


def _fail(group: Sequence[tuple[object, asyncio.Future[Any]]], error: BaseException) -> None:
    for _, future in group:
        if future.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            future.cancel()
        else:
            future.set_exception(error)
