"""The service with a port, in a thread of this process with an event loop of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import uvicorn

from redrive import Redrive
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.triggers import Triggers, TriggerSettings
from redrive.web.app import make_web

T = TypeVar("T")


class Serving:
    """Serves until the block ends."""

    def __init__(self, url: str, settings: TriggerSettings, *, works: bool = True) -> None:
        self._url = url
        self._settings = settings
        self._works = works
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="serving", daemon=True)
        self.base_url = ""
        self.broken: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(120), "the service did not start"
        if self.broken is not None:
            raise self.broken
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.broken is not None and error is None:
            raise self.broken

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something in the service's own loop."""
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(30)

    def key(self, *scopes: str, user: str = "ada") -> str:
        """A new key."""
        return self.call(lambda: self.service.keys.create(user, scopes)).secret

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.broken = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = Redrive(self._url, durable=False)
        self.triggers = Triggers(app, self._settings)
        self.service = Service(app, Settings(_env_file=None))
        web = make_web(self.service)
        server = uvicorn.Server(uvicorn.Config(web, port=0, log_config=None, access_log=False, lifespan="off"))
        server.capture_signals = _no_signals  # type: ignore[method-assign]
        running = asyncio.create_task(self.service.run())
        serving = asyncio.create_task(server.serve())
        await self.service.opened.wait()
        while not server.started:
            await asyncio.sleep(0.01)
        self.base_url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.should_exit = True
        await serving
        self.service.stop()
        await running
        await app.close()


class _no_signals:  # noqa: N801 - stands for a context manager of that kind
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
