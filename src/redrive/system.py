"""What the five systems have in common: each stands on an application and brings its own lanes, routes and loops.

A system is made with the application that it belongs to, `Webhooks(app)`, and attaches itself to it: its tables are then
migrated and checked with the application's own, its lanes are worked off with the others, and `redrive serve` mounts its
routes, runs its loops and shows its metrics. Everything here has a default that does nothing.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from redrive.operator.alert_rules import Alarm

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Attachable(Protocol):
    """What a system asks of its application when it attaches itself."""

    def attach(self, system: "System") -> None:
        """Take the system in; a second one of its name is refused."""
        ...


class System:
    """One system on an application."""

    name: ClassVar[str]
    """Its name everywhere: in log lines, in metrics, as the branch of its migrations."""
    audited: ClassVar[Sequence[str]] = ()
    """What else people act on than tasks, as the audit log calls it."""

    def __init__(self, app: Attachable) -> None:
        app.attach(self)

    def routes(self) -> Sequence[Any]:
        """Its FastAPI routers. FastAPI is imported only here, so that a worker does not need it.

        A plain Starlette `Route` may be among them, for what is asked thousands of times a second: those are looked at first.
        """
        return ()

    def panel(self) -> Any:
        """Its page in the dashboard (`redrive.http.panel.Panel`), if it has one."""
        return None

    def error_styles(self) -> Sequence[Any]:
        """How errors of the framework are spelled under its routes (`redrive.http.errors.ErrorStyle`), if not the common way."""
        return ()

    def prepare(self) -> None:
        """Register the handlers that it brings itself, knowing those of the user; called before workers look for them.

        May be called twice.
        """

    def measure(self, registry: "CollectorRegistry") -> None:
        """Register its metrics. Called once, before the service runs."""

    async def refresh(self) -> None:
        """Set gauges that must be asked for. Called when somebody scrapes, at most every few seconds."""

    async def checks(self) -> Mapping[str, bool]:
        """What it depends on besides the database, by name, and whether that is well; shown by `/health`."""
        return {}

    async def alarms(self) -> Sequence[Alarm]:
        """What is wrong here now and a person must hear of, such as an endpoint that was disabled. Asked every few seconds.

        Each is told once when it is first there, and once when it is gone.
        """
        return ()

    @property
    def ready(self) -> bool:
        """Whether it has started; asked by `/ready`."""
        return True

    async def run(self, stopped: asyncio.Event) -> None:
        """Its own loops, from when the store is open until `stopped` is set. Raising stops the service.

        The workers stop at the same time and take up to their grace: what handlers need must outlive this, until `close`.
        """
        await stopped.wait()

    async def close(self) -> None:
        """Let go of what it holds; called when the application closes, after its workers have ended. May be called twice."""
