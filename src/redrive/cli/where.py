"""Where a command works and how it prints: the options that all commands on ledgers take, declared once."""

import inspect
from collections.abc import Callable
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


_OPTIONS = {
    "lane": (LaneOption, None),
    "database": (DatabaseOption, None),
    "app": (AppOption, None),
    "json": (JsonOption, False),
}


def with_ledgers(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --lane, --database, --app and --json; it gets them as `where`."""
    signature = inspect.signature(command)
    own = [one.replace(kind=one.KEYWORD_ONLY) for one in signature.parameters.values() if one.name != "where"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)
        for name, (option, default) in _OPTIONS.items()
    ]

    @wraps(command)
    def framed(**given: Any) -> None:
        where = Where(**{name: given.pop(name) for name in _OPTIONS})
        command(**given, where=where)

    # Typer reads both.
    framed.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    framed.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    return framed
