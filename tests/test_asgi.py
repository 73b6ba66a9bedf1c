"""An application of redrive lives and works with the web framework around it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from litestar import Litestar, get
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from redrive import Redrive
from redrive.asgi import Adder, lifespan
from redrive.errors import HandlerError
from redrive.testing import temporary_url


async def test_it_works_in_the_process_and_stops_with_it() -> None:
    """With `work` a task is run; at the end the workers are gone."""
    app, ran = Redrive(temporary_url()), asyncio.Event()

    @app.handler
    async def note(_task: Any) -> None:
        ran.set()

    async with lifespan(app, work=True)(None):
        await app.add(note)
        async with asyncio.timeout(60):
            await ran.wait()


async def test_it_only_opens_unless_told_to_work() -> None:
    """Without `work` the task waits for a worker elsewhere; a lifespan of the host's own is around it and gives its state."""
    app, order = Redrive(temporary_url()), list[str]()

    @app.handler
    async def note(_task: Any) -> None:
        raise AssertionError("not here")

    @asynccontextmanager
    async def own(host: str) -> AsyncIterator[dict[str, str]]:
        order.append(f"{host} begins")
        yield {"state": "mine"}
        order.append("ends")

    async with lifespan(app, around=own)("host") as state:
        await app.add(note, key="a")
        task = await app.tasks.get("a")
    assert task is not None
    assert (task.state, state, order) == ("waiting", {"state": "mine"}, ["host begins", "ends"])


async def test_workers_that_break_are_heard_of(caplog: pytest.LogCaptureFixture) -> None:
    """At once in the log, and as an error when the host ends."""
    with caplog.at_level(logging.CRITICAL, "redrive"), pytest.raises(HandlerError, match="no handlers"):
        async with lifespan(Redrive(temporary_url()), work=True)(None):
            for _ in range(1000):
                await asyncio.sleep(0)
                if caplog.records:
                    break
    assert "workers in this process have stopped" in caplog.text


async def test_litestar_has_it_all() -> None:
    """Its lifespan, and a dependency that adds in the session of the request."""
    url = temporary_url()
    app = Redrive(url)
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))

    async def session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as made:
            yield made

    async def add(session: NamedDependency[AsyncSession]) -> Adder:
        return Adder(app, session)

    @get("/{commit:int}", dependencies={"session": Provide(session), "add": Provide(add)})
    async def order(commit: FromPath[int], session: NamedDependency[AsyncSession], add: NamedDependency[Adder]) -> None:
        await add("send_invoice", {"order": 7}, key=f"invoice-{commit}")
        if commit:
            await session.commit()

    host = Litestar([order], lifespan=[lifespan(app)])
    async with (
        host.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://shop") as client,
    ):
        for commit in (0, 1):
            assert (await client.get(f"/{commit}")).status_code == 200
        found = [await app.tasks.get(f"invoice-{commit}") is not None for commit in (0, 1)]
    await engine.dispose()
    assert found == [False, True]
