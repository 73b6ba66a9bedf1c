"""Pages over several ledgers: one ledger after the other is asked, and the next page begins where this one ends."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rich.markup import escape

from redrive.cli.opened import Ledgers, on_ledgers
from redrive.cli.output import say
from redrive.cli.where import Where
from redrive.errors import UsageError
from redrive.lane import Lane
from redrive.ports import Page

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LedgersListed(Generic[R]):
    """A page over several ledgers, and where the next one begins: at `LEDGER:` or behind `LEDGER:CURSOR`."""

    items: list[tuple[str, R]]
    """Each with its ledger."""
    lanes: list[Lane]
    """Those that were asked."""
    after: str | None
    unseen: dict[str, str]


def listed(
    ask: Callable[[Lane, str | None, int], Awaitable[Page[R]]], where: Where, *, after: str | None, limit: int
) -> LedgersListed[R]:
    """One page over the ledgers that the options name; `ask` is given a ledger, a cursor and how many."""
    return on_ledgers(lambda ledgers: list_ledgers(ledgers, ask, after=after, limit=limit), where)


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
    raise UsageError(f"--after {after}: no page ended there; take the cursor that the last one printed")


def say_rest(found: LedgersListed[R], where: Where) -> None:
    """What a page does not show: ledgers that could not be asked, and that there is more."""
    for name, reason in found.unseen.items():
        say(f"[yellow]not looked at: {escape(name)}[/]: {escape(reason)}")
    if not where.json:
        say_more(found.after)


def say_more(after: object) -> None:
    """Where the next page begins, if there is one."""
    if after is not None:
        say(f"[dim]there are more: --after {escape(str(after))}[/]")
