"""The application and the ledgers that a command works on, opened for as long as it does."""

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from redrive.app import Redrive
from redrive.cli.app_path import load_app
from redrive.cli.where import Where
from redrive.core.table import TASKS
from redrive.errors import SettingsError, UsageError
from redrive.lane import Lane
from redrive.ports import Actor
from redrive.stores.port import NO_TASKS, Store
from redrive.wiring import attach_found, check_settings, store_url

R = TypeVar("R")


def os_user() -> str:
    """Who uses the command line."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return f"uid {os.getuid()}"


def person() -> Actor:
    """Who uses the command line."""
    return Actor(name=os_user())


def choose_app(database: str | None, app: str | None, systems: Iterable[str] = ()) -> Redrive:
    """The application that a command works on: the one that `--app` names, or a plain one on the database.

    A setting that is wrong is said here, whether or not the command gets as far as using it.
    """
    if database is not None and app is not None:
        raise UsageError("give either --database or --app, which brings its own database")
    settings = check_settings(systems)
    return load_app(app) if app is not None else Redrive(store_url(settings) if database is None else database)


def _with_app(work: Callable[[Redrive], Awaitable[R]], database: str | None, app: str | None, *, create: bool) -> R:
    """Do something with the application, and close it. A SQLite file that does not exist is an error unless it may be created here."""
    chosen = choose_app(database, app)
    if not create:
        require_file(chosen.store)

    async def closing() -> R:
        try:
            return await work(chosen)
        finally:
            await chosen.close()

    return asyncio.run(closing())


def on_store(
    work: Callable[[Redrive], Awaitable[R]], database: str | None, app: str | None, *, create: bool = False
) -> R:
    """Do something with the application while it is open."""

    async def opened(chosen: Redrive) -> R:
        return await work(await chosen.open())

    return _with_app(opened, database, app, create=create)


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The lanes that a command looks at: the one that was named, or all of the database. And what it cannot look at, and why."""

    lanes: list[Lane]
    unseen: dict[str, str]
    app: Redrive


def on_ledgers(work: Callable[[Ledgers], Awaitable[R]], where: Where, *, create: bool = False) -> R:
    """Do something with ledgers while they are open: redrive's own, those of its systems, and with `--app` those that it adopted."""

    async def opened(chosen: Redrive) -> R:
        return await work(await _open_ledgers(chosen, where.lane))

    return _with_app(opened, where.database, where.app, create=create)


async def _open_ledgers(app: Redrive, lane: str | None) -> Ledgers:
    unseen = await attach_found(app)
    await app.open()
    if lane is not None:
        return Ledgers([choose_lane(app, lane)], {}, app)
    # A system may count things that are not tasks, such as events, under a name of its own.
    known = {*app.lanes, *(one.counted_as for one in app.lanes.values())}
    for name in await app.store.figures.ledgers():
        if name not in known:
            unseen[name] = "only the application knows how to read it: --app MODULE:APP"
    return Ledgers(list(app.lanes.values()), unseen, app)


def require_file(store: Store) -> None:
    """Raise unless the file of a SQLite database is there: looking must not make an empty one in the wrong folder."""
    if store.file is not None and not store.file.exists():
        raise SettingsError(
            f"there is no database file {store.file}: run this where the service runs, name it with --database, "
            "or make it with `redrive migrate`"
        )


def choose_lane(app: Redrive, name: str) -> Lane:
    """The lane with this name."""
    if name == TASKS.name and not app.store.keeps_tasks:
        raise UsageError(NO_TASKS)
    if name not in app.lanes:
        there = ", ".join(app.lanes)
        raise UsageError(f"there is no lane {name!r}: the application has {there}; adopted tables need --app")
    return app.lanes[name]
