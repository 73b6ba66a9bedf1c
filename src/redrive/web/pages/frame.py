"""What all pages have in common: who looks, the frame around the content, instants in words, and refusals as pages.

Everything that tasks bring along is escaped by the templates. The Content-Security-Policy allows our own files and nothing
inline: neither script nor style.
"""

import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import structlog
from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from redrive._version import __version__
from redrive.core.durations import format_duration, rounded
from redrive.core.failure import describe_error, redact
from redrive.errors import LedgerAwayError, TooSlowError, UsageError
from redrive.http.errors import ApiError
from redrive.http.guard import require_unless_loopback
from redrive.http.place import own_path, root_of, with_root
from redrive.operator.gates import moment
from redrive.web.pages.markup import TAGS, instant_of, time_tag
from redrive.web.service import service_of
from redrive.web.session import Visitor, sessions_of

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
MENU = (
    ("/", "Overview"),
    ("/tasks", "Tasks"),
    ("/dead", "Causes"),
    ("/operations", "Operations"),
    ("/workers", "Workers and gates"),
    ("/systems", "Systems"),
    ("/audit", "Audit"),
)
TITLES = {
    401: "Log in first",
    403: "Not allowed with this key",
    404: "Not found",
    500: "Something went wrong here",
    503: "The database is not responding",
}
_log: Any = structlog.get_logger().bind(system="web")
ADDRESS_CHARS_MAX = 2000
"""The longest address that a login leads back to."""

templates = Environment(
    # Each system keeps the template of its page beside its code: `flags/page.html`.
    loader=ChoiceLoader([PackageLoader("redrive.web"), PackageLoader("redrive.systems", ".")]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.globals |= TAGS


def reads_html(request: Request) -> bool:
    """Whether a person looks, with a browser."""
    return "text/html" in request.headers.get("accept", "")


class PageRoute(APIRoute):
    """Refusals of a page are pages too, for whoever reads HTML; who must log in first is sent to do so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except (ApiError, LedgerAwayError, TooSlowError, UsageError, RequestValidationError) as error:
                if not reads_html(request):
                    raise
                return _refusal(request, error)
            except Exception as error:
                if not reads_html(request):
                    raise
                _log.error("request_failed", path=request.url.path, error=describe_error(error), exc_info=True)
                return _broken(request)

        return handled


def page_router() -> APIRouter:
    """A router for pages."""
    return APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)


_open = require_unless_loopback("viewer")


async def looker(request: Request) -> Visitor:
    """Who looks; refused where they may not."""
    key = await _open(request, request.headers.get("x-api-key"))
    visitor = Visitor(session=await sessions_of(request).read(request), key=key)
    request.state.visitor = visitor
    return visitor


Looker = Annotated[Visitor, Depends(looker)]
"""Who looks: with a session, with a key in a header, or from this machine. A dependency of every page but the login."""

NOBODY = Visitor(session=None, key=None)
"""Somebody of whom nothing is known yet, and who is told nothing of the service."""


def render(
    request: Request, template: str, visitor: Visitor, *, title: str, status: int = 200, **content: Any
) -> HTMLResponse:
    """A page from its template."""
    service = service_of(request)
    now = datetime.now(UTC)
    content.setdefault("ledgers", list(service.app.lanes))
    page = templates.get_template(template).render(
        title=title,
        service=service.settings.service_name,
        version=__version__,
        database=None if visitor is NOBODY else redact(service.app.store.url),
        is_open=service.is_open,
        menu=() if visitor is NOBODY else MENU,
        here=content.pop("here", own_path(request.scope)),
        address=address_of(request),
        visitor=visitor,
        logs_in_elsewhere=sessions_of(request).elsewhere is not None,
        now=now,
        when=lambda instant: when(instant, now),
        time_moment=lambda instant: time_tag(instant, "data-live", lambda _: when(instant, now)),
        late=late,
        timed=timed,
        task_path=task_path,
        kind_path=kind_path,
        cause_path=cause_path,
        act_path=act_path,
        no_operations=service.app.store.operations.note,
        **content,
    )
    page = with_root(page, root_of(request))
    return HTMLResponse(page, status_code=status, headers={"Content-Security-Policy": POLICY})


def _refusal(request: Request, error: Exception) -> Response:
    match error:
        case ApiError(status=401):
            return RedirectResponse(
                f"{root_of(request)}/login?{urlencode({'next': address_of(request)})}", status_code=303
            )
        case ApiError():
            status, sentence = error.status, error.message
        case LedgerAwayError():
            status, sentence = (
                503,
                "The database cannot be reached now. The service keeps trying; reload the page in a moment.",
            )
        case TooSlowError():
            status, sentence = 503, "The database took too long to answer. Try again in a moment."
        case RequestValidationError():
            status, sentence = 422, "The address is not valid: " + "; ".join(str(one["msg"]) for one in error.errors())
        case _:
            status, sentence = 400, redact(str(error))
    title = TITLES.get(status, "That did not work")
    visitor = getattr(request.state, "visitor", NOBODY)
    return render(request, "refused.html", visitor, title=title, status=status, problem=sentence, here="")


def _broken(request: Request) -> Response:
    """What went wrong is for the log alone."""
    visitor = getattr(request.state, "visitor", NOBODY)
    problem = f"The log has more under the request id {request.state.request_id}."
    return render(request, "refused.html", visitor, title=TITLES[500], status=500, problem=problem, here="")


def address_of(request: Request) -> str:
    """Where the reader is, to come back to: without its query, or the start page, where it is too long to be kept."""
    path, query = request.url.path, request.url.query
    whole = f"{path}?{query}" if query else path
    return next((address for address in (whole, path) if len(address) <= ADDRESS_CHARS_MAX), root_of(request) + "/")


def task_path(ledger: str, id: object) -> str:
    """The page of a task; ids may hold any sign."""
    return f"/tasks/{quote(ledger, safe='')}/{quote(str(id), safe='')}"


def kind_path(ledger: str, kind: str) -> str:
    """The page of a kind."""
    return f"/kinds/{quote(ledger, safe='')}/{quote(kind, safe='')}"


def cause_path(ledger: str, cause: str) -> str:
    """The page of a failure cause."""
    return f"/causes/{quote(ledger, safe='')}/{quote(cause, safe='')}"


def act_path(id: object) -> str:
    """The page of an act of the audit."""
    return f"/audit/{quote(str(id), safe='')}"


def when(given: datetime | str, now: datetime) -> str:
    """`in 2m 5s`, `3h 10m ago`."""
    span = rounded(instant_of(given) - now)
    if not span:
        return "now"
    return f"in {format_duration(span)}" if span > timedelta(0) else f"{format_duration(-span)} ago"


def timed(text: str, now: datetime, *instants: datetime | str | None) -> list[tuple[str, datetime | None]]:
    """A sentence in pieces: those that say one of these instants in UTC stand alone, to be shown in the zone of whoever looks.

    What people have written into it, in quotation marks, is left alone.
    """
    known = {moment(one, now): one for given in instants if given is not None for one in [instant_of(given)]}
    pieces: list[tuple[str, datetime | None]] = []
    for part in re.split("(“[^”]*”)", text):
        found = [part] if part.startswith("“") or not known else re.split(f"({'|'.join(map(re.escape, known))})", part)
        pieces += [(one, None if one.startswith("“") else known.get(one)) for one in found if one]
    return pieces


def late(seconds: float | None) -> str:
    """How long something has been due."""
    return format_duration(rounded(timedelta(seconds=seconds))) if seconds is not None and seconds >= 1 else "–"
