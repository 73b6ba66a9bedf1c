"""For web frameworks with a lifespan (FastAPI, Starlette, Litestar): the application opened with theirs, working in it or not.

web = FastAPI(lifespan=lifespan(app))               # others work: `redrive worker shop:app`
web = Starlette(lifespan=lifespan(app, work=True))  # this process works too
web = Litestar([...], lifespan=[lifespan(app)])
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack, overload

from redrive.app import Redrive, WorkerSettings
from redrive.core.task import P
from redrive.engine.handlers import HandlerFunction
from redrive.lane import Added, AddOptions, Lane
from redrive.ports import Within

if TYPE_CHECKING:  # it needs the extra `service`
    from redrive.dashboard import Dashboard

__all__ = ["Adder", "lifespan"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]

_log = logging.getLogger("redrive")


def lifespan(
    app: Redrive,
    *,
    work: bool | WorkerSettings = False,
    around: Lifespan | None = None,
    dashboard: "Dashboard | None" = None,
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """A lifespan that opens the application, and closes it at the end.

    With `work` the handlers run in this process too, and stop gracefully before it closes. `around` is a lifespan of your own, which
    begins before and ends after. A `dashboard` that you have mounted shows the application as long as it is open.
    """

    @asynccontextmanager
    async def opened(host: Any) -> AsyncIterator[Any]:
        if around is None:
            async with _at_work(app, work, dashboard):
                yield
        else:
            async with around(host) as state, _at_work(app, work, dashboard):
                yield state

    return opened


@asynccontextmanager
async def _at_work(app: Redrive, work: bool | WorkerSettings, dashboard: "Dashboard | None") -> AsyncIterator[None]:  # noqa: FBT001
    if dashboard is not None:
        async with dashboard.shown(app, work) as running:
            running.add_done_callback(_said)
            yield
        return
    async with app:
        if work is False:
            yield
            return
        workers = app.workers(None if work is True else work)
        running = asyncio.create_task(workers.run())
        running.add_done_callback(_said)
        try:
            yield
        finally:
            workers.stop()
            await running


def _said(running: "asyncio.Task[None]") -> None:
    """Workers that break are heard of at once, and not when the host ends."""
    if not running.cancelled() and (error := running.exception()) is not None:
        _log.critical("the workers in this process have stopped", exc_info=error)


class Adder:
    """Adds tasks in one transaction: that of a request. The task is there if and only if the request's session commits.

    add = Adder(app, session)
    await add("send_invoice", {"order": 7}, key="invoice-7")
    """

    def __init__(self, app: Redrive | Lane, within: Within) -> None:
        self._lane = app if isinstance(app, Lane) else app.tasks
        self._within = within

    @overload
    async def __call__(self, kind: HandlerFunction[P], payload: P, **how: Unpack[AddOptions]) -> Added: ...

    @overload
    async def __call__(
        self, kind: str | Callable[..., Any], payload: Any = None, **how: Unpack[AddOptions]
    ) -> Added: ...

    async def __call__(self, kind: str | Callable[..., Any], payload: Any = None, **how: Unpack[AddOptions]) -> Added:
        """As `Lane.add`, in the session."""
        return await self._lane.add(kind, payload, within=self._within, **how)
