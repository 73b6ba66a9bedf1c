"""What commands print: data on stdout, words and errors on stderr, instants as people read them."""

import json
import socket
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import DBAPIError
from typer.core import TyperGroup

from redrive.core.durations import format_duration
from redrive.core.failure import redact
from redrive.core.task import Deed
from redrive.core.visible import visible, visible_json
from redrive.errors import RedriveError, TableError, UsageError
from redrive.observe import logs
from redrive.ports import ORIGIN

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
        except RedriveError as error:
            complain(str(error))
            misused = isinstance(error, UsageError) and not isinstance(error, TableError)
            raise typer.Exit(USAGE if misused else PROBLEM) from None
        except DBAPIError as error:
            complain(f"the database refused: {str(error.orig or error).splitlines()[0]}")
            raise typer.Exit(PROBLEM) from None
        finally:
            ORIGIN.reset(origin)


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


def print_rows(rows: Iterable[tuple[str, str | None]]) -> None:
    """What is known of one thing, a line for each name; what is None is left out. The values may hold markup."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            grid.add_row(name, value)
    out().print(grid)


def print_deeds(deeds: Iterable[Deed]) -> None:
    """Who acted on something, and why."""
    console = out()
    for number, deed in enumerate(deeds):
        if not number:
            console.print("\n[bold]who acted on it[/]")
        why = f": {deed.reason}" if deed.reason else ""
        console.print(f"  {exactly(deed.at)} {deed.act} by {escape(deed.actor + why)}")
