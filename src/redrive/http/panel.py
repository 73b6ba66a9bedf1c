"""What a system shows on its own page: a template of its own, and what to fill it with."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A template, and what to fill it with. Buttons are `parts.deed`, rows to choose `parts.pick`, within `data-picks`."""

    title: str
    """Of the page."""
    template: str
    content: Callable[[Request], Awaitable[Mapping[str, Any]]]
    """For a request: its query says which page or filter is asked for."""


def text_of(request: Request, name: str, chars_max: int, *, strip: bool = True) -> str | None:
    """What the query says under this name, without what no database stores; None if it says nothing."""
    said = request.query_params.get(name, "").replace("\0", "")
    return (said.strip() if strip else said)[:chars_max] or None


def turns(path: str, asked: Mapping[str, object], *, cursor: object, following: object) -> dict[str, Any]:
    """The ways to the first page, from any other, and to the next, if there is one."""
    return {
        "first_page": None if cursor is None else query_of(path, asked),
        "next_page": None if following is None else query_of(path, {**asked, "cursor": following}),
    }


def query_of(path: str, parameters: Mapping[str, object]) -> str:
    """A path with those parameters that are given."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path
