"""Methods that are written as functions of a connection and called as coroutines; the decorator says how the database runs them.

    class Keys(OnDatabase):
        @reads
        def get(self, connection: Connection, id: str) -> ApiKey | None: ...

    key = await Keys(database).get("3f9a61c0d2b4")

What several methods do in one transaction is a plain function that each of them calls with its connection.
"""

from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial, update_wrapper
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from redrive.ledgers.sql.database import Database
from redrive.ports import ORIGIN

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="OnDatabase")

Written = Callable[Concatenate[S, Connection, P], R]
Called = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]


class OnDatabase:
    """Whoever has such methods. What must be open before, such as an application, is opened at each call."""

    def __init__(self, database: Database, *, open: Callable[[], Awaitable[object]] | None = None) -> None:
        self._database = database
        self._open = open

    async def _opened(self) -> Database:
        if self._open is not None:
            await self._open()
        return self._database


def reads(method: Written[S, P, R]) -> Called[S, P, R]:
    """It only reads."""
    return _called(method, lambda database: database.read)


def writes(method: Written[S, P, R]) -> Called[S, P, R]:
    """It runs in a transaction of its own: when the call returns, what it wrote is durable."""
    return _called(method, lambda database: database.write)


def looks(within: timedelta) -> Callable[[Written[S, P, R]], Called[S, P, R]]:
    """It only reads, for somebody who waits: `TooSlowError` if a statement takes longer."""
    return lambda method: _called(method, lambda database: partial(database.look, within))


def _from(origin: str, method: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Call a method that may run in another thread, where nobody knows from where its caller acts."""
    token = ORIGIN.set(origin)
    try:
        return method(*args, **kwargs)
    finally:
        ORIGIN.reset(token)


def _called(method: Written[S, P, R], way: Callable[[Database], Callable[..., Awaitable[Any]]]) -> Called[S, P, R]:
    """The method with its name, its words and its parameters, but the connection."""

    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = await way(await self._opened())(partial(_from, ORIGIN.get(), method, self), *args, **kwargs)
        return answer

    update_wrapper(run, method)
    written = signature(method)
    first, _, *others = written.parameters.values()
    run.__signature__ = written.replace(parameters=[first, *others])  # type: ignore[attr-defined]
    return run
