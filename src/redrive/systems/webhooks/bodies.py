"""Reading what strangers send: a body within its limit, and JSON that is what it seems to be.

Nothing larger than the limit is ever held: a body is read piece by piece and refused as soon as it is too long. JSON is
refused where two readers could understand it differently (the same name twice, numbers that are none) or where it could
not be stored and read again (nesting without end).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Protocol

from redrive.http.errors import ApiError

READ_SECONDS_MAX = 30.0
"""How long a sender may take for its body."""
NESTING_MAX = 100
"""How deep objects and lists may lie in each other. Python's own readers give up at about a thousand."""
PARSED_IN_LOOP_BYTES_MAX = 32 * 1024
"""Larger bodies are parsed in a thread: a megabyte of small objects takes a tenth of a second, which others need not wait."""


class Incoming(Protocol):
    """What is needed of a request."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def stream(self) -> AsyncIterator[bytes]: ...


def check_is_json(request: Incoming) -> None:
    """415 unless the body says that it is JSON in UTF-8.

    It also keeps pages of other sites out: a browser sends them with this content type only after it has asked us for
    permission, which we never give.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    kind = kind.strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(415, "not_json", "send the webhook as JSON, with the header Content-Type: application/json")
    name, _, charset = parameters.partition("=")
    if name.strip().lower() == "charset" and charset.strip(' "').lower() not in ("utf-8", "utf8"):
        raise ApiError(415, "not_utf8", "send the webhook in UTF-8")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ApiError(415, "encoded", "send the webhook as it is, without a Content-Encoding")


async def read_body(request: Incoming, bytes_max: int) -> bytes:
    """The whole body, or 413 as soon as it is known to be too large, having kept no more than that."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > bytes_max):
        raise _too_large(bytes_max)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            async for piece in request.stream():
                size += len(piece)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                pieces.append(piece)
    except TimeoutError:
        raise ApiError(408, "body_too_slow", f"send the whole body within {READ_SECONDS_MAX:.0f} s") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(bytes_max: int) -> ApiError:
    message = f"the body is larger than {bytes_max:,} bytes: send a reference instead, or raise WEBHOOK_MAX_BYTES"
    return ApiError(413, "too_large", message, details={"bytes_max": bytes_max})


async def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, or 422 that says what is wrong with it."""
    try:
        if len(body) <= PARSED_IN_LOOP_BYTES_MAX:
            return _parse(body)
        return await asyncio.to_thread(_parse, body)
    except RecursionError:
        raise _invalid(f"it is nested deeper than {NESTING_MAX} levels") from None
    except UnicodeDecodeError:
        raise _invalid("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except ValueError as error:
        raise _invalid(str(error)) from None


def _invalid(why: str) -> ApiError:
    return ApiError(422, "invalid_json", f"the body is not JSON that can be kept: {why}")


def _parse(body: bytes) -> dict[str, Any]:
    # A byte order mark is refused by the decoder, other encodings of JSON here: signatures are over UTF-8 only.
    read = _DECODER.decode(body.decode("utf-8"))
    if not isinstance(read, dict):
        raise ValueError("it must be an object")  # noqa: TRY004 - a stranger's value, not a caller's mistake
    if body.count(b"{") + body.count(b"[") > NESTING_MAX:
        _check_nesting(read)
    return read


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        seen: set[str] = set()
        [twice, *_] = [name for name, _ in pairs if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice[:80]!r} stands twice in one object")
    return read


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:  # infinite: it was beyond what a float holds
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python reads some thousand digits and no more
        raise ValueError(f"the number {text[:40]}… is too large") from None


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)


def _check_nesting(read: Any) -> None:
    """Level by level: no recursion, and no more memory than the value itself has."""
    level: list[Any] = [read]
    for _ in range(NESTING_MAX):
        level = [one for holder in level for one in _members(holder) if isinstance(one, dict | list)]
        if not level:
            return
    raise RecursionError


def _members(holder: Any) -> Iterable[Any]:
    return holder.values() if isinstance(holder, dict) else holder
