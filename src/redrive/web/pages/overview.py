"""The first screen: how things are, in sentences; figures, kinds and charts below. All of it is in the first response."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.access.keys import AUDITED, SESSIONS_AUDITED
from redrive.core.durations import parse_duration
from redrive.errors import TooSlowError, UsageError
from redrive.operator.kinds import KindSums
from redrive.operator.verdict import Verdict
from redrive.web.answers import answers_of
from redrive.web.api import overview as overview_api
from redrive.web.api.audit import audit
from redrive.web.api.common import app_of, lanes_of, without_handler
from redrive.web.api.overview import Range, series
from redrive.web.api.status import verdict_of
from redrive.web.api.workers import workers
from redrive.web.pages.frame import Looker, act_path, page_router, render
from redrive.web.pages.verdict import (
    AHEAD_STEP,
    AHEAD_STEPS,
    DUE_SHOWN_MAX,
    charts_of,
    dot_of,
    figure_look,
    kind_rows,
    place_of,
    trouble_row,
)
from redrive.web.service import service_of

LATELY_MAX = 5
AUDIT_LOOKED_AT = 30
"""Of so many acts the latest are shown that are not just somebody's log in."""
DID = {
    "redrive": "redrove",
    "resolve": "resolved",
    "cancel": "cancelled",
    "create": "created",
    "change": "changed",
    "enable": "enabled",
    "disable": "disabled",
}
"""Acts that the audit names by what was pressed."""
TROUBLES_SHOWN_MAX = 10
"""What a tired person reads; the others are counted, and the page of causes has them."""
SUMS_FRESH_SECONDS = 20.0
"""A week of all kinds is more to read than the verdict; so long everybody gets the same."""


class KindsOver(StrEnum):
    """Over how long the table of kinds sums up."""

    MINUTES = "5m"
    HOUR = "1h"
    DAY = "24h"
    WEEK = "7d"

    @property
    def span(self) -> timedelta:
        """How long that is."""
        return parse_duration(self.value)

    @property
    def words(self) -> str:
        """`last 5 minutes`."""
        return {"5m": "last 5 minutes", "1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days"}[self]

    @property
    def label(self) -> str:
        """`5 min`."""
        return {"5m": "5 min", "1h": "1 h", "24h": "24 h", "7d": "7 d"}[self]


router = page_router()


@router.get("/", response_class=HTMLResponse)
async def first_screen(
    request: Request,
    visitor: Looker,
    ledger: Annotated[str, Query(max_length=200)] = "",
    kinds: Annotated[str, Query(max_length=10, description="`all` shows every kind")] = "",
    over: Annotated[KindsOver, Query(description="Over how long the kinds are summed up")] = KindsOver.MINUTES,
) -> HTMLResponse:
    """The page."""
    service = service_of(request)
    if not service.is_open:
        return render(request, "opening.html", visitor, title="Overview")
    verdict, drawn, unheard, sums = await asyncio.gather(
        verdict_of(request, ledger or None),
        series(request, ledger or None, Range.HOUR),
        _unheard(request, ledger or None),
        _sums(request, over),
    )
    rows, more = kind_rows(verdict, every=kinds == "all", sums=sums, without_handler=unheard)
    return render(
        request, "overview.html", visitor, title=verdict.title,
        verdict=verdict, ledger=ledger, ledgers=list(service.app.lanes), troubles=[trouble_row(one) for one in verdict.troubles[:TROUBLES_SHOWN_MAX]], more_troubles=max(0, len(verdict.troubles) - TROUBLES_SHOWN_MAX) + verdict.more,
        kinds=rows, more_kinds=more, every=kinds, over=over if sums is not None else KindsOver.MINUTES, too_much=over is not KindsOver.MINUTES and sums is None, overs=KindsOver, charts=charts_of(verdict, drawn, await _due(request, verdict, ledger or None)), place_of=place_of, figure_look=figure_look, dot_of=dot_of,
        without_handler=[kind for _, kind in unheard],
        blocked=request.app.state.blocked_loops.said(), has_handlers=any(len(lane.handlers) for lane in service.app.lanes.values()),
        lately=await _lately(request) if verdict.is_well else [],
    )  # fmt: skip


async def _unheard(request: Request, ledger: str | None) -> list[tuple[str, str]]:
    """The kinds that wait and that no handler here knows, each with its ledger."""

    async def look() -> list[tuple[str, str]]:
        return [(lane.name, kind) for lane in lanes_of(request, ledger) for kind in await without_handler(lane)]

    return await answers_of(request).get(("unheard", ledger), overview_api.FRESH_SECONDS, look)


async def _sums(request: Request, over: KindsOver) -> Mapping[tuple[str, str], KindSums] | None:
    """What kinds did over a longer span, made once a while; None for the last minutes, which the verdict has, and where it is too much."""
    if over is KindsOver.MINUTES:
        return None
    look = partial(app_of(request).store.kinds.sums, over.span)
    try:
        return await answers_of(request).get(("kinds over", over), SUMS_FRESH_SECONDS, look)
    except TooSlowError:
        return None


async def _due(request: Request, verdict: Verdict, ledger: str | None) -> list[datetime]:
    """When what waits is tried next; only where that is drawn, and nothing where nobody can tell at once."""
    if verdict.is_well:
        return []

    async def look() -> list[datetime]:
        found: list[datetime] = []
        for lane in lanes_of(request, ledger):
            with suppress(TooSlowError, UsageError):
                pages = await lane.pages()
                found += await pages.due_until(await pages.present() + AHEAD_STEP * AHEAD_STEPS, limit=DUE_SHOWN_MAX)
        return found

    return await answers_of(request).get(("due", ledger), overview_api.FRESH_SECONDS, look)


async def _lately(request: Request) -> list[dict[str, Any]]:
    """What happened last: what people did, and which versions came."""
    found, lanes = await audit(request, None, None, AUDIT_LOOKED_AT), app_of(request).lanes
    told = [
        {"at": one["at"], "text": _act_said(one, lanes), "place": act_path(one["id"])}
        for one in found["acts"]
        if one["ledger"] != SESSIONS_AUDITED
    ]
    first: dict[str, str] = {}
    for one in await workers(request):
        if one["version"]:
            first[one["version"]] = min(first.get(one["version"], one["started_at"]), one["started_at"])
    told += [
        {"at": at, "text": f"Version {version} was first seen", "place": "/workers"} for version, at in first.items()
    ]
    return sorted(told, key=lambda one: str(one["at"]), reverse=True)[:LATELY_MAX]


def _act_said(one: Mapping[str, Any], ledgers: Collection[str]) -> str:
    """`ada paused gate bank:DE`, `ada redrove 600 tasks`."""
    about, _, did = one["act"].rpartition(" ")
    if about not in ("", "gate", "operation"):
        did = one["act"]
    if one["ledger"] == AUDITED:
        thing = "a key"
    elif one["task_id"] is None:
        thing = f"{one['amount']:,} {'tasks' if one['ledger'] in ledgers else 'things'}"
    else:
        sort, _, name = str(one["task_id"]).partition(":")
        thing = (
            f"{sort} {name[:8] if sort == 'operation' else name}"
            if sort in ("gate", "operation") and name
            else f"task {one['task_id']}"
            if one["ledger"] in ledgers
            else str(one["task_id"])
        )
    return f"{one['actor']} {DID.get(did, did)} {thing}"
