"""Workers: who is there, who is lost and what it held, and which version each runs."""

from fastapi import Request
from fastapi.responses import HTMLResponse

from redrive.web.api.workers import workers as seen
from redrive.web.pages.frame import Looker, page_router, render

ORDER = ("lost", "working", "stopped")
MOODS = {"lost": "bad", "working": "good", "stopped": "plain"}
"""How worried to be."""

router = page_router()


@router.get("/workers", response_class=HTMLResponse)
async def workers(request: Request, visitor: Looker) -> HTMLResponse:
    """The page."""
    found = sorted(await seen(request), key=lambda one: ORDER.index(one["state"]))
    return render(request, "workers.html", visitor, title="Workers", workers=found, moods=MOODS)
