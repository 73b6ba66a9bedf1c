"""Options that several commands take."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from redrive.core.durations import parse_duration
from redrive.errors import UsageError
from redrive.settings import SYSTEMS, Settings, read_systems


def as_duration(text: str) -> timedelta:
    """A span of time given as an option; a wrong one is a usage error that names the option."""
    try:
        return parse_duration(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None


def duration_option(name: str, help: str) -> Any:
    """An option that takes a span of time."""
    return typer.Option(name, help=f"{help} Seconds or a unit: 90, 250ms, 5s, 2m.", parser=as_duration, metavar="SPAN")


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
        help=f"Systems, separated by commas: {', '.join(SYSTEMS)}, or all; by default REDRIVE_SYSTEMS.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AfterOption = Annotated[
    str | None, typer.Option("--after", help="Continue after this cursor, which the last page printed.")
]
ByOption = Annotated[
    str | None, typer.Option("--by", help="Who does this; by default the name you are logged in with.")
]
KindOption = Annotated[str | None, typer.Option("--kind", help="Only tasks of this kind.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Only the task with this key.")]
ErrorOption = Annotated[str | None, typer.Option("--error", help="Only tasks whose last error contains this text.")]
CauseOption = Annotated[
    str | None, typer.Option("--cause", help="Only dead tasks with this failure cause, as grouped on the dashboard.")
]
OlderOption = Annotated[
    timedelta | None, duration_option("--older-than", "Only tasks that have not changed for this long.")
]


def named_systems(given: str | None, settings: Settings) -> tuple[str, ...]:
    """The systems that `--systems` names; without it those of the settings."""
    try:
        return settings.redrive_systems if given is None else read_systems(given)
    except ValueError as error:
        raise UsageError(f"--systems {given}: {error}") from None
