"""A plain function in a thread, with a connection whose driver lives in the event loop.

The function's own code runs in the thread, however long it takes. What it asks of the connection is carried over to the loop and
waited for, one question after the other: SQLAlchemy hands each awaitable of a driver to whoever started the function, and that
is here a greenlet of the thread instead of one of the loop.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only, greenlet_spawn

R = TypeVar("R")


class _Carried(greenlet):  # type: ignore[misc]
    __sqlalchemy_greenlet_provider__ = True

    def __init__(self, run: Callable[..., Any]) -> None:
        driver = getcurrent()
        super().__init__(run, driver)
        self.gr_context = driver.gr_context


def call_beside(loop: asyncio.AbstractEventLoop, call: Callable[[Connection], R], connection: Connection) -> R:
    """Call a function with a connection of the loop, from a thread that is not the loop's."""
    inside = _Carried(call)
    answer: Any = inside.switch(connection)
    while not inside.dead:
        try:
            value = asyncio.run_coroutine_threadsafe(_awaited(answer), loop).result()
        except BaseException:  # whatever it is, the function gets it where it asked
            answer = inside.throw(*sys.exc_info())
        else:
            answer = inside.switch(value)
    result: R = answer
    return result


def terminate_on_the_loop(engine: AsyncEngine) -> None:
    """Let a connection that a function beside the loop gives up be closed on the loop; elsewhere no driver can close it."""
    terminate = engine.dialect.do_terminate

    def do_terminate(connection: Any) -> None:
        if isinstance(getcurrent(), _Carried):
            await_only(greenlet_spawn(terminate, connection))
        else:
            terminate(connection)

    engine.dialect.do_terminate = do_terminate  # type: ignore[assignment,method-assign]


async def _awaited(asked: Awaitable[Any]) -> Any:
    return await asked
