"""Bodies of requests, read within limits before anybody looks at them."""

import asyncio

from fastapi import Request

from redrive.http.errors import ApiError


async def read_bounded(
    request: Request, *, bytes_max: int, seconds_max: float, too_large: ApiError, too_slow: ApiError
) -> bytes:
    """The whole body; raises what the system says of one that is too large or takes too long, having kept no more than that."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > bytes_max):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds_max):
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise too_large
    except TimeoutError:
        raise too_slow from None
    return bytes(body)
