"""The tries that a staged outage has left in the history, told again by a clock of their own: when does the first screen name them?

Each step is taken at its worst moment: the tenth failure comes just after counts were written, and a page asks just before the answer is made
anew. So what comes out depends on the history and on the code, and never on how busy the machine was.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import resources
from re import MULTILINE, findall
from types import SimpleNamespace
from typing import Any

from redrive import Redrive
from redrive.core.states import State
from redrive.core.task import Attempt
from redrive.engine.tally import KindTally
from redrive.operator.verdict import Facts, Rank, StoreNow, Subject, gather, judge
from redrive.signs import COUNTS_EVERY
from redrive.testing import VirtualClock, temporary_url
from redrive.web.api import overview

from .site import Site

CALLED_FOR = 10
"""So many failures are what a person is called for."""
A_MOMENT = timedelta(microseconds=1)


async def failures_of(site: Site, keys: Sequence[str]) -> list[Attempt]:
    """The failed tries of these tasks, as the history has them, in the order in which they ended."""
    tasks = [await site.app.tasks.get(key) for key in keys]
    found = [one for task in tasks for one in await site.app.tasks.attempts(task.id) if one.error]
    return sorted(found, key=lambda one: one.ended_at)


def line_of(one: Attempt) -> str | None:
    """The innermost line of the user's code."""
    own = [frame.at for raised in one.stack[:1] for frame in raised.frames if frame.own]
    return own[-1] if own else None


async def named_after(
    tries: Sequence[Attempt], kind: str, *, join: Callable[[Redrive], object], calls_for: int = CALLED_FOR
) -> timedelta:
    """How long after the tenth of these failures a page that is open names the kind as one that fails."""
    tenth = tries[calls_for - 1].ended_at
    start, fresh = tries[0].ended_at - timedelta(seconds=20), timedelta(seconds=overview.FRESH_SECONDS)
    written = [(at, "write") for at in _every(COUNTS_EVERY, tenth - A_MOMENT, start)]
    # An answer may be as old as this when a page gets it: it was made before the tenth failure was written.
    made = [(at, "look") for at in _every(_asks_every(), tenth + COUNTS_EVERY - 2 * A_MOMENT, start)]
    clock, told = VirtualClock(start), list(tries)
    app = Redrive(temporary_url(), clock=clock)
    join(app)
    async with app:
        tally = KindTally("redrive_task", app.tasks.handlers)
        for at, what in sorted([*written, *made]):
            clock.advance(at - clock.now())
            if what == "write":
                while told and told[0].ended_at <= at:
                    tally.add([_settlement(told.pop(0), kind)])
                if counts := tally.take():
                    await app.store.kinds.write([counts], worker="then", version=None)
                    tally.wrote(counts)
                continue
            verdict = judge(await gather(app.store, list(app.lanes.values()), StoreNow()))
            if any(one.kind == kind and one.rank is Rank.DYING for one in verdict.troubles):
                return at + fresh - tenth
    raise AssertionError(f"{kind} was never named")


def shown_after(since: datetime, facts: Facts, subject: Subject) -> timedelta:
    """How long after this instant an open page shows such a row, if nothing happens any more: judged at each tenth of a second."""
    fresh = timedelta(seconds=overview.FRESH_SECONDS)
    for tenths in range(600):
        after = timedelta(seconds=tenths / 10)
        if any(one.subject is subject for one in judge(replace(facts, now=since + after)).troubles):
            return after + fresh + _asks_every()
    raise AssertionError(f"{subject} was never shown")


def _every(span: timedelta, through: datetime, start: datetime) -> list[datetime]:
    """Instants so far apart, one of which is this, from some time before to some time after."""
    first = through - span * ((through - start) // span)
    return [first + span * number for number in range(60)]


def _asks_every() -> timedelta:
    script = resources.files("redrive.web").joinpath("static/live.js").read_text()
    [every] = findall(r"^const EVERY_MS = (\d+);$", script, MULTILINE)
    return timedelta(milliseconds=int(every))


def _settlement(one: Attempt, kind: str) -> Any:
    """As the worker counted it: a claim, what became of it, and why."""
    elapsed = one.ended_at - (one.started_at or one.ended_at)
    claim = SimpleNamespace(task=SimpleNamespace(kind=kind, failures=one.number - 1), claimed_at=one.ended_at - elapsed)
    explained = SimpleNamespace(verdict=(one.explanation or {}).get("verdict"), stack=SimpleNamespace(at=line_of(one)))
    return (claim, "failed", State.WAITING, None, None, one.error, explained, elapsed, None)
