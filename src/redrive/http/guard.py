"""Who may come in: keys in `X-API-Key`, people who logged in with one, and what is open to this machine itself."""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from typing import Annotated, Any, Protocol

from fastapi import Request, Response, Security
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader

from redrive.access.keys import ApiKey, Scope
from redrive.access.ports import Keys
from redrive.access.wrong_keys import SPAN_SECONDS, WrongKeys
from redrive.http.errors import ApiError

KEY_CHARS_MAX = 500
FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
"""Set by proxies: the caller then is not the machine that the connection comes from."""

CHALLENGE = {"WWW-Authenticate": 'ApiKey realm="redrive"'}

_HOST = re.compile(rb"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{1,5})?", re.IGNORECASE)
_header = APIKeyHeader(
    name="X-API-Key", auto_error=False, description="A key with the scope that the route names: `redrive keys create`."
)


class ReadsSessions(Protocol):
    """People who logged in; `app.state.sessions` holds one where there is a login."""

    async def key_of(self, request: Request) -> ApiKey | None:
        """The valid key that the request's session belongs to; raises where an unsafe request lacks the session's token."""
        ...


def require(scope: str) -> Callable[..., Awaitable[ApiKey]]:
    """A dependency: the caller's key, which must be good for the scope. 401 without a valid key, 403 without the scope."""
    needed = Scope(scope)

    async def key_of(request: Request, secret: Annotated[str | None, Security(_header)] = None) -> ApiKey:
        return await _authorised(request, secret, needed)

    return _guard(key_of)


def require_unless_loopback(scope: str) -> Callable[..., Awaitable[ApiKey | None]]:
    """A dependency: as `require`, but open to requests from this machine itself, where that is trusted. For looking only."""
    needed = Scope(scope)

    async def key_of(request: Request, secret: Annotated[str | None, Security(_header)] = None) -> ApiKey | None:
        if secret is None and is_from_loopback(request) and await _session_key(request) is None:
            return None
        return await _authorised(request, secret, needed)

    return _guard(key_of)


def require_unless_local_program(scope: str) -> Callable[..., Awaitable[ApiKey | None]]:
    """A dependency: as `require`, but open to programs on this machine, where that is trusted, also for routes that write.

    A program is let in where a page is not: a browser on this machine may be made to send what a page from elsewhere likes.
    Browsers name that page as the `Origin` of every POST, so one that is not our own needs a key. Routes must also insist on
    a content type of JSON, which browsers send elsewhere only after asking for permission, which is never given here.
    """
    needed = Scope(scope)

    async def key_of(request: Request, secret: Annotated[str | None, Security(_header)] = None) -> ApiKey | None:
        if secret is None and is_from_loopback(request) and not _is_from_other_page(request):
            return None
        return await _authorised(request, secret, needed)

    return _guard(key_of)


class KeyFirstRoute(APIRoute):
    """A route that reads no body of somebody who may not send one. The framework reads bodies before it asks who sends them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handle = super().get_route_handler()
        guards = _guards(self.dependant)

        async def answer(request: Request) -> Response:
            for guard in guards:
                await guard(request, request.headers.get("x-api-key"))
            return await handle(request)

        return answer


def _guard(check: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    check.is_guard = True  # type: ignore[attr-defined]  # for `KeyFirstRoute`
    return check


def _guards(dependant: Dependant) -> list[Callable[..., Awaitable[Any]]]:
    found = [guard for inner in dependant.dependencies for guard in _guards(inner)]
    return [dependant.call, *found] if getattr(dependant.call, "is_guard", False) and dependant.call else found


def _is_from_other_page(request: Request) -> bool:
    origins = [value for name, value in request.scope["headers"] if name == b"origin"]
    return any(origin.decode("latin-1") != f"http://{request.headers['host']}" for origin in origins)


def is_from_loopback(request: Request) -> bool:
    """Whether a program on this machine asks for this machine, and the settings say that this is enough.

    It never is behind a plain TCP forwarder, which looks just like it: therefore the setting, which is off by default.
    The `Host` must be a loopback name too: a page from elsewhere whose name was made to point here would send its own. And
    no proxy may stand in between. Some tell nothing of the caller unless they are told to, and ask with our own address as
    the `Host`; what gives nginx away then, before its version 1.29.7, is HTTP/1.0, which hardly any program speaks.
    """
    scope = request.scope
    client, headers = scope.get("client"), scope["headers"]
    if not request.app.state.trusts_loopback or client is None or scope.get("http_version") == "1.0":
        return False
    if not FORWARDED.isdisjoint([name for name, _ in headers]):
        return False
    # Read here and not from `request.url`, which puts our own address in the place of a Host that is none.
    hosts = [value for name, value in headers if name == b"host"]
    return len(hosts) == 1 and _is_loopback(client[0]) and _is_loopback_host(hosts[0])


@lru_cache(maxsize=1024)
def _is_loopback_host(host: bytes) -> bool:
    asked_for = _HOST.fullmatch(host)
    return asked_for is not None and _is_loopback(asked_for["name"].decode("ascii"))


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


async def _authorised(request: Request, secret: str | None, needed: Scope) -> ApiKey:
    key = await find_key(request, secret) if secret else await _session_key(request)
    if key is None:
        raise ApiError(401, "key_missing", "send a key in the header X-API-Key, or log in", headers=CHALLENGE)
    if not key.allows(needed):
        held = [scope.value for scope in key.scopes]
        message = f"the key lacks the scope {needed.value}"
        raise ApiError(403, "scope_missing", message, details={"needed": needed.value, "held": held})
    return key


async def _session_key(request: Request) -> ApiKey | None:
    sessions: ReadsSessions | None = getattr(request.app.state, "sessions", None)
    return None if sessions is None else await sessions.key_of(request)


async def find_key(request: Request, secret: str) -> ApiKey:
    """The valid key with this text, asked for once per request. Otherwise 401, or 429 for whoever guesses and guesses.

    A right key always opens, however many wrong ones were tried before: nobody can lock somebody else out.
    """
    known: tuple[str, ApiKey] | None = getattr(request.state, "found_key", None)
    if known is not None and known[0] == secret:
        return known[1]
    keys: Keys = request.app.state.keys
    key = await keys.find(secret) if 0 < len(secret) <= KEY_CHARS_MAX else None
    if key is None:
        raise wrong_key(request, secret)
    request.state.found_key = (secret, key)
    return key


def wrong_key(
    request: Request, secret: str, *, code: str = "key_invalid", too_many: str = "too_many_tries"
) -> ApiError:
    """The refusal of a key that is none, which is counted."""
    wrong_keys: WrongKeys = request.app.state.wrong_keys
    caller = request.client.host if request.client is not None else ""
    if wrong_keys.note(caller, secret):
        wait = {"Retry-After": str(SPAN_SECONDS)}
        return ApiError(429, too_many, "too many wrong keys: wait a minute", headers=wait)
    return ApiError(401, code, "the key is unknown, expired or revoked", headers=CHALLENGE)
