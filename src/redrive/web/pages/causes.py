"""One failure cause: the line of the user's code, whether it still fails, who is dead of it, and what a redrive would do."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.core.cause import cause_of
from redrive.core.states import State
from redrive.core.task import Task
from redrive.errors import TooSlowError, UsageError
from redrive.http.errors import ApiError
from redrive.lane import Lane
from redrive.operator.json_views import attempt_json, redacted
from redrive.operator.verdict.values import Rank, Subject, Trouble, Verdict
from redrive.operator.verdict.versions import Versions
from redrive.ports import Filter
from redrive.web.answers import answers_of
from redrive.web.api.common import app_of, lane_of, shown
from redrive.web.api.groups import groups
from redrive.web.api.overview import FRESH_SECONDS
from redrive.web.api.status import verdict_of
from redrive.web.pages.drawing import Chart, Series, per_step
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.kinds import pause_of, tried_versions
from redrive.web.pages.verdict import MINUTE, place_of
from redrive.web.pages.versions import version_rows, worth_trying

TASKS_SHOWN = 10
FAILING, RETRIED, STUCK, OVER, DEAD = (
    ("bad", "stop", "Failing now"),
    ("warn", "heal", "Some tries fail"),
    ("plain", "cross", "Dead, not recovered"),
    ("info", "back", "Ready to redrive"),
    ("plain", "none", "Not failing now"),
)
"""How a cause is: the colour, the icon and the word."""

router = page_router()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One task of a cause, and its last try."""

    task: dict[str, Any]
    attempt: dict[str, Any] | None
    payload: str | None


@router.get("/causes/{ledger}/{cause}", response_class=HTMLResponse)
async def cause_page(
    request: Request,
    visitor: Looker,
    ledger: str,
    cause: str,
    trace: Annotated[str, Query(max_length=10, description="`raised` shows frames in the order of the traceback")] = "",
) -> HTMLResponse:
    """The page: of a cause that tasks are dead of, or that tries fail of now."""
    lane = lane_of(request, ledger)
    group = next((one for one in await groups(request, ledger) if one["cause"] == cause), None)
    verdict = await verdict_of(request, ledger)
    trouble = next((one for one in verdict.troubles if one.cause == cause and one.ledger == ledger), None)
    if group is None and trouble is None:
        raise ApiError(
            404,
            "cause_unknown",
            "No task is dead of this cause, and no try fails of it now. It may have been dealt with.",
        )
    kind = trouble.kind if trouble is not None else group["kind"] if group is not None else None
    seen = await answers_of(request).get("kinds", FRESH_SECONDS, app_of(request).store.kinds.look)
    dead = await _dead(lane, cause)
    tasks = dead or await _waiting(lane, kind, cause)
    sample = await _sample(lane, tasks)
    known = next((one for one in seen.causes if (one.ledger, one.id) == (ledger, cause)), None)
    versions = Versions.of(await app_of(request).store.roster.seen(), verdict.at)
    tried = [] if kind is None else await tried_versions(request, ledger, kind, cause)
    error = (group and (group["sample"] or group["text"])) or (trouble and trouble.error) or "Unknown error"
    return render(
        request, "cause.html", visitor, title=error[:100], here="/dead",
        ledger=ledger, cause=cause, kind=kind, error=error, at=(group and group["at"]) or (trouble and trouble.at), group=group, trouble=trouble,
        how=_how(trouble), amount=group["amount"] if group else 0, tasks=[shown(task, ledger) for task in tasks], are_dead=bool(dead), sample=sample, raised=trace == "raised",
        chart=None if trouble is None else _chart(trouble, verdict, recovered=known is not None and known.recovered_at is not None), verdict=verdict, place_of=place_of, seen=known, versions=version_rows(tried, versions), worth=worth_trying(None if known is None else known.last_version, versions), warning=_warning(trouble),
        is_paused=kind is not None and await pause_of(lane, kind) is not None,
    )  # fmt: skip


async def _dead(lane: Lane, cause: str) -> list[Task]:
    """The newest dead tasks of the cause; none where that cannot be told at once."""
    try:
        return (
            await (await lane.pages()).page(Filter(state=State.DEAD, cause=cause), limit=TASKS_SHOWN, newest_first=True)
        ).items
    except (TooSlowError, UsageError):
        return []


async def _waiting(lane: Lane, kind: str | None, cause: str) -> list[Task]:
    """Tasks that wait and last failed of the cause, among the next of their kind: while nobody is dead of it, they tell where it fails."""
    if kind is None:
        return []
    try:
        found = (await (await lane.pages()).page(Filter(state=State.WAITING, kind=kind), limit=TASKS_SHOWN)).items
    except (TooSlowError, UsageError):
        return []
    return [task for task in found if task.failures and await _fails_of(lane, task, cause)]


async def _fails_of(lane: Lane, task: Task, cause: str) -> bool:
    failed = next((one for one in reversed(await lane.attempts(task.id)) if one.error), None)
    if failed is None:
        return False
    own = [frame.at for raised in failed.stack[:1] for frame in raised.frames if frame.own]
    return cause_of(failed.error, kind=task.kind, at=own[-1] if own else None).id == cause


async def _sample(lane: Lane, tasks: list[Task]) -> Sample | None:
    if not tasks:
        return None
    task = tasks[0]
    attempts = await lane.attempts(task.id)
    failed = next((one for one in reversed(attempts) if one.error), None)
    payload = None if task.payload is None else json.dumps(redacted(task.payload), indent=2, ensure_ascii=False)
    return Sample(
        task=shown(task, lane.name), attempt=None if failed is None else attempt_json(failed), payload=payload
    )


def _how(trouble: Trouble | None) -> tuple[str, str, str]:
    if trouble is None:
        return DEAD
    if trouble.subject is Subject.FAILING:
        return FAILING
    if trouble.subject is Subject.RETRIED:
        return RETRIED
    return STUCK if trouble.rank is Rank.DEAD else OVER if trouble.rank is Rank.READY else DEAD


def _lead(trouble: Trouble, *, recovered: bool) -> str:
    """Whether it fails, as a chart begins; over is only what has worked since."""
    if trouble.subject is Subject.FAILING:
        return "Now."
    if trouble.subject is Subject.RETRIED:
        return "Now and then."
    if trouble.rank is Rank.DEAD:
        return "Not recovered."
    return "It is over." if recovered else "Not now."


def _warning(trouble: Trouble | None) -> str | None:
    """What is said before tasks are redriven while their kind still fails."""
    if trouble is None:
        return None
    offered = [one for one in (trouble.button, trouble.beside) if one is not None and one.cause is not None]
    said = next((one.warning for one in offered if one.warning), None)
    if trouble.subject is not Subject.FAILING:
        return said
    version = f" Version {trouble.version}, in which they fail, still runs." if trouble.version else ""
    return said and f"{said} {trouble.kind or 'It'} still fails.{version}"


def _chart(trouble: Trouble, verdict: Verdict, *, recovered: bool) -> Chart | None:
    points = trouble.moves.points
    if not sum(points):
        return None
    now: datetime = verdict.at
    starts = [now.replace(second=0, microsecond=0) - MINUTE * back for back in range(len(points) - 1, -1, -1)]
    events = [(trouble.since, "began")]
    failing = trouble.subject is Subject.FAILING
    return per_step(
        "failed", "When does it fail?", [Series(name="failed tries", look="bad" if failing else "plain", values=points)], starts, now,
        lead=_lead(trouble, recovered=recovered), answer=f"{sum(points):,} tries failed this way in the last hour.", unit="failed tries a minute", events=events, size="brief",
    )  # fmt: skip
