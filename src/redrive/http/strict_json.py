"""JSON of strangers that is what it seems to be.

It is refused where two readers could understand it differently (the same name twice, NaN) or where it could
not be stored and read again (nesting without end).
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from redrive.core.task import json_writer

NESTING_MAX = 100
"""How deep objects and lists may lie in each other. Python's own readers give up at about a thousand."""
PARSED_IN_LOOP_BYTES_MAX = 32 * 1024
"""Larger bodies are parsed in a thread: a megabyte of small objects takes a tenth of a second, which others need not wait."""


async def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, or a `ValueError` whose text says what is wrong with it."""
    try:
        if len(body) <= PARSED_IN_LOOP_BYTES_MAX:
            return _parse(body)
        return await asyncio.to_thread(_parse, body)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {NESTING_MAX} levels") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno} column {error.colno}") from None


def _parse(body: bytes) -> dict[str, Any]:
    # A byte order mark is refused by the decoder, other encodings of JSON here: signatures are over UTF-8 only.
    read = _DECODER.decode(body.decode("utf-8"))
    if not isinstance(read, dict):
        raise ValueError("it must be an object")  # noqa: TRY004 - a stranger's value, not a caller's mistake
    if body.count(b"{") + body.count(b"[") > NESTING_MAX and is_deeper_than(NESTING_MAX, read):
        raise RecursionError
    return read


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        seen: set[str] = set()
        [twice, *_] = [name for name, _ in pairs if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice[:80]!r} appears twice in one object")
    return read


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


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


to_ascii = json_writer(ensure_ascii=True)
"""JSON text in ASCII, with escapes: every database stores it and every receiver reads it, half surrogates and NUL included."""


def is_deeper_than(levels: int, read: Any) -> bool:
    """Whether objects and lists lie deeper in each other. No recursion, and no more memory than the value itself has."""
    level = [read] if isinstance(read, dict | list) else []
    for _ in range(levels):
        level = [one for holder in level for one in _members(holder) if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _members(holder: Any) -> Iterable[Any]:
    return holder.values() if isinstance(holder, dict) else holder
