"""An event loop in a thread of its own, for callers that have none. There is one in a process, made when it is first needed."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from redrive.errors import UsageError

R = TypeVar("R")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, R]], *, instead: str) -> R:
    """What the work comes to. The calling thread waits for it, so it must not be one that runs an event loop: `instead` is what to write there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError(f"this would stop the event loop that runs here: {instead}")
    running = asyncio.run_coroutine_threadsafe(work(), _own_loop())
    try:
        return running.result()
    except BaseException:  # also what a person presses: nobody waits for it any more
        running.cancel()
        raise


def _own_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="redrive-own-loop", daemon=True).start()
        return _loop


def _in_child() -> None:
    """A forked process has no thread that would run the loop."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_in_child)
