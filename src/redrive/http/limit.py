"""How large a request may be, where routes read it whole."""

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 1 << 20


class BodyLimit:
    """An ASGI middleware: reading a body under some paths ends at a limit, whatever its headers say."""

    def __init__(self, app: ASGIApp, *, prefixes: tuple[str, ...], bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._prefixes = prefixes
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or not scope["path"].startswith(self._prefixes):
            await self._app(scope, receive, send)
            return
        read = 0

        async def receive_limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._bytes_max:
                # Raised where a route reads, so the application's own form of errors answers it.
                raise HTTPException(413, f"a request here may have {self._bytes_max:,} bytes at most")
            return message

        await self._app(scope, receive_limited, send)
