"""A worker that runs during a block, and waiting for what it does without sleeping longer than needed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from redrive.systems.commands import CommandWorker


@asynccontextmanager
async def run(worker: CommandWorker, **given: Any) -> AsyncIterator[CommandWorker]:
    """The worker, ready and running until the block ends; then stopped gracefully."""
    running = asyncio.create_task(worker.run(**given))
    ready = asyncio.create_task(worker.ready.wait())
    await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield worker
    finally:
        ready.cancel()
        worker.stop()
        await running


async def until(happened: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    """Ask again and again until the answer is true."""
    async with asyncio.timeout(seconds):
        while not (answer := await happened()):
            await asyncio.sleep(0.01)
        return answer
