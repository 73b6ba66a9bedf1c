"""Gates: which destination is held, since when and why, how much is parked, and who paused what. What people do goes through the API."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.core.task import GATE_CHARS_MAX
from redrive.errors import UsageError
from redrive.http.panel import turns
from redrive.lane import Lane
from redrive.operator.gates import (
    GateDoes,
    GateView,
    ParkedMinute,
    RuleView,
    limit_words,
    parked_points,
    rate_words,
    read_does,
    span_words,
)
from redrive.operator.json_views import limits_json
from redrive.operator.verdict.returning import drain_of
from redrive.operator.verdict.words import about
from redrive.web.api.common import app_of, in_time, lane_of
from redrive.web.api.gates import CURSOR_CHARS_MAX
from redrive.web.pages.drawing import SmallPicture, spark
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.gate_strip import STRIP, GateStrip, draw_strip, hours_of
from redrive.web.service import service_of

LIMIT = 50
MOODS = {
    GateDoes.HOLDING: "bad",
    GateDoes.PAUSED: "plain",
    GateDoes.RETURNING: "warn",
    GateDoes.LETTING_THROUGH: "good",
}
"""How worried to be."""
ORDER = (GateDoes.HOLDING, GateDoes.RETURNING, GateDoes.PAUSED, GateDoes.LETTING_THROUGH)

router = page_router()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """What the page shows of one gate."""

    view: GateView
    strip: GateStrip
    mood: str
    limits: dict[str, Any]
    drains: str = ""
    """How long what it keeps back takes once it returns."""
    parked: SmallPicture | None = None
    """What it kept back in the last hour, where it keeps anything back and that is counted."""


@router.get("/gates", response_class=HTMLResponse)
async def gates(
    request: Request,
    visitor: Looker,
    ledger: Annotated[str, Query(max_length=200)] = "",
    does: Annotated[str, Query(max_length=50)] = "",
    prefix: Annotated[str, Query(max_length=GATE_CHARS_MAX)] = "",
    cursor: Annotated[str, Query(max_length=CURSOR_CHARS_MAX)] = "",
) -> HTMLResponse:
    """The page: of one ledger page by page, of all of them the first gates of each."""
    place = {"ledger": ledger, "does": does, "prefix": prefix}
    shown = await gates_shown(request, ledger, read_does(does) if does else None, prefix, cursor)
    following = shown.pop("following")
    return render(
        request, "gates.html", visitor, title="Gates", here="/workers", every_does=list(GateDoes), **shown,
        **turns("/gates", place, cursor=cursor or None, following=following if ledger else None),
    )  # fmt: skip


async def gates_shown(
    request: Request, ledger: str = "", does: GateDoes | None = None, prefix: str = "", cursor: str = ""
) -> dict[str, Any]:
    """What the table of gates shows, here and beside the workers."""
    lanes = [lane_of(request, ledger)] if ledger else list(app_of(request).lanes.values())
    rows, rules, more, following = list[GateRow](), list[tuple[str, RuleView]](), list[str](), None
    for lane in lanes:
        try:
            found, of_lane = await _found(lane, does, prefix, cursor if ledger else "")
        except UsageError:  # a ledger without gates
            if ledger:
                raise
            continue
        rows += found.rows
        rules += [(lane.name, rule) for rule in of_lane]
        if found.cursor is not None:
            following = found.cursor
            more.append(lane.name)
    rows.sort(key=lambda row: ORDER.index(row.view.does) if row.view.does is not GateDoes.LETTING_THROUGH else 9)
    return {
        "ledger": ledger, "ledgers": list(service_of(request).app.lanes), "does": does, "prefix": prefix, "rows": rows,
        "rules": [(name, one, limit_words(one.rule)) for name, one in rules],
        "verdict": _verdict(Counter(row.view.does for row in rows), complete=not more), "more": [] if ledger else more, "following": following,
        "marks": hours_of(rows[0].view.at) if rows else (), "rate_words": rate_words, "span_words": span_words, "few": _few,
        "with_ledger": len(service_of(request).app.lanes) > 1,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rows:
    rows: Sequence[GateRow]
    cursor: str | None


async def _found(lane: Lane, does: GateDoes | None, prefix: str, cursor: str) -> tuple[_Rows, Sequence[RuleView]]:
    reader = await lane.gate_reader(limited=True)
    async with in_time():
        page = await reader.page(does=does, prefix=prefix, cursor=cursor or None, limit=LIMIT)
        names = [view.name for view in page.items]
        spans = await reader.spans(names, page.items[0].at - STRIP) if names else []
        held = [view.name for view in page.items if view.does is not GateDoes.LETTING_THROUGH]
        parked = await reader.parked_over(held, page.items[0].at - STRIP) if held else {}
        rules = await reader.rules()
    rows = [
        GateRow(
            view=view,
            strip=draw_strip([one for one in spans if one.name == view.name], view.at, view.does, view.since),
            mood=MOODS[view.does],
            limits=limits_json(view.limits),
            drains=_drains(view),
            parked=_parked(view, parked.get(view.name, ())),
        )
        for view in page.items
    ]
    return _Rows(rows, None if page.cursor is None else str(page.cursor)), rules


def _verdict(amounts: Counter[GateDoes], *, complete: bool) -> str:
    every = sum(amounts.values())
    if not every:
        return "No gate is known here yet. Tasks name theirs when they are added."
    through = amounts[GateDoes.LETTING_THROUGH]
    others = [f"{amounts[one]:,} {'is' if amounts[one] == 1 else 'are'} {one}" for one in ORDER[:-1] if amounts[one]]
    first = f"{through:,} of {every:,} {'gate' if every == 1 else 'gates'} let{'s' if every == 1 else ''} tasks through" if others or not complete else (
        "The one gate lets tasks through" if every == 1 else f"All {every:,} gates let tasks through"
    )  # fmt: skip
    if not through and complete:
        return f"No gate lets tasks through: {', '.join(others)}."
    return f"{', '.join([first, *others])}."


def _parked(view: GateView, minutes: Sequence[ParkedMinute]) -> SmallPicture | None:
    points = parked_points(minutes, view.at, view.parked)
    if not minutes or not any(points):
        return None
    return spark(points, "parked", f"Parked behind {view.title}, the last hour: now {view.parked_words}")


def _drains(view: GateView) -> str:
    takes = drain_of(view) if view.does is GateDoes.HOLDING and view.parked else None
    if takes is None:
        return ""
    what = "the one parked task is" if view.parked == 1 else f"all {view.parked_words} are"
    return f"Then {what} through in {about(takes)}."


def _few(amount: float) -> str:
    """A rate with as many digits as people can use."""
    if amount < 0.005:
        return "0"
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.1f}" if amount >= 0.1 else f"{amount:.2f}"
