"""Operations: all of them, and one as a picture that stays fresh: which step, did it help, how far from the brake, what comes next."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.core.failure import redact
from redrive.core.operation import ENDED, Fate, OperationState
from redrive.core.operation_ahead import LATELY, ends_a_second, time_left
from redrive.core.states import State
from redrive.core.task import Task
from redrive.http.panel import turns
from redrive.lane import Lane
from redrive.operator.failed_again import FailedAgain, split_words
from redrive.operator.operation_views import edit_json
from redrive.operator.operations import Operation, asked_words, ramp_words
from redrive.operator.verdict.versions import Versions
from redrive.ports import Filter
from redrive.web.api.common import app_of, in_time
from redrive.web.api.operations import CURSOR_CHARS_MAX, found_operation
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.operation_picture import about, draw_brake, draw_rate, draw_steps

LIMIT = 50
FAILED_SHOWN = 10
FATES = {
    Fate.FAILED: "failed again",
    Fate.RELEASED: "running",
    Fate.DONE: "done",
    Fate.FROZEN: "to come",
    Fate.SKIPPED: "skipped",
    Fate.UNFIT: "left as they were",
    Fate.ENDED: "ended otherwise",
}
"""What becomes of the tasks of a set, in the order that people ask for."""
MOODS = {
    OperationState.GATHERING: ("info", "half", "Storing its set"),
    OperationState.UNAPPROVED: ("warn", "lock", "Waiting for approval"),
    OperationState.RUNNING: ("info", "play", "Running"),
    OperationState.PAUSED: ("plain", "paused", "Paused"),
    OperationState.HALTED: ("bad", "stop", "Halted"),
    OperationState.DONE: ("good", "ok", "Done"),
    OperationState.GIVEN_BACK: ("plain", "back", "Given back"),
}
"""How worried to be: the colour, the icon and the word."""

router = page_router()


@router.get("/operations", response_class=HTMLResponse)
async def operations(
    request: Request, visitor: Looker, cursor: Annotated[str, Query(max_length=CURSOR_CHARS_MAX)] = ""
) -> HTMLResponse:
    """All operations, the newest first."""
    store = app_of(request).store
    async with in_time():
        found = await store.operations.page(cursor=cursor or None, limit=LIMIT)
    at = await store.present()
    rows = [(one, _mood(one), _title(one), redact(one.says(at))) for one in found.items]
    return render(
        request, "operations.html", visitor, title="Operations", rows=rows, at=at,
        **turns("/operations", {}, cursor=cursor or None, following=None if found.cursor is None else str(found.cursor)),
    )  # fmt: skip


@router.get("/operations/{id}", response_class=HTMLResponse)
async def operation(request: Request, visitor: Looker, id: str) -> HTMLResponse:
    """One operation."""
    lane, one = await found_operation(request, id)
    store = app_of(request).store
    at = await store.present()
    async with in_time():
        steps = await lane.operations.steps(id)
        again = await lane.operations.failed_again(id)
        unfit = await lane.operations.tasks(id, fate=Fate.UNFIT, limit=FAILED_SHOWN)
        moved = await store.operations.moved_since(id, at - LATELY)
        edited = await lane.operations.edits_of(id, limit=FAILED_SHOWN) if one.edit is not None else []
        deeds = await lane.deeds(f"operation:{id}")
        skipped = await lane.operations.skipped(one)
        runs = await _version(request, lane, one, at)
        parked = await _parked(lane, one) if one.tally.out and not moved.ended else None
    pace = ends_a_second(moved.ended, at)
    pictures = draw_steps(one, steps, pace)
    colour, icon, word = _mood(one)
    if one.state is OperationState.RUNNING:
        word = f"Running, step {min(one.course.step + 1, len(pictures) or 1)} of {len(pictures) or 1}"
    return render(
        request, "operation.html", visitor, title=f"Operation {id}", here="/operations", operation=one, at=at,
        heading=_title(one), how=(colour, icon, word), says=_says(one, at, pace, parked), next=one.ahead(at, pace), steps=pictures,
        brake=draw_brake(one), rate=draw_rate(one, moved.released, at), rate_words=one.course.ramp.rate_words,
        asked=asked_words(one.asked), ramp=ramp_words(one.course.ramp), failed=await _failed(lane, again[:FAILED_SHOWN]), split=split_words(again, one.tally.failed), runs=runs,
        unfit=unfit.items, skipped=skipped, set_path=f"/operations/{id}/tasks", edited=[edit_json(edit) for edit in edited], log=_log(one, steps, deeds), acts=_acts(one, visitor.name or ""),
        ended=one.state in ENDED, tried_one=one.state is OperationState.DONE and {"cause", "ids"} <= one.asked.keys() and one.tally.done == one.tally.total > 0,
    )  # fmt: skip


@router.get("/operations/{id}/tasks", response_class=HTMLResponse)
async def operation_tasks(
    request: Request,
    visitor: Looker,
    id: str,
    fate: Fate | None = None,
    cursor: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
) -> HTMLResponse:
    """The tasks of its set, page by page: all, or those that met one fate."""
    lane, one = await found_operation(request, id)
    async with in_time():
        page = await lane.operations.tasks(id, fate=fate, cursor=cursor, limit=LIMIT)
        standing = await _standing(lane, [task.task_id for task in page.items])
    place = {} if fate is None else {"fate": fate.value}
    return render(
        request, "operation_tasks.html", visitor, title=f"Tasks of operation {id}", here="/operations", operation=one, heading=_title(one),
        path=f"/operations/{id}/tasks", fate=fate, amounts=_amounts(one), rows=[(task, standing.get(task.task_id)) for task in page.items], words=FATES,
        **turns(f"/operations/{id}/tasks", place, cursor=None if cursor is None else str(cursor), following=None if page.cursor is None else str(page.cursor)),
    )  # fmt: skip


def _amounts(one: Operation) -> dict[Fate | None, int]:
    """How many tasks met which fate, those that nobody met left out; all of them under None."""
    tally = one.tally
    met = {fate: getattr(tally, fate.value) for fate in (Fate.DONE, Fate.FAILED, Fate.ENDED, Fate.SKIPPED, Fate.UNFIT)}
    found = {Fate.RELEASED: tally.out, Fate.FROZEN: tally.left} | met
    return {None: tally.total} | {fate: found[fate] for fate in FATES if found[fate]}


def _mood(one: Operation) -> tuple[str, str, str]:
    """How worried to be; where all is through and something failed again, that is said."""
    if one.state is OperationState.DONE and one.tally.failed:
        return "warn", "warn", f"Through, {one.tally.failed:,} failed again"
    return MOODS[one.state]


def _title(one: Operation) -> str:
    """What it does, in a few words."""
    kind = one.asked.get("kind")
    tasks = f"{one.tally.total:,} {kind + ' ' if kind else ''}{'task' if one.tally.total == 1 else 'tasks'}"
    if one.state is OperationState.DONE:
        if one.tally.failed:
            return f"Brought back {one.tally.done:,} of {tasks}"
        return f"Brought back {tasks}" if one.tally.total else "Nothing to bring back"
    return f"Bringing back {tasks}" if one.state is not OperationState.GIVEN_BACK else f"Gave back {tasks}"


def _says(one: Operation, at: datetime, pace: float | None, parked: str | None) -> str:
    """What it does now, about how long it still takes, and what holds it up."""
    said = redact(one.says(at)).rstrip(".")
    if parked is not None:
        return f"{said}. {parked}"
    left = time_left(one.course, one.tally, pace)
    return said if left is None else f"{said}; it ends in about {about(left)}"


async def _version(request: Request, lane: Lane, one: Operation, at: datetime) -> tuple[str, str] | None:
    """Which version runs now, and in which the tasks of the set failed last before it began."""
    store = app_of(request).store
    versions = Versions.of(await store.roster.seen(), at)
    kind = one.asked.get("kind") or await _kind(lane, one)
    if kind is None:
        return versions.beside(None)
    seen = await store.kinds.versions(one.ledger, kind, cause=one.asked.get("cause"), until=one.started_at)
    failed = [(row.last_failure, row.version) for row in seen if row.last_failure is not None]
    return versions.beside(max(failed)[1] if failed else None)


async def _kind(lane: Lane, one: Operation) -> str | None:
    """The kind of the first task of the set."""
    first = (await lane.operations.tasks(one.id, limit=1)).items
    task = await lane.get_by_id((await lane.ledger()).read_id(first[0].task_id)) if first else None
    return None if task is None else task.kind


async def _parked(lane: Lane, one: Operation) -> str | None:
    """What keeps back the first of those that are out; None where nothing does, or nobody can tell now."""
    out = (await lane.operations.tasks(one.id, fate=Fate.RELEASED, limit=1)).items
    task = await lane.get_by_id((await lane.ledger()).read_id(out[0].task_id)) if out else None
    found = None if task is None or task.state is not State.WAITING else await lane.parked(task)
    if found is None:
        return None
    return f"The first of them is {found.sentence()}: that is not a failure, and does not count for the brake"


async def _standing(lane: Lane, ids: Sequence[str]) -> dict[str, Task]:
    """Tasks as they stand now, by their ids; those that are gone are not among them."""
    if not ids:
        return {}
    ledger = await lane.ledger()
    asked = Filter(ids=[ledger.read_id(one) for one in ids])
    return {str(task.id): task for task in (await ledger.find(asked, limit=len(ids))).items}


async def _failed(lane: Lane, items: Sequence[FailedAgain]) -> list[dict[str, Any]]:
    """Those that failed again, as they stand now."""
    if not items:
        return []
    found = await _standing(lane, [one.task_id for one in items])
    rows = []
    for one in items:
        task = found.get(one.task_id)
        state = State.DEAD if task is None else task.state
        rows.append({"task": one, "state": state.value})
    return rows


def _log(one: Operation, steps: Any, deeds: Any) -> list[tuple[datetime, str]]:
    """What happened so far, the last first."""
    lines: list[tuple[datetime, str]] = [
        (deed.at, f"{deed.actor}: {deed.act.removeprefix('operation ')}, “{redact(deed.reason)}”") for deed in deeds
    ]
    for step in steps:
        if step.began_at is not None:
            again = step.fates.get(Fate.FAILED, 0)
            lines.append(
                (
                    step.began_at,
                    f"Step {step.number} released: {step.released:,}{f'; {again:,} failed again' if again else ''}",
                )
            )
    if one.frozen_at is not None:
        lines.append((one.frozen_at, f"{one.tally.total:,} tasks frozen"))
    return sorted(lines, reverse=True)


def _acts(one: Operation, name: str) -> list[tuple[str, str, str, bool]]:
    """What may be pressed: the act, its words, what it means, and whether it is the safe thing to do."""
    change = ("change", "Change rate…", "From the next round on. It never goes faster than that.", False)
    back = (
        "give-back",
        "Give the rest back…",
        f"{one.tally.left:,} that were not released stay dead as they were. That is the end of it.",
        False,
    )
    match one.state:
        case OperationState.GATHERING:
            return [back]
        case OperationState.UNAPPROVED:
            approve = ("approve", "Approve…", f"It begins with one of {one.tally.total:,} tasks.", True)
            return [back] if name == one.started_by else [back, approve]
        case OperationState.RUNNING:
            return [change, back, ("pause", "Pause…", "Nothing more is released. What is out runs on.", False)]
        case OperationState.PAUSED:
            return [change, back, ("resume", "Resume…", "It goes on where it stopped.", False)]
        case OperationState.HALTED:
            resume = (
                "resume",
                "Resume…",
                "It goes on with the next ones. What failed until now does not stop it again.",
                False,
            )
            return [change, back, resume]
        case _:
            return []
