"""Effects of which nobody knows whether they happened: those that need a person first, then those whose probe is asked."""

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.core.effect import effect_key
from redrive.operator.effects import UnknownEffect
from redrive.web.api.common import in_time, lanes_of
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.task import ACTS

LIMIT = 50

router = page_router()


@router.get("/effects", response_class=HTMLResponse)
async def effects(
    request: Request, visitor: Looker, ledger: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """The page: the first of each ledger, and that there are more."""
    asked, probing, more = list[UnknownEffect](), list[UnknownEffect](), False
    async with in_time():
        for lane in lanes_of(request, ledger):
            for needs_person, rows in ((True, asked), (False, probing)):
                page = await lane.unknown_effects(needs_person=needs_person, limit=LIMIT)
                rows += page.items
                more |= page.cursor is not None
    keys = {(one.ledger, one.task.id): effect_key(one.ledger, one.task) for one in (*asked, *probing)}
    return render(
        request, "effects.html", visitor, title="Unknown effects", here="/tasks", ledger=ledger,
        asked=asked, probing=probing, more=more, keys=keys, acts=ACTS["unknown"],
    )  # fmt: skip
