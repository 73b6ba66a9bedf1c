"""What a running handler tells of itself: written at most once a second, and once more when it ends.

It is told from the loop or from a thread. A store that is away costs the news and not the run.
"""

import asyncio
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from redrive.core.failure import safe_text
from redrive.core.payload_types import as_json
from redrive.core.progress import CHECKPOINT_BYTES_MAX, WORDS_CHARS_MAX
from redrive.core.task import Claim, encode_payload
from redrive.errors import UsageError
from redrive.ports import ProgressNotes

EVERY_SECONDS = 1.0
_NOT_SET = object()


class RunProgress:
    """The progress of one run."""

    def __init__(self, notes: ProgressNotes, claim: Claim, loop: asyncio.AbstractEventLoop) -> None:
        self._notes = notes
        self._claim = claim
        self._loop = loop
        self._share: float | None = None
        self._words: str | None = None
        self._checkpoint: str | None = None
        self._value: Any = _NOT_SET
        self._pending = False
        self._writer: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def tell(self, share: float, words: str) -> "Told":
        """Note how far the run has come."""
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UsageError(f"progress is a share from 0 to 1, not {share!r}")
        self._share, self._words = float(share), safe_text(str(words))[:WORDS_CHARS_MAX] or None
        self._soon()
        return Told()

    def save(self, value: Any) -> None:
        """Note what the next try begins with."""
        self._checkpoint = encode_payload(as_json(value), CHECKPOINT_BYTES_MAX, called="checkpoint")
        self._value = value
        self._soon()

    async def saved(self) -> Any:
        """What this run has noted, or the tries before it."""
        if self._value is _NOT_SET:
            found = await self._notes.read(self._claim.task.id)
            if self._value is _NOT_SET:
                self._value = None if found is None else found.checkpoint
        return self._value

    def saved_in_thread(self) -> Any:
        """The same for a plain handler."""
        return asyncio.run_coroutine_threadsafe(self.saved(), self._loop).result()

    def _soon(self) -> None:
        self._pending = True
        with suppress(RuntimeError):  # the loop is closed, and with it the run
            self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._writer is None and not self._ended.is_set():
            self._writer = self._loop.create_task(self._write(), name="redrive-progress")

    async def _write(self) -> None:
        """Write what is new, then wait a second; until nothing is new, or the run has ended."""
        try:
            while self._pending:
                await self._write_once()
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_SECONDS):
                        await self._ended.wait()
        finally:
            self._writer = None

    async def _write_once(self) -> None:
        self._pending = False
        with suppress(Exception):
            await self._notes.write(self._claim, self._share, self._words, self._checkpoint)

    async def end(self) -> None:
        """The run has ended: write the rest before its settlement takes the fence away."""
        self._ended.set()
        if self._writer is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.shield(self._writer)
        if self._pending:
            await self._write_once()


class Told:
    """It is told already: whoever likes may await it."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.sleep(0).__await__()


class SavedCheckpoint:
    """What the tries before have left: `await` it, or `get()` it in a thread. None where there is nothing."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress

    def __await__(self) -> Generator[Any, None, Any]:
        return self._progress.saved().__await__()

    def get(self) -> Any:
        """The same for a plain handler."""
        return self._progress.saved_in_thread()
