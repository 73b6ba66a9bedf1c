"""For Flask: handlers that run in the application's context, tasks added in its session, and `flask redrive`.

jobs = FlaskRedrive()

@jobs.handler(retries=3)
def send_invoice(task): ...

def create_app():
    app = Flask(__name__)
    app.config["REDRIVE_URL"] = "sqlite:///shop.db"
    jobs.init_app(app)
    return app
"""

import asyncio
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, Unpack, overload

from redrive.app import DEFAULT_URL, Redrive
from redrive.errors import needs_extra
from redrive.lane import Added, AddOptions
from redrive.ports import Within

with needs_extra("redrive.flask", "flask"):
    import click
    from flask import Flask, current_app
    from flask.cli import AppGroup

__all__ = ["FlaskRedrive"]

F = TypeVar("F", bound=Callable[..., Any])
EXTENSION = "redrive"


class FlaskRedrive:
    """The extension: handlers are named once, and each application that is made gets a `Redrive` of its own with them."""

    def __init__(self, app: Flask | None = None) -> None:
        self._handlers: list[tuple[Callable[..., Any], str | None, dict[str, Any]]] = []
        self._apps: list[Flask] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give an application its tasks, on the database that its config names as `REDRIVE_URL`."""
        made = Redrive(app.config.setdefault("REDRIVE_URL", DEFAULT_URL))
        app.extensions[EXTENSION] = made
        for function, kind, how in self._handlers:
            _register(app, made, function, kind, how)
        self._apps.append(app)
        app.cli.add_command(_commands(made))

    @property
    def app(self) -> Redrive:
        """The `Redrive` of the application whose context is open: `current_app`'s."""
        found: Redrive = current_app.extensions[EXTENSION]
        return found

    @overload
    def handler(self, kind: F) -> F: ...

    @overload
    def handler(self, kind: str | None = None, **how: Any) -> Callable[[F], F]: ...

    def handler(self, kind: Any = None, **how: Any) -> Any:
        """As `Redrive.handler`; the function runs in the context of the application."""
        if callable(kind):
            return self.handler()(kind)

        def register(function: F) -> F:
            for app in self._apps:
                _register(app, app.extensions[EXTENSION], function, kind, how)
            self._handlers.append((function, kind, how))
            return function

        return register

    def add(
        self,
        kind: str | Callable[..., Any],
        payload: Any = None,
        *,
        within: Within | None = None,
        **how: Unpack[AddOptions],
    ) -> Added:
        """As `Redrive.add_sync`: `within=db.session()` stores it if and only if that session commits."""
        return self.app.add_sync(kind, payload, within=within, **how)


def _register(
    app: Flask, redrive: Redrive, function: Callable[..., Any], kind: str | None, how: dict[str, Any]
) -> None:
    redrive.handler(kind, **how)(_in_context(app, function))


def _in_context(app: Flask, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def called(*arguments: Any) -> Any:
            with app.app_context():
                return await function(*arguments)
    else:

        @wraps(function)
        def called(*arguments: Any) -> Any:
            with app.app_context():
                return function(*arguments)

    return called


def _commands(redrive: Redrive) -> click.Group:
    group = AppGroup("redrive", help="Durable retries.")

    @group.command("worker", with_appcontext=False)
    @click.option("--concurrency", type=click.IntRange(1, 10_000), help="How many handlers run at once.")
    def worker(concurrency: int | None) -> None:
        """Run the handlers until SIGTERM or Ctrl-C."""
        from redrive.cli.worker import run_worker

        run_worker(redrive, concurrency=concurrency)

    @group.command("migrate", with_appcontext=False)
    def migrate() -> None:
        """Bring redrive's own tables to the version of this code."""
        asyncio.run(_migrate(redrive))

    return group


async def _migrate(redrive: Redrive) -> None:
    from redrive.ledgers.sql.migrate import migrate

    try:
        await redrive.database.open()
        _, now = await migrate(redrive.database)
        click.echo(f"redrive's tables: {', '.join(f'{name} {version}' for name, version in now.items())}")
    finally:
        await redrive.close()
