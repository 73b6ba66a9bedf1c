"""Who did what to which tasks, or to what else people act on, from where and why; and one act with all that it changed."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import AfterValidator

from redrive.access.keys import AUDITED, SECRETS_AUDITED, SESSIONS_AUDITED
from redrive.app import Redrive
from redrive.http.panel import turns
from redrive.web.api.audit import CURSOR_CHARS_MAX, ID_CHARS_MAX, Audited, without_nul
from redrive.web.api.audit import act as act_of
from redrive.web.api.audit import audit as acts_of
from redrive.web.pages.frame import Looker, act_path, page_router, render
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
    found = await acts_of(request, ledger or None, cursor, LIMIT)
    return render(
        request, "audit.html", visitor, title="Audit",
        acts=found["acts"], ledger=ledger, ledgers=list(app.lanes), names=_names(app, ledger),
        **turns("/audit", {"ledger": ledger}, cursor=cursor, following=found["cursor"]),
    )  # fmt: skip


@router.get("/audit/{id:path}", response_class=HTMLResponse)
async def act(
    request: Request,
    visitor: Looker,
    id: Annotated[str, Path(max_length=ID_CHARS_MAX), AfterValidator(without_nul)],
    cursor: Annotated[str | None, Query(max_length=CURSOR_CHARS_MAX)] = None,
) -> HTMLResponse:
    """The page of one act."""
    found: dict[str, Any] = await act_of(request, id, cursor, LIMIT)
    return render(
        request, "act.html", visitor, title="Act",
        act=found, ledgers=list(service_of(request).app.lanes),
        **turns(act_path(id), {}, cursor=cursor, following=found["cursor"]),
    )  # fmt: skip


def _names(app: Redrive, chosen: str) -> Sequence[str]:
    """What the page can be narrowed down to."""
    systems = (name for system in app.systems.values() for name in system.audited)
    names = [*app.lanes, *systems, AUDITED, SESSIONS_AUDITED, SECRETS_AUDITED, chosen]
    return [name for name in dict.fromkeys(names) if name]
