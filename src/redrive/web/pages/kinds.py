"""One kind: how it does, its failure causes, its policy, its pause, and who waits or is dead."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from redrive.core.preview import preview
from redrive.core.states import State
from redrive.core.task import Task
from redrive.errors import TooSlowError, UsageError
from redrive.lane import Lane
from redrive.operator.gates import GateView
from redrive.operator.kinds import VersionSeen
from redrive.operator.verdict.values import KindHealth, Rank, Verdict
from redrive.operator.verdict.versions import Versions
from redrive.ports import Filter
from redrive.web.answers import answers_of
from redrive.web.api.common import app_of, lane_of
from redrive.web.api.groups import groups
from redrive.web.api.status import verdict_of
from redrive.web.pages.dead import cause_rows
from redrive.web.pages.drawing import Chart, Series, few, per_step, side_by_side
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.timeline import span
from redrive.web.pages.verdict import MINUTE, MINUTES, kind_row, minutes_of, place_of
from redrive.web.pages.versions import version_rows

TRIES_SHOWN = 12
DONE_LOOKED_AT = 200
"""So many of the last that are done tell how long it takes."""
DAYS_FRESH_SECONDS = 5.0
"""What tells of days or of hundreds of tasks changes little in a few seconds; so long everybody gets the same."""
DONE_MIN = 5
DONE_BARS = 7
DONE_EDGES = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400, 604_800)
"""Where one bar ends and the next begins, in seconds."""

router = page_router()


@router.get("/kinds/{ledger}/{kind:path}", response_class=HTMLResponse)
async def kind_page(request: Request, visitor: Looker, ledger: str, kind: str) -> HTMLResponse:
    """The page. A kind that nobody has tried lately has no figures, but a policy where a handler is here."""
    lane = lane_of(request, ledger)
    verdict = await verdict_of(request, ledger)
    health = next((one for one in verdict.kinds if (one.ledger, one.kind) == (ledger, kind)), None)
    store = app_of(request).store
    versions = Versions.of(await store.roster.seen(), verdict.at)
    troubles = [one for one in verdict.troubles if (one.ledger, one.kind) == (ledger, kind)]
    return render(
        request, "kind.html", visitor, title=kind, here="/",
        ledger=ledger, kind=kind, verdict=verdict, row=None if health is None else kind_row(health, verdict.at), troubles=troubles, place_of=place_of,
        causes=cause_rows(verdict, await groups(request, ledger), kind), policy=_policy(lane, kind, verdict), pause=await pause_of(lane, kind),
        chart=None if health is None else _chart(health, verdict), done=time_to_done(await _done(request, lane, kind)),
        versions=version_rows(await tried_versions(request, ledger, kind), versions),
    )  # fmt: skip


async def tried_versions(request: Request, ledger: str, kind: str, cause: str | None = None) -> list[VersionSeen]:
    """What each version has tried of a kind in the last days; made once a while."""
    look = partial(app_of(request).store.kinds.versions, ledger, kind, cause=cause)
    return await answers_of(request).get(("versions", ledger, kind, cause), DAYS_FRESH_SECONDS, look)


async def _done(request: Request, lane: Lane, kind: str) -> list[Task]:
    """The last that were done, looked up once a while; none where that cannot be told at once."""

    async def look() -> list[Task]:
        try:
            asked = Filter(state=State.DONE, kind=kind)
            return (await (await lane.pages()).page(asked, limit=DONE_LOOKED_AT, newest_first=True)).items
        except (TooSlowError, UsageError):
            return []

    return await answers_of(request).get(("done", lane.name, kind), DAYS_FRESH_SECONDS, look)


def time_to_done(tasks: Sequence[Task]) -> Chart | None:
    """How long the last tasks took from being added to being done, retries and waits included; None where too few tell."""
    times = [(task.created_at, task.ended_at or task.updated_at) for task in tasks]
    took = sorted(end - begin for begin, end in times if begin is not None and end is not None)
    if len(took) < DONE_MIN:
        return None
    half, most = took[len(took) // 2], took[min(len(took) - 1, len(took) * 95 // 100)]
    edges = [edge for edge in DONE_EDGES if edge <= took[-1].total_seconds()][-DONE_BARS:] or DONE_EDGES[:1]
    amounts = [sum(bisect_right(edges, one.total_seconds()) == at for one in took) for at in range(len(edges) + 1)]
    labels = [f"< {span(edges[0])}", *(f"{span(edge)}+" for edge in edges)]
    return side_by_side(
        "time-to-done", "How long until a task is done?", labels, Series(name="tasks", look="press", values=amounts),
        lead=f"Half within {span(half.total_seconds())},", answer=f"95 of 100 within {span(most.total_seconds())}: the last {len(took):,}, from added to done.",
        unit="tasks", column="Took", size="brief",
    )  # fmt: skip


def _policy(lane: Lane, kind: str, verdict: Verdict) -> dict[str, Any] | None:
    """What the handler here does with failures; None where no handler is here."""
    handler = lane.handlers.find(kind)
    if handler is None:
        return None
    policy = handler.policy
    tries = preview(policy, "example", verdict.at)[:TRIES_SHOWN]
    return {
        "name": policy.name, "backoff": policy.backoff_words, "jitter": policy.jitter_words, "tries": policy.failures_max, "handler": handler.kind,
        "timeout": None if handler.timeout is None else span(handler.timeout.total_seconds()),
        "lasts": span((tries[-1].at - tries[0].at).total_seconds()) if len(tries) > 1 else None, "shown": len(tries) == policy.failures_max,
    }  # fmt: skip


async def pause_of(lane: Lane, kind: str) -> GateView | None:
    """The pause of a kind, if somebody has paused it."""
    try:
        view = await (await lane.gate_reader(limited=True)).one(f"kind:{kind}")
    except (UsageError, TooSlowError):
        return None
    return view if view is not None and view.does == "paused" else None


def _chart(health: KindHealth, verdict: Verdict) -> Chart:
    tries, failed = minutes_of(health, verdict.at)
    starts = [verdict.at.replace(second=0, microsecond=0) - MINUTE * back for back in range(MINUTES - 1, -1, -1)]
    well = [all_of - bad for all_of, bad in zip(tries, failed, strict=True)]
    lead = f"{few(sum(failed))} of {few(sum(tries))} tries failed"
    return per_step(
        "tries", "How do its tries go?",
        [Series(name="failed", look="bad", values=failed), Series(name="not failed", look="soft2", values=well)],
        starts, verdict.at, lead=lead, answer="in the last hour.", unit="tries a minute", size="brief",
        events=[(one.since, "began") for one in verdict.troubles if one.kind == health.kind and one.rank is Rank.DYING][:1],
    )  # fmt: skip
