"""The dashboard under a path of your own web application, for people whom your application knows.

    async def who(request):
        user = request.session.get("user")
        return Person(user, "operator") if user in STAFF else None

    dashboard = Dashboard("/ops/redrive", who=who, login="/login")
    web = FastAPI(lifespan=lifespan(app, work=True, dashboard=dashboard))
    web.mount(dashboard.path, dashboard)

Pages, API and routes of systems are the same as in `redrive serve`. Programs come in with a key in `X-API-Key`, as ever.
"""

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from redrive.access.keys import ApiKey, Scope
from redrive.app import Redrive, WorkerSettings
from redrive.errors import UsageError, needs_extra
from redrive.running import Service
from redrive.settings import Settings, load

with needs_extra("redrive.dashboard", "service"):
    from fastapi import FastAPI
    from starlette.datastructures import MutableHeaders
    from starlette.requests import Request
    from starlette.types import Message, Receive, Send
    from starlette.types import Scope as AsgiScope

    from redrive.http.errors import ApiError
    from redrive.web.app import make_web
    from redrive.web.session import LASTS, SAFE, Logins, Session, csrf_token

__all__ = ["Dashboard", "Person", "Who"]

COOKIE = "redrive_page"
"""Holds a random word from which the token of a page's acts is derived. It says nothing about who somebody is."""
TOKEN_BYTES = 32
TOKEN_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody whom your application knows, and what they may do here: a viewer looks, an operator acts."""

    name: str
    role: Literal["viewer", "operator", "admin"] = "viewer"


Who = Callable[[Request], Person | Awaitable[Person | None] | None]
"""Who sends this request, by your own authentication; None for nobody. It is asked once per request and must not read the body."""


class Dashboard:
    """An ASGI application to be mounted under `path`. `lifespan(app, dashboard=...)` gives it the application that it shows."""

    def __init__(self, path: str, *, who: Who | None = None, login: str | None = None) -> None:
        """With `who` your application says who somebody is, and `login` is where it sends people who must log in first; they come back
        with `next`. Without `who` people log in with keys of redrive.
        """
        if not path.startswith("/") or path.endswith("/"):
            raise UsageError(f"the path of a dashboard begins with a slash and does not end with one, unlike {path!r}")
        if login is not None and who is None:
            raise UsageError("`login` is where your application lets people in: give `who` too")
        self.path = path
        self._who = who
        self._login = login
        self._web: FastAPI | None = None

    @asynccontextmanager
    async def shown(self, app: Redrive, work: bool | WorkerSettings = False) -> AsyncIterator["asyncio.Task[None]"]:  # noqa: FBT001, FBT002
        """Open the application and show it, with its books kept and its alerts sent, and with its workers or without; see `lifespan`."""
        settings = work if isinstance(work, WorkerSettings) else None
        service = _Hosted(app, load(Settings), settings, working=work is not False)
        async with app:
            await service.open()
            self._web = make_web(service, None if self._who is None else _HostLogins(service, self._who, self._login))
            self._web.state.trusts_loopback = False  # the host may stand behind a proxy, of which we know nothing
            running = asyncio.create_task(service.work())
            try:
                yield running
            finally:
                service.stop()
                await running
                self._web = None

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Handle one request, whether the host leaves its own path in front of ours, as Starlette does, or takes it off, as Litestar does."""
        if scope["type"] != "http":
            return
        if self._web is None:
            raise RuntimeError("the dashboard shows nothing yet: give it to `lifespan(app, dashboard=...)`")
        request = Request(scope)
        word = _word(request)
        ours = {**self._placed(scope), "state": {"host_request": request, "word": word}, "path_params": {}}

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                secure = "; Secure" if request.url.scheme == "https" else ""
                cookie = f"{COOKIE}={word}; Path={ours['root_path']}; HttpOnly; SameSite=Strict{secure}"
                MutableHeaders(scope=message).append("Set-Cookie", cookie)
            await send(message)

        is_new = self._who is not None and request.cookies.get(COOKIE) != word
        await self._web(ours, receive, send_with_cookie if is_new else send)

    def _placed(self, scope: AsgiScope) -> AsgiScope:
        """The scope with our root and the whole path, as ASGI wants them."""
        root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
        if not root.endswith(self.path):
            root += self.path
        if not f"{path}/".startswith(f"{root}/"):
            # Some put a slash at the end of what is left, too; what was asked for is still there.
            asked = unquote(scope.get("raw_path", b"").decode("latin-1"))
            path = asked if f"{asked}/".startswith(f"{root}/") else root + path
        return {**scope, "root_path": root, "path": path}


class _Hosted(Service):
    """A service in somebody else's process: it ends without the process, and makes no first key, since nobody would see it."""

    exits = False

    async def prepare(self) -> None:
        """See `Service.prepare`."""


class _HostLogins(Logins):
    """People as the host knows them. It has cookies of its own, of which we know nothing; so what changes something must come from a page
    of ours: with the token that only our pages have, and from our own origin where the browser names one.
    """

    def __init__(self, service: Service, who: Who, login: str | None) -> None:
        super().__init__(service.app.store)
        self._who = who
        self.elsewhere = login or ""

    async def read(self, request: Request) -> Session | None:
        """See `Logins.read`."""
        if not hasattr(request.state, "session"):
            found = self._who(request.state.host_request)
            person = await found if inspect.isawaitable(found) else found
            request.state.session = None if person is None else self._session(person, request.state.word)
        session: Session | None = request.state.session
        return session

    async def key_of(self, request: Request) -> ApiKey | None:
        """See `Logins.key_of`."""
        origin = request.headers.get("origin")
        if request.method not in SAFE and origin and urlsplit(origin).netloc != request.headers.get("host"):
            raise ApiError(403, "other_page", "the request comes from a page that is not ours")
        return await super().key_of(request)

    def _session(self, person: Person, word: str) -> Session:
        now = self._store.now()
        key = ApiKey(id="host", owner=person.name, scopes=(Scope(person.role),), created_at=now)
        return Session(key=key, expires_at=now + LASTS, csrf_token=csrf_token(word))


def _word(request: Request) -> str:
    """The random word of this browser, or a new one."""
    given = request.cookies.get(COOKIE, "")
    return given if 0 < len(given) <= TOKEN_CHARS_MAX and given.isascii() else secrets.token_urlsafe(TOKEN_BYTES)
