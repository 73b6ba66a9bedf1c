"""Charts: everything that is counted of one ledger, or of all of them, over an hour, a day or a week."""

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.http.panel import query_of
from redrive.web.api.overview import Range, overview, series
from redrive.web.pages.drawing import Chart
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.widgets import widgets
from redrive.web.service import service_of

router = page_router()


@router.get("/charts", response_class=HTMLResponse)
async def charts(
    request: Request, visitor: Looker, ledger: Annotated[str, Query(max_length=200)] = "", range: Range = Range.HOUR
) -> HTMLResponse:
    """The page."""
    ranges = [(one.value, query_of("/charts", {"ledger": ledger, "range": one.value}), one is range) for one in Range]
    return render(
        request, "charts_page.html", visitor, title="Charts", ledger=ledger, ledgers=list(service_of(request).app.lanes),
        range=range, ranges=ranges, charts=await charts_of(request, ledger, range),
    )  # fmt: skip


async def charts_of(request: Request, ledger: str, range: Range) -> list[Chart]:
    """The charts of a ledger, or of all."""
    numbers = await overview(request, ledger or None, range)
    drawn = await series(request, ledger or None, range)
    day = drawn if range is Range.DAY else await series(request, ledger or None, Range.DAY)
    return widgets(numbers, drawn, day)
