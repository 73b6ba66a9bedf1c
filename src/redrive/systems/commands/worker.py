"""A worker of the bus in a program of its own: some domains, a policy, and a loop that stops gracefully."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from redrive.app import WorkerSettings
from redrive.errors import UsageError
from redrive.systems.commands.policy import RetryPolicy
from redrive.systems.commands.system import Commands
from redrive.systems.commands.values import check_domain


class CommandWorker:
    """Handles the commands of some domains, or of all, until it is told to stop.

        await CommandWorker(bus, "payments").run(concurrency=50)

    `redrive worker` and `redrive serve` handle the commands of an application too; this is for programs that start workers
    themselves, with a policy of their own.
    """

    def __init__(
        self, bus: Commands, domain: str | Iterable[str] | None = None, *, retry_policy: RetryPolicy | None = None
    ) -> None:
        self._bus = bus
        self._policy = retry_policy or bus.retry_policy
        given = [domain] if isinstance(domain, str) else domain
        self.domains = None if given is None else frozenset(check_domain(one) for one in given)
        self._stopped = asyncio.Event()
        self.ready = asyncio.Event()
        """Set when the worker has looked for work once."""

    def stop(self) -> None:
        """Take no more commands, let the running handlers finish, give back the rest; `run` then returns."""
        self._stopped.set()

    async def run(
        self, concurrency: int = 100, visibility_timeout: float = 30, *, grace: timedelta = timedelta(seconds=10)
    ) -> None:
        """Handle commands until `stop` is called or the calling task is cancelled; both are graceful.

        Up to `concurrency` handlers run at once. A command is hidden from others for `visibility_timeout` seconds, which
        are extended while its handler runs and the worker lives.
        """
        lane = self._bus.lane.with_own_handlers()
        for one in self._bus.handlers:
            if self.domains is None or one.domain in self.domains:
                self._bus.take(lane, one, self._policy)
        if not len(lane.handlers):
            asked = "" if self.domains is None else f" for {', '.join(sorted(self.domains))}"
            raise UsageError(f"there are no handlers{asked}: register one with @commands.handler(domain, command_type)")
        await self._bus.lane.ledger()  # opens the application, which may have to make the tables first
        lease, tune = timedelta(seconds=visibility_timeout), lane.tune
        lane.tune = lambda settings: replace(tune(settings) if tune else settings, lease=lease)
        workers = self._bus.app.workers(WorkerSettings(concurrency=concurrency, lease=lease, grace=grace), lanes=[lane])
        running = [
            asyncio.create_task(workers.run()),
            asyncio.create_task(self._bus.unhandled(lane, self._policy).run(self._stopped)),
            asyncio.create_task(self._stopped.wait()),
        ]
        readying = asyncio.create_task(self._tell_ready(workers.ready))
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopped.set()
            workers.stop()
            readying.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _tell_ready(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self.ready.set()
