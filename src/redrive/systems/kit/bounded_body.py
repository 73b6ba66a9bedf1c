"""Bodies of requests, read within limits before anybody looks at them."""

import asyncio

from fastapi import Request

from redrive.http.errors import ApiError


class BoundedRequest(Request):
    """A request whose body is read whole, up to so many bytes and for so long."""

    async def read(self, *, bytes_max: int, seconds_max: float) -> None:
        """Read the body. Refuses with 413 what is too large and with 408 what takes too long."""
        pieces, size = [], 0
        try:
            async with asyncio.timeout(seconds_max):
                async for piece in self.stream():
                    size += len(piece)
                    if size > bytes_max:
                        raise ApiError(413, "BODY_TOO_LARGE", f"send at most {bytes_max:,} bytes")
                    pieces.append(piece)
        except TimeoutError:
            raise ApiError(408, "BODY_TOO_SLOW", f"send the body within {seconds_max:.0f} s") from None
        self._body = b"".join(pieces)
