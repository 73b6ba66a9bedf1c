"""One task: its row, its payload, the picture of its tries, why each went as it did, and what happens next by itself."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from redrive.core.cause import cause_of
from redrive.core.effect_mark import OPEN
from redrive.errors import TooSlowError
from redrive.lane import Lane
from redrive.operator.gates import moment
from redrive.web.api.common import lane_of
from redrive.web.api.groups import groups
from redrive.web.api.tasks import one as told_of
from redrive.web.pages.frame import Looker, page_router, render, when
from redrive.web.pages.markup import instant_of
from redrive.web.pages.timeline import AHEAD_MAX, draw, story

ACTS = {
    "dead": (
        ("redrive", "Redrive", "main-act"),
        ("done", "Resolve as done", ""),
        ("cancelled", "Resolve as cancelled", ""),
    ),
    "waiting": (("cancel", "Cancel", ""),),
    "claimed": (("cancel-running", "Cancel while it runs", ""),),
    "unknown": (
        ("happened", "It happened", "main-act"),
        ("not-happened", "It did not happen", ""),
        ("close", "Close it", ""),
    ),
}
"""What may be done to a task in this state: the act, the button, its look."""

UNKNOWN = {
    "dead": "nothing by itself. Nobody knows whether its effect happened: look where it would show, and answer. Until then nothing runs it.",
    "waiting": "its probe is asked whether its effect happened. Nothing else is done before that is known.",
}
"""What to say of a task whose effect may have happened."""

router = page_router()


@router.get("/tasks/{ledger}/{id:path}", response_class=HTMLResponse)
async def task(request: Request, visitor: Looker, ledger: str, id: str) -> HTMLResponse:
    """The page."""
    said = await told_of(request, ledger, id)
    its, preview = said["task"], said["preview"]
    told = story(its, said["attempts"], said["deeds"], preview)
    mood, ahead = _ahead(its, preview, said["parked"], has_handler=said["has_handler"])
    asked = said["effect"] is not None and said["effect"]["state"] in OPEN
    unknown = asked and its["state"] == "dead"
    if asked and its["state"] in ("dead", "waiting"):
        mood, ahead = "alarm" if unknown else "warn", UNKNOWN[its["state"]]
    payload = its["payload"]
    return render(
        request, "task.html", visitor, title=f"Task {its['id']}", here="/tasks",
        ledger=its["ledger"], task=its, acts=_acts(lane_of(request, ledger), "unknown" if unknown else its["state"]),
        effect=said["effect"], progress=said["progress"],
        checkpoint=json.dumps(said["progress"]["checkpoint"], ensure_ascii=False) if said["progress"] else None,
        payload=None if payload is None else json.dumps(payload, indent=2, ensure_ascii=False),
        story=told, picture=draw(told), attempts_before=said["attempts_before"],
        cause=await _cause(request, its, said["attempts"]) if its["state"] == "dead" and its["last_error"] else None,
        edits=said["edits"], more_ahead=max(0, len(preview) - AHEAD_MAX), mood=mood, ahead=ahead,
    )  # fmt: skip


async def _cause(request: Request, its: dict[str, Any], attempts: Sequence[dict[str, Any]]) -> str | None:
    """The failure cause that it is dead of, where that has a page: the latest deaths are grouped within seconds."""
    failed = next((one for one in reversed(attempts) if one["error"]), None)
    own = [
        f"{frame['file']}:{frame['line']} in {frame['name']}"
        for raised in (failed["stack"][:1] if failed else ())
        for frame in raised["frames"]
        if frame["own"]
    ]
    error = its["last_error"]
    # Some stores group by the error alone, and some tables keep less of it than the history.
    whole = failed["error"] if failed else error
    likely = [cause_of(one, kind=its["kind"], at=own[-1] if own else None).id for one in (whole, error)] + [
        cause_of(error).id
    ]
    try:
        known = {one["cause"] for one in await groups(request, its["ledger"])}
    except TooSlowError:
        return None
    return next((one for one in likely if one in known), None)


def _acts(lane: Lane, state: str) -> list[tuple[str, str, str]]:
    """What may be done here: a table without a word for cancelled has no such end, and others are never taken from people."""
    without = {str(end) for end in lane.refused_ends}
    if lane.table.words.cancelled is None:
        without |= {"cancel", "cancelled", "cancel-running", "close"}
    return [act for act in ACTS.get(state, ()) if act[0] not in without]


def _ahead(
    its: dict[str, Any], preview: list[dict[str, Any]], parked: dict[str, Any] | None, *, has_handler: bool
) -> tuple[str, str]:
    """What happens next by itself, and how worried to be."""
    now = datetime.now(UTC)
    match its["state"]:
        case "dead":
            return (
                "alarm",
                "nothing by itself. Redrive it to try again with a fresh budget, or resolve it if you have dealt with it.",
            )
        case "waiting" if not has_handler:
            return "", "it waits for a worker that knows its kind; there is none in this service. No try is charged."
        case "waiting" if parked is not None:
            return (
                "",
                f"it is {parked['explained']} No try is charged meanwhile, and its deadline, if it has one, still holds.",
            )
        case "waiting" if its["due_at"] and instant_of(its["due_at"]) > now:
            left = f" If every try fails, {len(preview)} are left." if len(preview) > 1 else " It is the last one."
            return (
                "well",
                f"it is tried {when(its['due_at'], now)}, at {moment(instant_of(its['due_at']), now)}.{left if preview else ''}",
            )
        case "waiting":
            return "well", "it is due: the next free worker takes it."
        case "claimed":
            ends = f" Its lease ends {when(its['lease_until'], now)};" if its["lease_until"] else ""
            return (
                "well",
                f"it runs now.{ends} if its worker is gone by then, the try counts as failed and it goes on from there.",
            )
        case state:
            return "well", f"nothing: it is {state}."
