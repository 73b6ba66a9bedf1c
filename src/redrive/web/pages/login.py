"""Where people log in; the form itself is taken by `session`."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from redrive.web.pages.frame import ADDRESS_CHARS_MAX, NOBODY, TITLES, page_router, render
from redrive.web.session import sessions_of

PROBLEMS = {
    "key_invalid": "The key is unknown, expired or revoked.",
    "scope_missing": "This key is not for people: it needs the scope viewer, operator or admin.",
    "too_many_tries": "Too many wrong keys: wait a minute, then try again.",
    "other_page": "Log in on this page itself.",
}
OTHER = "That did not work: try again."
ELSEWHERE = "This dashboard is part of another application: log in there, then come back."

router = page_router()


@router.get("/login", response_class=HTMLResponse)
async def login(
    request: Request,
    next: Annotated[str, Query(max_length=ADDRESS_CHARS_MAX)] = "",
    problem: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """The form, or the way to that of the application that we are part of. Open to all."""
    elsewhere = sessions_of(request).elsewhere
    if elsewhere:
        return RedirectResponse(f"{elsewhere}{'&' if '?' in elsewhere else '?'}{urlencode({'next': next})}", 303)
    if elsewhere is not None:
        return render(request, "refused.html", NOBODY, title=TITLES[401], status=401, problem=ELSEWHERE)
    said = PROBLEMS.get(problem, OTHER) if problem else None
    page = render(request, "login.html", NOBODY, title="Log in", next=next, problem=said)
    # Without any referrer a browser would not tell either where the form was sent from, and `session` asks for that.
    page.headers["Referrer-Policy"] = "same-origin"
    return page
