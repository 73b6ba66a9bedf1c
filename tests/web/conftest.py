"""A service over HTTP without a port: httpx calls the application itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from redrive import Redrive, Task
from redrive.running import Service
from redrive.settings import Settings
from redrive.web.app import make_web


@pytest.fixture
def app(url: str) -> Redrive:
    """An application with one handler."""
    made = Redrive(url, durable=False)

    @made.handler("mail")
    async def mail(task: Task) -> None:
        if task.payload == "fail":
            raise ValueError("no <b>mail</b> today")

    return made


def client_of(service: Service, *, client: str = "127.0.0.1", base_url: str = "http://127.0.0.1") -> httpx.AsyncClient:
    """A client at some address."""
    transport = httpx.ASGITransport(make_web(service), client=(client, 12345), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base_url)


@asynccontextmanager
async def running(app: Redrive) -> AsyncIterator[Service]:
    """The service, open and at work."""
    service = Service(app, Settings(_env_file=None))
    work = asyncio.create_task(service.run())
    opened = asyncio.create_task(service.opened.wait())
    try:
        await asyncio.wait({work, opened}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        if service.workers is not None:
            await service.workers.ready.wait()
        yield service
    finally:
        opened.cancel()
        service.stop()
        await work
        await app.close()


@pytest.fixture
async def service(app: Redrive) -> AsyncIterator[Service]:
    """A running service."""
    async with running(app) as made:
        yield made


@pytest.fixture
async def local(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A client on the same machine."""
    async with client_of(service) as client:
        yield client


@pytest.fixture
async def remote(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A client on another machine."""
    async with client_of(service, client="192.0.2.7", base_url="http://redrive.example") as client:
        yield client
