"""Sessions of people: log in with a key, get a signed cookie, and act with its token.

The cookie holds the id of the key, when it was issued and when it ends, signed with a secret that all services on a database
share; nothing is kept on this side. Every request asks whether the key is still good, so whoever is revoked is out at once.
A cookie comes along with whatever a page makes the browser send, so what changes something needs the session's token too, in
`X-CSRF-Token` or in the field `csrf_token` of a form, which only our own pages know.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from redrive.access.keys import ApiKey, Keys, Scope
from redrive.access.secrets import shared_secret
from redrive.http.errors import ApiError
from redrive.http.guard import KEY_CHARS_MAX, require_unless_loopback
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.times import EPOCH
from redrive.operator.json_views import instant_json

COOKIE = "redrive_session"
LASTS = timedelta(hours=12)
COOKIE_CHARS_MAX = 1000
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FAILURES_MAX = 20
FAILURES_SPAN_SECONDS = 60.0
CALLERS_MAX = 1000
ROLES = (Scope.ADMIN, Scope.OPERATOR, Scope.VIEWER)

router = APIRouter(tags=["session"])


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


class Sessions:
    """Makes and reads the cookies of one database's services."""

    def __init__(self, database: Database, keys: Keys) -> None:
        self._database = database
        self._keys = keys
        self._secret: bytes | None = None
        self._failures: dict[str, deque[float]] = {}

    async def start(self, key: ApiKey) -> tuple[str, Session]:
        """A new session of a key: the cookie's value, and what it stands for."""
        now = self._database.now()
        ends = now + LASTS if key.expires_at is None else min(now + LASTS, key.expires_at)
        # The nonce makes the token of each session its own.
        facts = [key.id, _seconds(now), _seconds(ends), secrets.token_hex(8)]
        said = base64.urlsafe_b64encode(json.dumps(facts).encode()).decode().rstrip("=")
        value = f"{said}.{await self._sign('cookie', said)}"
        return value, Session(key=key, expires_at=ends, csrf_token=await self._sign("csrf", said))

    async def read(self, request: Request) -> Session | None:
        """The session of a request, if its cookie is ours and neither it nor its key has ended. Asked once per request."""
        if not hasattr(request.state, "session"):
            request.state.session = await self._read(request.cookies.get(COOKIE, ""))
        session: Session | None = request.state.session
        return session

    async def _read(self, value: str) -> Session | None:
        said, _, signature = value.partition(".")
        if not signature or len(value) > COOKIE_CHARS_MAX or not value.isascii():
            return None
        if not hmac.compare_digest(signature, await self._sign("cookie", said)):
            return None
        # What carries our signature was written by us.
        key_id, issued, ends, _ = json.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
        now = self._database.now()
        expires_at = EPOCH + timedelta(seconds=ends)
        if now >= expires_at or now < EPOCH + timedelta(seconds=issued) - timedelta(minutes=5):
            return None
        key = await self._keys.get(key_id)
        if key is None or not key.is_valid(now):
            return None
        return Session(key=key, expires_at=expires_at, csrf_token=await self._sign("csrf", said))

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

    async def _sign(self, purpose: str, said: str) -> str:
        if self._secret is None:
            self._secret = await shared_secret(self._database, "session")
        return hmac.new(self._secret, f"{purpose}\0{said}".encode(), hashlib.sha256).hexdigest()

    # --- guessing -----------------------------------------------------------------------------------------------------

    def check_patience(self, caller: str) -> None:
        """Refuse a caller who has just tried too many wrong keys."""
        failures = self._failures.get(caller)
        now = time.monotonic()
        while failures and now - failures[0] > FAILURES_SPAN_SECONDS:
            failures.popleft()
        if failures and len(failures) >= FAILURES_MAX:
            wait = {"Retry-After": str(int(FAILURES_SPAN_SECONDS))}
            raise ApiError(429, "too_many_tries", "too many wrong keys: wait a minute", headers=wait)

    def note_failure(self, caller: str) -> None:
        """Note a wrong key."""
        if caller not in self._failures and len(self._failures) >= CALLERS_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures.setdefault(caller, deque(maxlen=FAILURES_MAX)).append(time.monotonic())


def _seconds(instant: datetime) -> int:
    return int((instant - EPOCH).total_seconds())


async def _form_token(request: Request) -> str:
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return ""
    token = (await request.form()).get("csrf_token")
    return token if isinstance(token, str) else ""


def sessions_of(request: Request) -> Sessions:
    """The sessions of the service that the request is for."""
    sessions: Sessions = request.app.state.sessions
    return sessions


# --- routes -------------------------------------------------------------------------------------------------------------


@router.post("/login", summary="Log in with a key", response_class=Response)
async def login(
    request: Request,
    key: Annotated[str, Form(description="A key of scope viewer, operator or admin")] = "",
    next: Annotated[str, Form(description="Where to go then: a path of this service")] = "/",
) -> Response:
    """A browser is sent on to `next`, or back to `/login` with a reason; programs get JSON."""
    sessions = sessions_of(request)
    for_page = "text/html" in request.headers.get("accept", "")
    caller = request.client.host if request.client is not None else ""
    try:
        sessions.check_patience(caller)
        found = await _check(request, key.strip())
    except ApiError as error:
        if error.code != "other_page" and error.status in (401, 403):  # what another page sends is no guess of theirs
            sessions.note_failure(caller)
        if for_page:
            asked = {"problem": error.code} | ({"next": _local(next)} if _local(next) != "/" else {})
            return RedirectResponse(f"/login?{urlencode(asked)}", status_code=303)
        raise
    value, session = await sessions.start(found)
    answer: Response = (
        RedirectResponse(_local(next), status_code=303) if for_page else JSONResponse(session_json(session))
    )
    answer.set_cookie(
        COOKIE, value, max_age=int(LASTS.total_seconds()), path="/", httponly=True, samesite="strict", secure=_is_https(request)
    )  # fmt: skip
    return answer


async def _check(request: Request, secret: str) -> ApiKey:
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise ApiError(403, "other_page", "log in on the page of this service itself")
    keys: Keys = request.app.state.keys
    found = await keys.find(secret) if 0 < len(secret) <= KEY_CHARS_MAX else None
    if found is None:
        raise ApiError(401, "key_invalid", "the key is unknown, expired or revoked")
    if not found.allows(Scope.VIEWER):
        raise ApiError(403, "scope_missing", "this key is not for people: it needs the scope viewer, operator or admin")
    return found


@router.post("/logout", summary="Log out", response_class=Response)
async def logout(request: Request) -> Response:
    """Forget the cookie. Needs the session's token, so that no other page can do it."""
    await sessions_of(request).key_of(request)
    for_page = "text/html" in request.headers.get("accept", "")
    answer = RedirectResponse("/login", status_code=303) if for_page else Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=_is_https(request))
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
    # A proxy's word can only make the cookie stricter.
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").lower() == "https"


def _local(path: str) -> str:
    """The path if it leads nowhere else, else the start page."""
    parts = urlsplit(path)
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and not (parts.scheme or parts.netloc)
    return path if is_local and path.isprintable() and "\\" not in path else "/"
