"""One list over many ledgers: a page of each, merged in the order of the instant that matters.

A cursor says for each ledger where its part of the list ended. Ledgers whose table cannot answer the question, such as one without
kinds, have nothing to show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redrive.core.states import State
from redrive.core.task import Task
from redrive.errors import UsageError
from redrive.operator.cursors import decode_cursor, encode_cursor
from redrive.operator.ports import TaskPages
from redrive.ports import Filter, Page

LEDGERS_MAX = 100
_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Listed:
    """A task, and the ledger that it is in."""

    ledger: str
    task: Task


async def merged_page(
    pages: Mapping[str, TaskPages], asked: Filter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = False
) -> Page[Listed]:  # fmt: skip
    """A page of the tasks of all these ledgers; pass its `cursor` for the next one."""
    begins = dict.fromkeys(pages) if cursor is None else _read(cursor, pages)
    found: dict[str, Page[Task]] = {}
    refused: UsageError | None = None
    for ledger, begin in begins.items():
        try:
            found[ledger] = await pages[ledger].page(asked, cursor=begin, limit=limit, newest_first=newest_first)
        except UsageError as error:
            if begin is not None:
                raise
            refused = error
    if refused is not None and not found:
        raise refused
    shown = _merge(
        {ledger: page.items for ledger, page in found.items()}, asked.state, limit, newest_first=newest_first
    )
    following: dict[str, str | None] = {}
    for ledger, page in found.items():
        taken = sum(one.ledger == ledger for one in shown)
        if taken == len(page.items):
            if page.cursor is not None:
                following[ledger] = str(page.cursor)
        elif taken == 0:
            following[ledger] = begins[ledger]
        else:  # where exactly its part ended, the ledger itself knows
            part = await pages[ledger].page(asked, cursor=begins[ledger], limit=taken, newest_first=newest_first)
            following[ledger] = None if part.cursor is None else str(part.cursor)
    return Page(items=shown, cursor=_write(following) if following else None)


def _merge(found: Mapping[str, Sequence[Task]], state: State | None, limit: int, *, newest_first: bool) -> list[Listed]:
    """The first of all lists, each of which stays in its own order. Pure."""
    places = {ledger: 0 for ledger, tasks in found.items() if tasks}
    shown: list[Listed] = []
    while places and len(shown) < limit:
        choose = max if newest_first else min
        ledger = choose(places, key=lambda name: _matters(found[name][places[name]], state))
        shown.append(Listed(ledger, found[ledger][places[ledger]]))
        places[ledger] += 1
        if places[ledger] == len(found[ledger]):
            del places[ledger]
    return shown


def _matters(task: Task, state: State | None) -> datetime:
    match state:
        case State.WAITING:
            at = task.due_at or task.created_at
        case State.CLAIMED:
            at = task.lease_until
        case None:
            at = task.created_at or task.updated_at
        case _:
            at = task.ended_at or task.updated_at
    return at or _EARLIEST


def _write(places: Mapping[str, str | None]) -> str:
    return encode_cursor(places)


def _read(cursor: str, pages: Mapping[str, TaskPages]) -> dict[str, str | None]:
    said = decode_cursor(cursor, _places)
    return {ledger: begin for ledger, begin in said.items() if ledger in pages}


def _places(said: Any) -> dict[str, str | None]:
    assert isinstance(said, dict)
    assert 0 < len(said) <= LEDGERS_MAX
    assert all(one is None or isinstance(one, str) for one in said.values())
    return said
