"""Where people log in; the form itself is taken by `session`."""

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.web.pages.frame import ADDRESS_CHARS_MAX, NOBODY, page_router, render

PROBLEMS = {
    "key_invalid": "The key is unknown, expired or revoked.",
    "scope_missing": "This key is not for people: it needs the scope viewer, operator or admin.",
    "too_many_tries": "Too many wrong keys: wait a minute, then try again.",
    "other_page": "Log in on this page itself.",
}
OTHER = "That did not work: try again."

router = page_router()


@router.get("/login", response_class=HTMLResponse)
async def login(
    request: Request,
    next: Annotated[str, Query(max_length=ADDRESS_CHARS_MAX)] = "/",
    problem: Annotated[str, Query(max_length=2000)] = "",
) -> HTMLResponse:
    """The form. Open to all."""
    said = PROBLEMS.get(problem, OTHER) if problem else None
    page = render(request, "login.html", NOBODY, title="Log in", next=next, problem=said)
    # Without any referrer a browser would not tell either where the form was sent from, and `session` asks for that.
    page.headers["Referrer-Policy"] = "same-origin"
    return page
