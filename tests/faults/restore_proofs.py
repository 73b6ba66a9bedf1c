"""Back-ups under load, restored and continued: small by `test_restore.py`, and at full size by `python -m proof restores`."""

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, make_url, text

from redrive import Redrive, seconds

from .books import all_ended, read_books, until
from .own_postgres import OwnServer
from .processes import Ground, WorkerProcess, events

ADDERS = 12
LATER_SECONDS = 5.0
"""When every third task is due, so that a back-up always has some that wait."""
PATIENCE_SECONDS = 1800.0
LEASE_SECONDS = 2.0
SHELL_PAGES = 100
"""How many pages the `.backup` of SQLite's shell copies at a time."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a back-up is made, and how it is opened again."""

    name: str
    back_up: Callable[[], str]
    """Makes it while others work; a word on how it went."""
    restored: Callable[[], Any]
    """Gives the URL of the restored database for the length of a block."""


def sqlite_ways(url: str, folder: Path) -> list[Way]:
    """As SQLite's shell does it, page by page, and `VACUUM INTO`."""
    source = make_url(url).database or ""

    def in_steps(file: Path) -> str:
        left: list[int] = []
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(file)) as other:
            one.backup(other, pages=SHELL_PAGES, progress=lambda _status, rest, _all: left.append(rest), sleep=0)
        return f"{sum(later > before for before, later in pairwise(left))} times begun anew"

    def vacuum(file: Path) -> str:
        with closing(sqlite3.connect(source)) as one:
            one.execute("VACUUM INTO ?", [str(file)])
        return "at once"

    @contextmanager
    def opened(file: Path) -> Iterator[str]:
        yield f"sqlite:///{file}"

    shell, vacuumed = folder / "shell.db", folder / "vacuum.db"
    return [
        Way("sqlite .backup", lambda: in_steps(shell), lambda: opened(shell)),
        Way("sqlite VACUUM INTO", lambda: vacuum(vacuumed), lambda: opened(vacuumed)),
    ]


def postgres_ways(server: OwnServer, folder: Path) -> list[Way]:
    """The two that PostgreSQL comes with."""
    data, dump = folder / "base", folder / "dump"

    def base() -> str:
        server.run("pg_basebackup", "-D", str(data), "-X", "stream", "-c", "fast")
        return "with its log"

    @contextmanager
    def from_base() -> Iterator[str]:
        with server.beside(data) as other:
            yield other.url

    def dumped() -> str:
        server.run("pg_dump", "-Fc", "-f", str(dump), "postgres")
        return "one snapshot"

    @contextmanager
    def from_dump() -> Iterator[str]:
        yield server.restore(dump)

    return [Way("pg_basebackup", base, from_base), Way("pg_dump", dumped, from_dump)]


async def restored(ground: Ground, way: Way, *, least: int) -> str:
    """All that was acknowledged before the back-up began is in it; what had ended does not run again; the rest comes to its end."""
    added: list[str] = []
    over = asyncio.Event()
    async with Redrive(ground.url) as app:

        async def add(number: int) -> None:
            for turn in count():
                if over.is_set():
                    return
                key = f"{way.name}-{number}-{turn}"
                later = seconds(LATER_SECONDS if turn % 3 == 0 else 0)
                await app.add("work", {"ms": turn % 20, "fails": turn % 7 == 0}, key=key, delay=later)
                added.append(key)

        with (
            WorkerProcess(ground, "one", lease=LEASE_SECONDS) as one,
            WorkerProcess(ground, "two", lease=LEASE_SECONDS) as two,
        ):
            adders = [asyncio.create_task(add(number)) for number in range(ADDERS)]

            def done() -> set[str]:
                return {line["key"] for worker in (one, two) for line in events(worker.log, "task_done")}

            await until(lambda: len(done()) >= least, "some are done", PATIENCE_SECONDS, every=0.5)
            ended_before, added_before, begun = done(), set(added), time.monotonic()
            how = await asyncio.to_thread(way.back_up)
            took, meanwhile = time.monotonic() - begun, len(added) - len(added_before)
            over.set()
            await asyncio.gather(*adders)
            assert [one.stop(), two.stop()] == [0, 0]
    with way.restored() as url:
        again = Ground(url, ground.folder / "again")
        again.folder.mkdir()
        async with Redrive(url) as app:
            keys, ended = await app.database.read(_keys)
            assert added_before <= keys, (
                f"{len(added_before - keys)} of {len(added_before)} acknowledged tasks are lost"
            )
            assert ended_before <= ended, (
                f"{len(ended_before - ended)} of {len(ended_before)} acknowledged ends are lost"
            )
            with WorkerProcess(again, "restored", lease=LEASE_SECONDS) as worker:
                await all_ended(app, PATIENCE_SECONDS)
                assert worker.stop() == 0
            books = await read_books(app, ground.evidence)
        ran = {line.key for line in again.starts()}
    shutil.rmtree(again.folder)
    assert not ran & ended, f"{len(ran & ended)} ran again though they had ended"
    assert ran, "nothing was left to do: this does not show that work goes on"
    assert {task.state for task in books.tasks.values()} == {"done"}
    assert all(sum(one.outcome == "done" for one in tries) == 1 for tries in books.attempts.values()), "done twice"
    return (
        f"{len(added_before):,} acknowledged before, 0 lost; {len(ended_before):,} had ended, 0 ran again; {len(keys) - len(ended):,} went on and "
        f"are done; the back-up took {took:.1f} s ({how}), {meanwhile:,} were added meanwhile"
    )


def _keys(connection: Connection) -> tuple[set[str], set[str]]:
    """All tasks, and those that are done."""
    rows = connection.execute(text("SELECT key, state FROM redrive_task")).all()
    return {row.key for row in rows}, {row.key for row in rows if row.state == "done"}
