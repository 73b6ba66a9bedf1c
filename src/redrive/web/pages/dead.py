"""Dead letters, grouped by cause."""

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.web.api.groups import groups
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.service import service_of

router = page_router()


@router.get("/dead", response_class=HTMLResponse)
async def dead(request: Request, visitor: Looker, ledger: Annotated[str, Query(max_length=200)] = "") -> HTMLResponse:
    """The page."""
    found = await groups(request, ledger or None)
    return render(
        request, "dead.html", visitor, title="Failure causes",
        groups=found, ledger=ledger, ledgers=list(service_of(request).app.lanes),
    )  # fmt: skip
