"""Reading what strangers send, within limits of size and of time.

Nothing larger than its limit is ever held: a body is counted as it comes, whatever its headers say, and refused as soon as it is
too long.
"""

import asyncio

from fastapi import HTTPException, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.http.errors import ApiError
from redrive.http.place import own_path

BODY_BYTES_MAX = 1 << 20


async def read_body(request: Request, bytes_max: int, *, seconds_max: float, remedy: str = "") -> bytes:
    """The whole body, which the request keeps for whoever asks it again.

    413 as soon as it is known to be too large, with the remedy, if there is one; 408 where it is too slow.
    """
    length = header(request, b"content-length") or ""
    if length.isdecimal() and (len(length) > 18 or int(length) > bytes_max):
        raise _too_large(bytes_max, remedy)
    receive = request.receive
    if has_come(receive):
        body = await _read_all(receive, bytes_max, remedy)
    else:
        try:
            async with asyncio.timeout(seconds_max):
                body = await _read_all(receive, bytes_max, remedy)
        except TimeoutError:
            raise ApiError(408, "body_too_slow", f"send the whole body within {seconds_max:g} s") from None
    request._body = body  # noqa: SLF001 - where `request.body()` and `request.json()` look for it
    return body


def has_come(receive: Receive) -> bool:
    """Whether the whole body is there, where our own server says so: nobody waits for it then, and no clock need run."""
    return bool(getattr(getattr(receive, "__self__", None), "has_whole_body", False))


async def _read_all(receive: Receive, bytes_max: int, remedy: str) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "disconnected", "the sender left before its body was read")
        piece: bytes = message.get("body", b"")
        if len(body) + len(piece) > bytes_max:
            raise _too_large(bytes_max, remedy)
        if not message.get("more_body", False):
            return bytes(body) + piece if body else piece
        body += piece


def _too_large(bytes_max: int, remedy: str) -> ApiError:
    message = f"the body is larger than {bytes_max:,} bytes" + (remedy and f": {remedy}")
    return ApiError(413, "too_large", message, details={"bytes_max": bytes_max})


def check_is_json(request: Request) -> None:
    """415 unless the body says that it is JSON in UTF-8.

    It also keeps pages of other sites out: a browser sends them with this content type only after it has asked us for
    permission, which we never give.
    """
    given = header(request, b"content-type") or ""
    if given != "application/json":
        kind, _, parameters = given.partition(";")
        kind = kind.strip().lower()
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise ApiError(415, "not_json", "send JSON, with the header Content-Type: application/json")
        name, _, charset = parameters.partition("=")
        if name.strip().lower() == "charset" and charset.strip(' "').lower() not in ("utf-8", "utf8"):
            raise ApiError(415, "not_utf8", "send the body in UTF-8")
    if (header(request, b"content-encoding") or "identity").strip().lower() != "identity":
        raise ApiError(415, "encoded", "send the body as it is, without a Content-Encoding")


def header(request: Request, wanted: bytes) -> str | None:
    """The first header of this name, which is given in lowercase letters; a tenth of what the framework's mapping takes, which is made for one look."""
    for name, value in request.scope["headers"]:
        if name == wanted:
            text: str = value.decode("latin-1")
            return text
    return None


class BodyLimit:
    """An ASGI middleware: the same limit of size under some paths, where the framework reads bodies itself."""

    def __init__(self, app: ASGIApp, *, prefixes: tuple[str, ...]) -> None:
        self._app = app
        self._prefixes = prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and own_path(scope).startswith(self._prefixes):
            # The framework lets no other exception through where it reads a body; it gets the common form of errors.
            too_large = HTTPException(413, f"a request here may have {BODY_BYTES_MAX:,} bytes at most")
            receive = _limited(receive, BODY_BYTES_MAX, too_large)
        await self._app(scope, receive, send)


def _limited(receive: Receive, bytes_max: int, too_large: Exception) -> Receive:
    """The same, but it raises once more than this has come."""
    read = 0

    async def receive_limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > bytes_max:
            raise too_large
        return message

    return receive_limited
