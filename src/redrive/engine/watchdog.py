"""Noticing that the event loop stands still, and who stands in its way.

A handler that blocks the loop stops every other handler, all settlements and all leases, and nothing in the loop can tell while it
does. So a thread asks the loop for a sign of life every now and then. If none comes, the task that the loop runs just then is to
blame, and it is named as soon as the loop goes round again.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self

EVERY_SECONDS = 0.5
LIMIT_SECONDS = 1.0
"""How long a loop may stand still before that is told."""


class Watchdog:
    """Watches the running loop for as long as the block lasts.

    `who` says whom a task of the loop belongs to; it is called in a thread. `tell` is called in the loop with that and how long it was.
    """

    def __init__(
        self,
        who: Callable[["asyncio.Task[Any] | None"], tuple[str, ...]],
        tell: Callable[[tuple[str, ...], timedelta], None],
    ) -> None:
        self._who = who
        self._tell = tell
        self._ended = threading.Event()
        self.noticed = threading.Event()
        """Set while the loop is known to stand still."""

    def __enter__(self) -> Self:
        watch = threading.Thread(
            target=self._watch, args=(asyncio.get_running_loop(),), name="redrive-watchdog", daemon=True
        )
        watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            sign, asked_at = threading.Event(), time.monotonic()
            if not _ask(loop, sign.set):
                return
            if sign.wait(LIMIT_SECONDS):
                continue
            who = self._who(asyncio.current_task(loop))
            self.noticed.set()
            while not sign.wait(EVERY_SECONDS):
                if self._ended.is_set():
                    return
            self.noticed.clear()
            if who:
                _ask(loop, self._tell, who, timedelta(seconds=time.monotonic() - asked_at))


def _ask(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> bool:
    """Have something called in the loop; whether there still is one."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:  # it is closed
        return False
    return True
