"""What a system shows of its own on its page."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from redrive.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A template, and what to fill it with. Buttons are `parts.deed`, rows to choose `parts.pick`, within `data-picks`."""

    title: str
    """Of the page."""
    template: str
    content: Callable[[Request, System], Awaitable[Mapping[str, Any]]]
    """For a request: its query says which page or filter is asked for."""
