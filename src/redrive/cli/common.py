"""What all commands share: options, output, errors, and the store that they work on."""

import asyncio
import json
import os
import pwd
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, TypeVar

import structlog
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text
from sqlalchemy.exc import DBAPIError
from typer.core import TyperGroup

from redrive._version import __version__
from redrive.app import Redrive
from redrive.cli.app_path import load_app
from redrive.core.durations import format_duration, parse_duration
from redrive.core.failure import redact
from redrive.core.table import TASKS
from redrive.core.visible import visible, visible_json
from redrive.errors import RedriveError, SettingsError, TableError, UsageError
from redrive.lane import Lane
from redrive.observe import logs
from redrive.ports import ORIGIN, Actor, Page
from redrive.settings import SYSTEMS, Settings, read_systems
from redrive.stores.port import NO_TASKS, Store
from redrive.wiring import attach_found, check_settings, store_url

R = TypeVar("R")

PROBLEM = 1
USAGE = 2


class ClearErrors(TyperGroup):
    """A group whose commands end with one clear line where redrive or its database raised an error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; our errors become a line on stderr and an exit code."""
        structlog.reset_defaults()  # until a command has set up its log, people are spoken to
        origin = ORIGIN.set(f"command line on {socket.gethostname()}")
        try:
            return super().invoke(ctx)
        except TableError as error:
            complain(str(error))
            raise typer.Exit(PROBLEM) from None
        except RedriveError as error:
            complain(str(error))
            raise typer.Exit(USAGE if isinstance(error, UsageError) else PROBLEM) from None
        except DBAPIError as error:
            complain(f"the database refused: {str(error.orig or error).splitlines()[0]}")
            raise typer.Exit(PROBLEM) from None
        finally:
            ORIGIN.reset(origin)


# --- output ---------------------------------------------------------------------------------------------------------


class SafeConsole(Console):
    """A console on which text of strangers is only text: whatever is printed, and however."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """See `Console.render`. Styles and controls of our own are not in the text of a segment."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def out() -> Console:
    """Where data goes. Made at each use, so that it follows a redirected stdout."""
    return SafeConsole(file=sys.stdout, highlight=False)


def err() -> Console:
    """Where everything else goes."""
    return SafeConsole(file=sys.stderr, highlight=False, soft_wrap=True)


def complain(message: str) -> None:
    """One clear line on stderr."""
    _print(f"[bold red]redrive:[/] {escape(redact(message))}", "error")


def say(message: str) -> None:
    """A line for people, with markup, on stderr."""
    _print(message, "info")


def _print(message: str, level: str) -> None:
    """Where the log is JSON, one object for each line, as collectors of logs expect of all that a process prints."""
    if not logs.is_json():
        err().print(message)
        return
    for line in Text.from_markup(message).plain.splitlines():
        if line.strip():
            sys.stderr.write(logs.said_json(line.strip(), level) + "\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """One JSON document on stdout, and nothing else there."""
    sys.stdout.write(visible_json(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")


def os_user() -> str:
    """Who uses the command line."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return f"uid {os.getuid()}"


def person() -> Actor:
    """Who uses the command line."""
    return Actor(name=os_user())


def when(instant: datetime | None, *, now: datetime | None = None) -> str:
    """An instant for people: `in 5s`, `2m 3s ago`."""
    if instant is None:
        return "–"
    span = instant - (now or datetime.now(UTC))
    if abs(span) < timedelta(seconds=1):
        return "now"
    whole = timedelta(seconds=round(abs(span).total_seconds()))
    return f"in {format_duration(whole)}" if span > timedelta(0) else f"{format_duration(whole)} ago"


def exactly(instant: datetime | None) -> str:
    """An instant in UTC, to the second."""
    return "–" if instant is None else instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


# --- options --------------------------------------------------------------------------------------------------------


def as_duration(text: str) -> timedelta:
    """A span of time given as an option; a wrong one is a usage error that names the option."""
    try:
        return parse_duration(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None


def duration_option(name: str, help: str) -> Any:
    """An option that takes a span of time."""
    return typer.Option(name, help=f"{help} Seconds or a unit: 90, 250ms, 5s, 2m.", parser=as_duration, metavar="SPAN")


def version_option(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,  # noqa: FBT002
) -> None:
    """Durable retries: run workers, look at tasks, bring dead ones back."""
    if version:
        sys.stdout.write(f"redrive {__version__}\n")
        raise typer.Exit


AppOption = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="Your application: its database, lanes and policies are used."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="The database; by default DATABASE_URL or sqlite:///redrive.db."),
]
LaneOption = Annotated[
    str | None,
    typer.Option(
        "--lane", metavar="TABLE", help="One table, such as redrive_task or one that the application adopted."
    ),
]
SystemsOption = Annotated[
    str | None,
    typer.Option(
        "--systems",
        metavar="NAMES",
        help=f"Systems, with commas between them: {', '.join(SYSTEMS)}, or all; by default REDRIVE_SYSTEMS.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def named_systems(given: str | None, settings: Settings) -> tuple[str, ...]:
    """The systems that `--systems` names; without it those of the settings."""
    try:
        return settings.redrive_systems if given is None else read_systems(given)
    except ValueError as error:
        raise UsageError(f"--systems {given}: {error}") from None


# --- the store ------------------------------------------------------------------------------------------------------


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run a command's asynchronous part."""
    return asyncio.run(work)


def choose_app(database: str | None, app: str | None, systems: Iterable[str] = ()) -> Redrive:
    """The application that a command works on: the one that `--app` names, or a plain one on the database.

    A setting that is wrong is said here, whether or not the command gets as far as using it.
    """
    if database is not None and app is not None:
        raise UsageError("give either --database or --app, which brings its own database")
    settings = check_settings(systems)
    return load_app(app) if app is not None else Redrive(store_url(settings) if database is None else database)


@asynccontextmanager
async def opened_store(database: str | None, app: str | None = None, *, create: bool = False) -> AsyncIterator[Redrive]:
    """The application, open. A SQLite file that does not exist is an error unless it may be created here."""
    chosen = choose_app(database, app)
    if not create:
        require_file(chosen.store)
    try:
        yield await chosen.open()
    finally:
        await chosen.close()


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The lanes that a command looks at: the one that was named, or all of the database. And what it cannot look at, and why."""

    lanes: list[Lane]
    unseen: dict[str, str]
    app: Redrive


@dataclass(frozen=True, slots=True)
class LedgersListed(Generic[R]):
    """A page over several ledgers, and where the next one begins: at `LEDGER:` or behind `LEDGER:CURSOR`."""

    items: list[tuple[str, R]]
    """Each with its ledger."""
    lanes: list[Lane]
    """Those that were asked."""
    after: str | None
    unseen: dict[str, str]


async def list_ledgers(
    ledgers: Ledgers, ask: Callable[[Lane, str | None, int], Awaitable[Page[R]]], *, after: str | None, limit: int
) -> LedgersListed[R]:
    """Ask one ledger after the other for a page, until there are so many items; a ledger that cannot be asked so is left out."""
    lanes, cursor = _begin(ledgers.lanes, after)
    found: LedgersListed[R] = LedgersListed([], [], None, dict(ledgers.unseen))
    for lane in lanes:
        left = limit - len(found.items)
        try:
            page = await ask(lane, cursor, max(1, left))
        except UsageError as error:
            if len(ledgers.lanes) == 1 or cursor is not None:
                raise
            found.unseen[lane.name] = str(error)
            continue
        cursor = None
        if page.items and not left:
            return replace(found, after=f"{lane.name}:")
        found.lanes.append(lane)
        found.items.extend((lane.name, item) for item in page.items)
        if page.cursor is not None:
            return replace(found, after=f"{lane.name}:{page.cursor}")
    return found


def _begin(lanes: list[Lane], after: str | None) -> tuple[list[Lane], str | None]:
    """The lanes that are still to be listed, and behind which item of the first of them."""
    if after is None:
        return lanes, None
    name, colon, cursor = after.partition(":")
    for number, lane in enumerate(lanes):
        if colon and lane.name == name:
            return lanes[number:], cursor or None
    raise UsageError(f"--after {after}: no page ended there; take what the last one said")


@asynccontextmanager
async def opened_ledgers(
    database: str | None, app: str | None, lane: str | None, *, create: bool = False
) -> AsyncIterator[Ledgers]:
    """The ledgers of a database, open: redrive's own, those of its systems, and with `--app` those that it adopted."""
    chosen = choose_app(database, app)
    if not create:
        require_file(chosen.store)
    try:
        unseen = await attach_found(chosen)
        await chosen.open()
        if lane is not None:
            yield Ledgers([choose_lane(chosen, lane)], {}, chosen)
            return
        # A system may count what are no tasks, such as events, under a name of its own.
        known = {*chosen.lanes, *(one.counted_as for one in chosen.lanes.values())}
        for name in await chosen.store.figures.ledgers():
            if name not in known:
                unseen[name] = "only the application knows how to read it: --app MODULE:APP"
        yield Ledgers(list(chosen.lanes.values()), unseen, chosen)
    finally:
        await chosen.close()


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
