"""A service on a real port, in this process, so that a test can look into its database while a browser looks at its pages."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from redrive import Fixed, PermanentError, Policy, Redrive, Task, TransientError, hours, minutes, seconds
from redrive.operator.sql.census import SqlCensus
from redrive.running import Service
from redrive.settings import Settings
from redrive.web.app import make_web

QUICK = Policy(Fixed(seconds(0.02)), retries=2, name="quick")
PATIENT = Policy(Fixed(minutes(30)), retries=3, name="patient")


@dataclass
class Site:
    """A running service, where it listens, and keys for it."""

    app: Redrive
    service: Service
    url: str
    keys: dict[str, str] = field(default_factory=dict)
    heals: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: `broken.*` works from now on."""

    async def count(self) -> None:
        """Count now what would be counted within seconds."""
        for lane in self.app.lanes.values():
            while not await SqlCensus(await lane.ledger()).take():  # somebody else was counting
                await asyncio.sleep(0.02)

    async def until(self, holds: Callable[[], object], *, within: float = 150) -> None:
        """Wait until something asked of the database holds."""
        async with asyncio.timeout(within):
            while not await holds():
                await asyncio.sleep(0.02)


def application(url: str, site: "list[Site]") -> Redrive:
    """Handlers for every ending."""
    app = Redrive(url, durable=False)

    @app.handler("mail", policy=QUICK)
    async def mail(task: Task) -> None:
        pass

    @app.handler("flaky.*", policy=QUICK)
    async def flaky(task: Task, context) -> None:
        if context.attempt == 1:
            raise TransientError("503 from pay.example")

    @app.handler("slow", policy=PATIENT)
    async def slow(task: Task) -> None:
        raise TransientError("crm.example refused the connection")

    @app.handler("broken.*", policy=QUICK)
    async def broken(task: Task) -> None:
        if not site[0].heals.is_set():
            raise PermanentError(task.payload["error"] if isinstance(task.payload, dict) else "cannot be digested")

    return app


@asynccontextmanager
async def serving(folder: Path, *, join: Callable[[Redrive], object] | None = None) -> AsyncIterator[Site]:
    """The service, until the block ends; `join` puts systems on its application."""
    sites: list[Site] = []
    app = application(f"sqlite:///{folder / 'site.db'}", sites)
    if join is not None:
        join(app)
    service = Service(app, Settings(_env_file=None))
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = Server(
        uvicorn.Config(
            make_web(service), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
    )
    serve = asyncio.create_task(server.serve(sockets=[listening]))
    work = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(150):
            await service.opened.wait()
            await service.workers.ready.wait()
        site = Site(app, service, f"http://127.0.0.1:{listening.getsockname()[1]}")
        sites.append(site)
        for role in ("viewer", "operator", "admin"):
            site.keys[role] = (await service.keys.create(f"{role} ada", [role])).secret
        site.keys["events"] = (await service.keys.create("machine", ["events:write"])).secret
        yield site
    finally:
        service.stop()
        server.should_exit = True
        await asyncio.gather(work, serve)
        await app.close()
        listening.close()


class Server(uvicorn.Server):
    """Leaves the signals alone, and no connection behind."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield

    async def shutdown(self, sockets=None):
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # of a browser that is slow to hang up
            connection.transport.abort()
        await asyncio.sleep(0)


async def fill(site: Site) -> None:
    """Some of everything: done, retried, dead of two causes, waiting with a failure behind it, far away, cancelled."""
    app = site.app
    for number in range(12):
        await app.add("mail", {"to": f"ada-{number}@example.org", "password": "hunter2"}, key=f"mail-{number}")
    for number in range(3):
        await app.add("flaky.payment", {"order": number}, key=f"flaky-{number}")
        await app.add("broken.import", {"error": f"row {number} of 'orders.csv' has no amount"}, key=f"import-{number}")
    await app.add("broken.card", {"error": "card 4242 was declined"}, key="card-1")
    await app.add("slow", {"customer": 7, "token": "secret-token"}, key="slow-1")
    for number in range(3):
        await app.add("mail", key=f"later-{number}", delay=hours(2))
    await app.add("unheard.of", key="no-handler")

    async def settled() -> bool:
        states = [(await app.tasks.get(key)).state for key in ("mail-11", "flaky-2", "import-2", "card-1")]
        return states == ["done", "done", "dead", "dead"] and (await app.tasks.get("slow-1")).failures == 1

    await site.until(settled)
    await site.count()
