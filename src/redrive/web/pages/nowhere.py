"""An address that leads nowhere: a page for whoever reads HTML, with the menu for those who may look."""

from collections.abc import Awaitable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from redrive.errors import LedgerAwayError, TooSlowError
from redrive.http.errors import ApiError
from redrive.web.pages.frame import NOBODY, TITLES, looker, reads_html, render


def answer_readers(web: FastAPI) -> None:
    """Programs get the one form of errors, as before."""
    tell = web.exception_handlers[HTTPException]

    @web.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if error.status_code != 404 or not reads_html(request):
            said = tell(request, error)
            return await said if isinstance(said, Awaitable) else said
        return await _nothing(request)


async def _nothing(request: Request) -> Response:
    try:
        visitor = await looker(request)
    except (
        ApiError,
        LedgerAwayError,
        TooSlowError,
    ):  # who may not look, or cannot be known now, is told no more than this
        visitor = NOBODY
    problem = f"There is nothing at {request.url.path:.200}"
    return render(request, "refused.html", visitor, title=TITLES[404], status=404, problem=problem, here="")
