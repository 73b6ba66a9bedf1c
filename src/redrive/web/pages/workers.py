"""Workers and gates: who is there, who is lost and what it held, which destination is held back, and who paused what."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from redrive.operator.roster import drift_words
from redrive.operator.verdict.words import took_words
from redrive.web.api.workers import workers as seen
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.gates import gates_shown

ORDER = ("lost", "working", "stopped")
MOODS = {"lost": ("bad", "Lost"), "working": ("good", "Well"), "stopped": ("plain", "Stopped")}
"""How worried to be, and the word for it."""

router = page_router()


@router.get("/workers", response_class=HTMLResponse)
async def workers(request: Request, visitor: Looker) -> HTMLResponse:
    """The page."""
    found = sorted(await seen(request), key=lambda one: ORDER.index(one["state"]))
    shown = await gates_shown(request)
    return render(
        request, "workers.html", visitor, title="Workers and gates", workers=found, moods=MOODS, workers_verdict=_verdict(found),
        slots=_slots(found), held_words=_held, drift_words=drift_words, first_page=None, next_page=None, **shown,
    )  # fmt: skip


def _verdict(found: Sequence[Mapping[str, Any]]) -> str:
    states = Counter(one["state"] for one in found)
    there, lost = states["working"], states["lost"]
    if not there and not lost:
        return "No worker is there."
    well = f"All {there:,} workers are well" if there > 1 else "One worker is well" if there else "No worker is well"
    return f"{there:,} of {there + lost:,} workers are well." if lost else f"{well}."


def _held(seconds: float | None) -> str:
    """How long the oldest task has been held."""
    return "–" if seconds is None else took_words(timedelta(seconds=seconds))


def _slots(found: Sequence[Mapping[str, Any]]) -> str:
    """How much of what there is in use, and which versions run."""
    there = [one for one in found if one["state"] == "working"]
    if not there:
        return ""
    versions = Counter(one["version"] for one in there if one["version"])
    held, slots = sum(one["held"] for one in there), sum(one["slots"] for one in there)
    said = f"{held:,} of {slots:,} slots in use"
    if len(versions) == 1:
        return f"{said}; all on version {next(iter(versions))}"
    return (
        f"{said}; {', '.join(f'{amount:,} on {name}' for name, amount in versions.most_common(5))}"
        if versions
        else said
    )
