"""Where a command works and how it prints: the options that all commands on ledgers take, declared once."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from redrive.cli.options import AppOption, DatabaseOption, JsonOption, LaneOption


@dataclass(frozen=True, slots=True)
class Where:
    """The ledgers that are meant, and whether JSON is wanted."""

    database: str | None = None
    app: str | None = None
    lane: str | None = None
    json: bool = False


def with_options(
    name: str, options: Mapping[str, tuple[Any, Any]], read: Callable[..., Any], *, last: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options, each with its default; it gets what `read` makes of them as `name`.

    They stand before the command's own, or `last`.
    """

    def frame(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        own = [one.replace(kind=one.KEYWORD_ONLY) for one in signature.parameters.values() if one.name != name]
        added = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)
            for each, (option, default) in options.items()
        ]

        @wraps(command)
        def framed(**given: Any) -> None:
            made = read(**{each: given.pop(each) for each in options})
            command(**given, **{name: made})

        parameters = [*own, *added] if last else [*added, *own]
        # Typer reads both.
        framed.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        framed.__annotations__ = {one.name: one.annotation for one in parameters}
        return framed

    return frame


with_ledgers = with_options(
    "where",
    {
        "lane": (LaneOption, None),
        "database": (DatabaseOption, None),
        "app": (AppOption, None),
        "json": (JsonOption, False),
    },
    Where,
    last=True,
)
"""Give a command --lane, --database, --app and --json; it gets them as `where`."""
