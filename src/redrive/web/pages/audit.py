"""Who did what to which task, or to what else people act on, and why."""

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.access.keys import AUDITED
from redrive.http.panel import turns
from redrive.web.api.audit import CURSOR_CHARS_MAX, Audited
from redrive.web.api.audit import audit as deeds_of
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.service import service_of

LIMIT = 100

router = page_router()


@router.get("/audit", response_class=HTMLResponse)
async def audit(
    request: Request,
    visitor: Looker,
    ledger: Audited = "",
    cursor: Annotated[str | None, Query(max_length=CURSOR_CHARS_MAX)] = None,
) -> HTMLResponse:
    """The page."""
    app = service_of(request).app
    names = [*app.lanes, *(name for system in app.systems.values() for name in system.audited), AUDITED, ledger]
    found = await deeds_of(request, ledger or None, cursor, LIMIT)
    return render(
        request, "audit.html", visitor, title="Audit",
        deeds=found["deeds"], ledger=ledger, ledgers=list(app.lanes),
        names=[name for name in dict.fromkeys(names) if name],
        **turns("/audit", {"ledger": ledger}, cursor=cursor, following=found["cursor"]),
    )  # fmt: skip
