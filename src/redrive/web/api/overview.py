"""The numbers of the charts, all from what the minutes and the census have counted: no task is read for them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from redrive.core.histograms import TOOK, TOOK_SECONDS, TRIES, percentile
from redrive.core.states import State
from redrive.errors import TooSlowError, UsageError
from redrive.http.guard import KeyFirstRoute
from redrive.lane import Lane
from redrive.ledgers.sql.times import EPOCH
from redrive.operator.figures import Depth, Point, States
from redrive.operator.gates import GateDoes, GateView
from redrive.operator.json_views import gate_json, instant_json
from redrive.web.answers import answers_of
from redrive.web.api.common import LOOKING, app_of, lanes_of, system_names, without_handler
from redrive.web.drift import drift_of

FRESH_SECONDS = 1.0
"""How long an answer holds: however many look, the database is asked this often."""
CARRIED_STEPS_MAX = 10
"""A depth that was not counted in a step is that of the step before, for so many steps; then it is not known."""
TASKS = "tasks"
OWN_WORDS = {state.value: state.value for state in State}
GATES_MAX = 20
GATES_ORDER = (GateDoes.HOLDING, GateDoes.RETURNING, GateDoes.PAUSED)
DRAWN = ("added", "done", "retried", "dead", "cancelled")

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["overview"], dependencies=LOOKING)


class Range(StrEnum):
    """How far back."""

    HOUR = "1h"
    DAY = "24h"
    WEEK = "7d"


@dataclass(frozen=True, slots=True)
class Steps:
    """A range in steps of time."""

    step: timedelta
    amount: int

    def starts(self, now: datetime) -> list[datetime]:
        """When each step begins; the last one is still under way."""
        current = EPOCH + (now - EPOCH) // self.step * self.step
        return [current - self.step * back for back in range(self.amount - 1, -1, -1)]


STEPS = {
    Range.HOUR: Steps(timedelta(minutes=1), 60),
    Range.DAY: Steps(timedelta(minutes=10), 144),
    Range.WEEK: Steps(timedelta(hours=1), 168),
}

LedgerQuery = Annotated[str | None, Query(description="One ledger; by default all", max_length=200)]
RangeQuery = Annotated[Range, Query(description="How far back")]


@router.get("/overview", summary="Tasks by state, the success rate, and how long tasks take")
async def overview(request: Request, ledger: LedgerQuery = None, range: RangeQuery = Range.HOUR) -> dict[str, Any]:
    """Counted by the census and carried on by the minutes: `counted_at` says when the oldest of the counts was taken.

    `of` says what is counted: tasks, or events where a ledger holds their deliveries, and `words` what their states are called there.
    `gates` are those that hold, return or are paused.
    """
    lanes, systems = lanes_of(request, ledger), system_names(app_of(request))
    return await answers_of(request).get(
        ("overview", ledger or None, range), FRESH_SECONDS, lambda: _overview(request, lanes, systems, ledger, range)
    )


async def _overview(
    request: Request, lanes: Sequence[Lane], systems: Any, ledger: str | None, range: Range
) -> dict[str, Any]:
    app = app_of(request)
    figures, now = app.store.figures, await app.store.present()
    counted = await figures.states()
    starts = STEPS[range].starts(now)
    sums = await figures.sums([lane.counted_as for lane in lanes], starts[0])
    took = [int(sums[name]) for name in TOOK]
    by_ledger = [await _ledger(lane, systems.get(lane.name), counted.get(lane.name)) for lane in lanes]
    ended = sums["done"] + sums["dead"]
    counted_ats = [
        now if lane.headcount else counted[lane.name].counted_at
        for lane in lanes
        if lane.headcount or lane.name in counted
    ]
    ages = [one["oldest_due_seconds"] for one in by_ledger if one["oldest_due_seconds"] is not None]
    return {
        "range": range.value,
        "ledger": ledger or None,
        "ledgers": list(app.lanes),
        "generated_at": instant_json(now),
        "counted_at": instant_json(min(counted_ats)) if len(counted_ats) == len(lanes) else None,
        "states": {state.value: sum(one["states"][state.value] for one in by_ledger) for state in State},
        # Of several ledgers together people are told of tasks.
        "of": by_ledger[0]["of"] if len(by_ledger) == 1 else TASKS,
        "words": by_ledger[0]["words"] if len(by_ledger) == 1 else OWN_WORDS,
        "success_rate": sums["done"] / ended if ended else None,
        "tries": [{"tries": name.removeprefix("tries_"), "amount": int(sums[name])} for name in TRIES],
        "took": {
            "bounds_seconds": list(TOOK_SECONDS),
            "amounts": took,
            **{f"p{share}": percentile(took, share / 100) for share in (50, 95, 99)},
        },
        "oldest_due_seconds": max(ages, default=None),
        "gates": await _gates(lanes),
        "drift": drift_of(request).of([lane.name for lane in lanes]),
        "by_ledger": by_ledger,
    }


async def _ledger(lane: Lane, system: str | None, counted: States | None) -> dict[str, Any]:
    ledger = await lane.ledger()
    oldest = await ledger.oldest_due()
    headcount = lane.headcount
    if headcount is not None:
        amounts = dict(await headcount.amounts())
    else:
        amounts = await (await lane.census()).amounts_now(counted) if counted is not None else {}
    return {
        "ledger": lane.name,
        "system": system,
        "of": TASKS if headcount is None else headcount.things,
        "words": OWN_WORDS if headcount is None else {state.value: word for state, word in headcount.words.items()},
        "states": {state.value: amounts.get(state, 0) for state in State},
        "counted_at": None if counted is None else instant_json(counted.counted_at),
        "oldest_due_seconds": None if oldest is None else oldest.total_seconds(),
        "without_handler": await without_handler(lane),
    }


async def _gates(lanes: Sequence[Lane]) -> list[dict[str, Any]]:
    """The gates that hold, then those that return, then what is paused."""
    found: list[GateView] = []
    for lane in lanes:
        with suppress(UsageError, TooSlowError):  # it has no gates; or they cannot be told now, and all else can
            found += await (await lane.gate_reader(limited=True)).holding(limit=GATES_MAX)
    found.sort(key=lambda view: GATES_ORDER.index(view.does))
    return [gate_json(view) for view in found[:GATES_MAX]]


@router.get("/series", summary="What happened step by step, and how many tasks were in each state")
async def series(request: Request, ledger: LedgerQuery = None, range: RangeQuery = Range.HOUR) -> dict[str, Any]:
    """Every step is there. Where nothing happened it says zero; where nobody counted, a depth is null."""
    lanes = lanes_of(request, ledger)
    return await answers_of(request).get(
        ("series", ledger or None, range), FRESH_SECONDS, lambda: _series(request, lanes, range)
    )


async def _series(request: Request, lanes: Sequence[Lane], range: Range) -> dict[str, Any]:
    app, steps = app_of(request), STEPS[range]
    figures, now = app.store.figures, await app.store.present()
    starts = steps.starts(now)
    points = await figures.series([lane.counted_as for lane in lanes], starts[0], steps.step, DRAWN)
    # From a little earlier, so that the first steps know the depth before them.
    early = starts[0] - steps.step * CARRIED_STEPS_MAX
    depths = [await figures.depths([lane.counted_as], early, steps.step) for lane in lanes]
    return {
        "range": range.value,
        "step_seconds": int(steps.step.total_seconds()),
        "points": _filled(points, starts),
        "depth": _carried(depths, starts, steps.step),
    }


def _filled(points: Sequence[Point], starts: Sequence[datetime]) -> list[dict[str, Any]]:
    by_start = {point.start: point.sums for point in points}
    return [
        {"start": instant_json(start), **{name: int(by_start.get(start, {}).get(name, 0)) for name in DRAWN}}
        for start in starts
    ]


def _carried(depths: Sequence[Sequence[Depth]], starts: Sequence[datetime], step: timedelta) -> list[dict[str, Any]]:
    """The depths of all ledgers added up. Ledgers are counted at their own pace: each is carried on by itself."""
    names = (State.WAITING, State.CLAIMED, State.DEAD)
    by_start = [{depth.start: depth for depth in some} for some in depths]
    carried = []
    for start in starts:
        known = [one for some in by_start if (one := _latest(some, start, step)) is not None]
        ages = [one.oldest_due.total_seconds() for one in known if one.oldest_due is not None]
        carried.append(
            {
                "start": instant_json(start),
                **{state.value: sum(one.amounts[state] for one in known) if known else None for state in names},
                "oldest_due_seconds": max(ages, default=0) if known else None,
            }
        )
    return carried


def _latest(depths: dict[datetime, Depth], start: datetime, step: timedelta) -> Depth | None:
    for back in range(CARRIED_STEPS_MAX + 1):
        if (found := depths.get(start - step * back)) is not None:
            return found
    return None
