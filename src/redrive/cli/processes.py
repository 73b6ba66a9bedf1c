"""Several processes of one worker: started, restarted and stopped together."""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from redrive.cli.output import complain, say

RESTART_FIRST_SECONDS = 0.5
RESTART_CAP_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A child that lived this long starts its backoff anew."""
STOP_MARGIN = timedelta(seconds=10)
"""What a child gets beyond twice its grace (for its handlers, then for its last writes) before it is killed."""
SAME_PRESS_SECONDS = 0.5
"""Signals closer together are one: service managers signal a whole group, so a child hears of it twice."""
USED_WRONGLY = 2


class SecondPress:
    """Tells a second signal from an echo of the first."""

    def __init__(self) -> None:
        self._presses = 0
        self._last = -math.inf

    def count(self) -> int:
        """Note a signal: which press it is, or 0 for an echo."""
        now = time.monotonic()
        if now - self._last < SAME_PRESS_SECONDS:
            return 0
        self._last = now
        self._presses += 1
        return self._presses


class Supervisor:
    """A parent that starts N children, forwards signals and restarts those that died unexpectedly.

    Children have a process group of their own, so that Ctrl-C reaches them once, through the parent; and they read the
    end of a pipe whose other end the parent holds, so that they stop when it is gone, however it ended.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], amount: int, grace: timedelta) -> None:
        """`command` is that of each child, which are counted from zero."""
        self._command = command
        self._amount = amount
        self._patience = (2 * grace + STOP_MARGIN).total_seconds()
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._press = SecondPress()
        self._stopping = asyncio.Event()
        self._code = 0

    def run(self) -> int:
        """Run until told to stop; 0 if every child then ended well, 1 if not, 2 if the command cannot work at all."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        say(f"[dim]starting {self._amount} worker processes; Ctrl-C stops[/]")
        slots = [asyncio.create_task(self._keep(slot)) for slot in range(self._amount)]
        await self._stopping.wait()
        _, late = await asyncio.wait(slots, timeout=self._patience)
        if late:
            complain(f"{len(self._children)} worker processes did not stop in {self._patience:.0f} s and were killed")
            self._code = max(self._code, 1)
            self._send(signal.SIGKILL)
        await asyncio.gather(*slots)
        return self._code

    def _on_signal(self) -> None:
        press = self._press.count()
        self._stopping.set()
        if press:  # the children count too: the second one ends them at once
            self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(number)

    async def _keep(self, slot: int) -> None:
        """Keep one child running until the end."""
        tries = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            child = await asyncio.create_subprocess_exec(
                *self._command(slot), stdin=asyncio.subprocess.PIPE, process_group=0
            )
            self._children[slot] = child
            if self._stopping.is_set():
                child.send_signal(signal.SIGTERM)
            code = await child.wait()
            del self._children[slot]
            if self._stopping.is_set():
                # A child that was signalled while it was still starting had nothing to lose.
                if code not in (0, -signal.SIGTERM):
                    self._code = max(self._code, 1)
                return
            if code == USED_WRONGLY:
                # It said why; starting it again would only say it again.
                self._code = USED_WRONGLY
                self._stopping.set()
                self._send(signal.SIGTERM)
                return
            tries = 1 if time.monotonic() - started >= STEADY_SECONDS else tries + 1
            pause = min(RESTART_CAP_SECONDS, RESTART_FIRST_SECONDS * 2 ** min(tries - 1, 10))
            complain(f"worker process {child.pid} {_said(code)}; a new one starts in {pause:g} s")
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                continue


def _said(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
