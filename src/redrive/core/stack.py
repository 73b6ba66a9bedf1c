"""Where an exception came from: the frames of its traceback, in a form that is safe to keep and the same for all that failed alike.

A thousand tasks that fail at one line have one stack, kept once. So a stack is told apart by its lines and by the classes that
were raised, never by a message. Frames of the user's own code are marked: the innermost of them is where a person looks first.
"""

import hashlib
import json
import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from redrive.core.cause import cause_of
from redrive.core.failure import describe_error, redact

STACK_BYTES_MAX = 8 * 1024
CODE_CHARS_MAX = 200
CHAIN_MAX = 4
"""So many exceptions of a chain are told, the raised one first."""
WALKED_MAX = 2_000
FRAMES_MAX = 60
"""So many frames of one exception are told: the outermost few, and the innermost."""
_OUTERMOST = 10

_Line = tuple[str, str, int]
"""File, function, number of the line."""
_Link = tuple[str, tuple[_Line, ...]]
"""The class that was raised, and where."""


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    name: str
    code: str
    own: bool
    """Whether it is the user's code, and not a library's, Python's or ours."""

    @property
    def at(self) -> str:
        """As people write it."""
        return f"{self.file}:{self.line} in {self.name}"


class Raised(NamedTuple):
    """One exception of a chain, with its frames from the outermost to the innermost."""

    error: str
    frames: tuple[Frame, ...]
    left_out: int = 0


class Stack(NamedTuple):
    """Where an exception came from."""

    id: str
    at: str | None
    """The innermost line of the user's code; None if none of it was involved."""
    text: str
    """All of it as JSON, see `read_stack`."""
    members: str
    """What an explanation says of it, as members of a JSON object: its id and where it was."""


def stack_of(error: BaseException) -> Stack | None:
    """The stack of an exception; None for one that was never raised, and where it cannot be read.

    Nobody may lose the end of a run by it: exceptions of strangers raise where their reason is asked for, and a working folder goes
    with the release that it belonged to.
    """
    try:
        # A thousand failures are mostly one: to find it again must cost no more than walking it.
        reason = _reason_of(error)
        if reason is not None:
            return _known(error, reason)
        walked = _walked(error)
        seen = _seen.get(walked)
        return _remembered(error, walked) if seen is None else seen[0]
    except BaseException:
        return None


def _remembered(error: BaseException, walked: tuple[Any, ...]) -> Stack | None:
    known = _known(error, None)
    if known is not None and len(walked) < _QUICK_MAX:
        if len(_seen) >= _KEPT_MAX:
            _seen.clear()
        _seen[walked] = known, tuple(_codes(error.__traceback__))
    return known


def _known(error: BaseException, reason: BaseException | None) -> Stack | None:
    links: tuple[_Link, ...] = ((type(error).__name__, _lines(error.__traceback__)),)
    if reason is not None:
        reasons = _reasons(error)
        links += tuple((type(one).__name__, _lines(one.__traceback__)) for one in reasons)
    known = _kept.get(links)
    if known is None:
        if not any(lines for _, lines in links):
            return None
        if len(_kept) >= _KEPT_MAX:
            _kept.clear()
        told = [] if reason is None else [cause_of(describe_error(one)).text for one in reasons]
        known = _kept[links] = _made(links, told)
    return known


_KEPT_MAX = 1024
_kept: dict[tuple[_Link, ...], Stack] = {}
_QUICK_MAX = 100
"""A place in the code is two of these."""
_seen: dict[tuple[Any, ...], tuple[Stack, tuple[CodeType, ...]]] = {}
"""Stacks by the places in the code that they have come through; with the code, which keeps the numbers of these its own."""


def _walked(error: BaseException) -> tuple[Any, ...]:
    """Which class was raised, and where: cheaper than the numbers of the lines, which Python has to look up. Cut where it is long."""
    found: list[Any] = [type(error)]
    add, traceback = found.append, error.__traceback__
    while traceback is not None and len(found) < _QUICK_MAX:
        add(id(traceback.tb_frame.f_code))
        add(traceback.tb_lasti)
        traceback = traceback.tb_next
    return tuple(found)


def _codes(traceback: TracebackType | None) -> Iterator[CodeType]:
    while traceback is not None:
        yield traceback.tb_frame.f_code
        traceback = traceback.tb_next


def _reason_of(error: BaseException) -> BaseException | None:
    """The exception that led to this one, as Python tells it; of a group, its first."""
    if error.__cause__ is not None:
        return error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return None if error.__suppress_context__ else error.__context__


def _reasons(error: BaseException) -> list[BaseException]:
    """What led to an exception, the nearest first: a few, and none of them twice."""
    found, one = [error], _reason_of(error)
    while one is not None and len(found) < CHAIN_MAX and all(one is not other for other in found):
        found.append(one)
        one = _reason_of(one)
    return found[1:]


def _lines(traceback: TracebackType | None) -> tuple[_Line, ...]:
    lines = list[_Line]()
    before, last = None, None
    while traceback is not None and len(lines) < WALKED_MAX:
        code = traceback.tb_frame.f_code
        line = (code.co_filename, code.co_name, traceback.tb_lineno)
        if line not in (last, before):  # a recursion that fails at another depth each time is one stack
            lines.append(line)
        before, last = last, line
        traceback = traceback.tb_next
    return tuple(lines)


def _made(links: tuple[_Link, ...], told: list[str]) -> Stack:
    chain = list[Raised]()
    for (name, lines), reason in zip(links, ["", *told], strict=True):
        left_out = max(0, len(lines) - FRAMES_MAX)
        kept = lines if not left_out else lines[:_OUTERMOST] + lines[_OUTERMOST - FRAMES_MAX :]
        chain.append(Raised(reason or name, tuple(map(_frame, kept)), left_out))
    at = next((frame.at for raised in chain for frame in reversed(raised.frames) if frame.own), None)
    shape = [[name, [(_shown(file), function, number) for file, function, number in lines]] for name, lines in links]
    hashed = hashlib.sha256(json.dumps(shape).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    said = {"stack": hashed} if at is None else {"stack": hashed, "at": at}
    return Stack(hashed, at, _short_text(chain), json.dumps(said)[1:-1])


def _frame(line: _Line) -> Frame:
    file, name, number = line
    code = linecache.getline(file, number).strip()[:CODE_CHARS_MAX]
    return Frame(_shown(file), number, name, redact(code), _is_own(file))


def _short_text(chain: list[Raised]) -> str:
    """The chain as JSON. What is too long loses first the code of libraries, then frames from the outside in."""
    text = _text(chain)
    if len(text) > STACK_BYTES_MAX:
        chain = [
            raised._replace(frames=tuple(one if one.own else one._replace(code="") for one in raised.frames))
            for raised in chain
        ]
        text = _text(chain)
    while len(text) > STACK_BYTES_MAX:
        longest = max(range(len(chain)), key=lambda at: len(chain[at].frames))
        raised = chain[longest]
        if not raised.frames:
            return _text([one._replace(error=one.error[:CODE_CHARS_MAX], frames=()) for one in chain])
        outside = next((at for at, one in enumerate(raised.frames) if not one.own), 0)
        frames = raised.frames[:outside] + raised.frames[outside + 1 :]
        chain[longest] = raised._replace(frames=frames, left_out=raised.left_out + 1)
        text = _text(chain)
    return text


def _text(chain: list[Raised]) -> str:
    return json.dumps(chain).replace("\\u0000", "\\ufffd")  # PostgreSQL keeps no NUL; all else is ASCII


def read_stack(text: str) -> list[Raised]:
    """What `Stack.text` tells; the raised exception first, then what led to it."""
    return [
        Raised(error, tuple(Frame(*frame) for frame in frames), left_out)
        for error, frames, left_out in json.loads(text)
    ]


def stack_lines(chain: Sequence[Raised]) -> list[str]:
    """For logs and terminals: the user's lines with their code, and how many others stand between them."""
    lines = list[str]()
    for number, raised in enumerate(chain):
        lines.append(f"because of {raised.error}" if number else raised.error)
        folded = raised.left_out
        for frame in raised.frames:
            if not frame.own:
                folded += 1
                continue
            lines += [*_folded(folded), f"  {frame.at}"]
            folded = 0
            if frame.code:
                lines.append(f"    {frame.code}")
        lines += _folded(folded)
    return lines


def _folded(amount: int) -> list[str]:
    return [f"  … {amount} {'line' if amount == 1 else 'lines'} of libraries"] if amount else []


# --- whose code a file is ----------------------------------------------------------------------------------------------------

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _folders(paths: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({os.path.join(os.path.abspath(path), "") for path in paths if path}, key=len, reverse=True))


_LIBRARIES = _folders(
    [_OURS, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
     *getattr(site, "getsitepackages", list)(), site.getusersitepackages()]
)  # fmt: skip


@lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    if file.startswith("<"):
        return False
    path = os.path.abspath(file)
    return not path.startswith(_LIBRARIES) and not any(part in path for part in ("/site-packages/", "/dist-packages/"))


@lru_cache(maxsize=4096)
def _shown(file: str) -> str:
    """The file as it is imported, which is the same on every machine."""
    if file.startswith("<"):
        return file
    path = os.path.abspath(file)
    roots = _folders(entry or os.getcwd() for entry in sys.path)
    root = next((root for root in roots if path.startswith(root)), None)
    return os.path.basename(path) if root is None else path[len(root) :]
