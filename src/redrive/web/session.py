"""Sessions of people: log in with a key, get a cookie with a random token, and act with what is derived from it.

Every request asks whether the session is still there and its key still good: whoever logs out or is revoked is out at once. A
cookie comes along with whatever a page makes the browser send, so what changes something needs the session's token too, in
`X-CSRF-Token` or in the field `csrf_token` of a form, which only our own pages know.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from redrive.access.keys import PROGRAM, ApiKey, Scope
from redrive.http.described import GUARDED
from redrive.http.errors import ApiError, refusals
from redrive.http.guard import KeyFirstRoute, find_key, require_unless_loopback
from redrive.http.place import root_of
from redrive.operator.json_views import instant_json
from redrive.ports import Actor
from redrive.stores.port import Store

COOKIE = "redrive_session"
LASTS = timedelta(hours=12)
COOKIE_CHARS_MAX = 1000
TOKEN_BYTES = 32
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ROLES = (Scope.ADMIN, Scope.OPERATOR, Scope.VIEWER)

router = APIRouter(route_class=KeyFirstRoute, tags=["session"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Somebody who is logged in."""

    key: ApiKey
    expires_at: datetime
    csrf_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Whoever looks at a page: with a session, or from this machine without one."""

    session: Session | None
    key: ApiKey | None

    @property
    def name(self) -> str | None:
        """The owner of the key."""
        return None if self.key is None else self.key.owner

    @property
    def csrf_token(self) -> str:
        """What unsafe requests must carry; empty without a session."""
        return "" if self.session is None else self.session.csrf_token

    @property
    def can_act(self) -> bool:
        """Whether buttons are shown: for operators who have logged in."""
        return self.session is not None and self.key is not None and self.key.allows(Scope.OPERATOR)


def role_of(key: ApiKey) -> Scope | None:
    """The largest of the three roles that a key has."""
    return next((role for role in ROLES if key.allows(role)), None)


class Logins:
    """Makes and reads the cookies of the services on one store."""

    elsewhere: str | None = None
    """Where people log in, if not with us: an address, or nothing where nobody has said it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def start(self, key: ApiKey) -> tuple[str, Session]:
        """A new session of a key: the cookie's value, and what it stands for."""
        now = self._store.now()
        ends = now + LASTS if key.expires_at is None else min(now + LASTS, key.expires_at)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        await self._store.sessions.start(token, key.id, now, ends, by=Actor(name=key.owner))
        return token, Session(key=key, expires_at=ends, csrf_token=csrf_token(token))

    async def end(self, request: Request) -> None:
        """Forget the session of a request: its cookie opens nothing from now on."""
        session = await self.read(request)
        by = PROGRAM if session is None else Actor(name=session.key.owner)
        await self._store.sessions.end(request.cookies.get(COOKIE, ""), by=by)

    async def read(self, request: Request) -> Session | None:
        """The session of a request, if its cookie is ours and neither it nor its key has ended. Asked once per request."""
        if not hasattr(request.state, "session"):
            request.state.session = await self._read(request.cookies.get(COOKIE, ""))
        session: Session | None = request.state.session
        return session

    async def _read(self, token: str) -> Session | None:
        if not token or len(token) > COOKIE_CHARS_MAX:
            return None
        found = await self._store.sessions.find(token)
        now = self._store.now()
        if found is None or now >= found[1] or not found[0].is_valid(now):
            return None
        return Session(key=found[0], expires_at=found[1], csrf_token=csrf_token(token))

    async def key_of(self, request: Request) -> ApiKey | None:
        session = await self.read(request)
        if session is None:
            return None
        if request.method not in SAFE:
            given = request.headers.get("x-csrf-token") or await _form_token(request)
            if not hmac.compare_digest(given.encode(), session.csrf_token.encode()):
                raise ApiError(
                    403, "csrf_failed", "the request lacks the token of your session: load the page again and repeat it"
                )
        return session.key


def csrf_token(token: str) -> str:
    """What unsafe requests must carry: only who has the cookie itself can know it."""
    return hashlib.sha256(f"csrf\0{token}".encode()).hexdigest()


async def _form_token(request: Request) -> str:
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return ""
    token = (await request.form()).get("csrf_token")
    return token if isinstance(token, str) else ""


def sessions_of(request: Request) -> Logins:
    """The sessions of the service that the request is for."""
    logins: Logins = request.app.state.sessions
    return logins


# --- routes -------------------------------------------------------------------------------------------------------------


@router.post("/login", summary="Log in with a key", response_class=Response, responses=refusals(GUARDED))
async def login(
    request: Request,
    key: Annotated[str, Form(description="A key of scope viewer, operator or admin")] = "",
    next: Annotated[str, Form(description="Where to go then: a path of this host")] = "",
) -> Response:
    """A browser is sent on to `next`, or back to `/login` with a reason; programs get JSON."""
    for_page = "text/html" in request.headers.get("accept", "")
    if sessions_of(request).elsewhere is not None:
        raise ApiError(404, "not_found", "people log in to the application that this dashboard is part of")
    start = root_of(request) + "/"
    there = _local(next, start)
    try:
        found = await _check(request, key.strip())
    except ApiError as error:
        if for_page:
            asked = {"problem": error.code} | ({"next": there} if there != start else {})
            return RedirectResponse(f"{root_of(request)}/login?{urlencode(asked)}", status_code=303)
        raise
    token, session = await sessions_of(request).start(found)
    answer: Response = RedirectResponse(there, status_code=303) if for_page else JSONResponse(session_json(session))
    answer.set_cookie(
        COOKIE, token, max_age=int(LASTS.total_seconds()), path=start, httponly=True, samesite="strict", secure=_is_https(request)
    )  # fmt: skip
    return answer


async def _check(request: Request, secret: str) -> ApiKey:
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise ApiError(403, "other_page", "log in on the page of this service itself")
    found = await find_key(request, secret)
    if not found.allows(Scope.VIEWER):
        raise ApiError(403, "scope_missing", "this key is not for people: it needs the scope viewer, operator or admin")
    return found


@router.post(
    "/logout", summary="Log out", response_class=Response, responses=refusals({403: "The session's token is missing"})
)
async def logout(request: Request) -> Response:
    """End the session. Needs its token, so that no other page can do it."""
    if await sessions_of(request).key_of(request) is not None:
        await sessions_of(request).end(request)
    for_page = "text/html" in request.headers.get("accept", "")
    answer = RedirectResponse(f"{root_of(request)}/login", status_code=303) if for_page else Response(status_code=204)
    answer.delete_cookie(
        COOKIE, path=root_of(request) + "/", httponly=True, samesite="strict", secure=_is_https(request)
    )
    return answer


@router.get("/api/session", summary="Who am I?", dependencies=[Depends(require_unless_loopback("viewer"))])
async def session(request: Request) -> dict[str, Any]:
    """The session of this browser; without one all is null, and the caller is on this machine or sent a key."""
    return session_json(await sessions_of(request).read(request))


def session_json(session: Session | None) -> dict[str, Any]:
    """A session as JSON."""
    if session is None:
        return dict.fromkeys(("owner", "key_id", "role", "expires_at", "csrf_token"))
    return {
        "owner": session.key.owner,
        "key_id": session.key.id,
        "role": role_of(session.key),
        "expires_at": instant_json(session.expires_at),
        "csrf_token": session.csrf_token,
    }


def _is_https(request: Request) -> bool:
    return request.url.scheme == "https"  # as a trusted proxy says, where there is one


def _local(path: str, start: str = "/") -> str:
    """The path if it leads nowhere else, else the start page."""
    parts = urlsplit(path)
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and not (parts.scheme or parts.netloc)
    return path if is_local and path.isprintable() and "\\" not in path else start
