"""A worker that stands still past its lease and wakes up again."""

import asyncio
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import make_url

from redrive import Redrive, State

from . import evidence
from .books import all_ended, read_books, until
from .processes import Ground, WorkerProcess, events

LEASE_SECONDS = 2.0


@contextmanager
def stopped(worker: WorkerProcess, url: str) -> Iterator[None]:
    """The worker stands still for the length of the block, without the one write lock that a SQLite file has."""
    worker.signal(signal.SIGSTOP)
    while _is_locked(url):
        worker.signal(signal.SIGCONT)
        worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


def _is_locked(url: str) -> bool:
    if not url.startswith("sqlite"):
        return False
    connection = sqlite3.connect(make_url(url).database or "", timeout=0.5, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    finally:
        connection.close()
    return False


@pytest.mark.long_on("postgres")
@pytest.mark.parametrize(("first_ms", "ended"), [(6000, "end"), (60_000, "cancelled")])
async def test_a_late_worker_settles_nothing(ground: Ground, first_ms: int, ended: str) -> None:
    """A worker stopped past its lease and continued settles nothing, says so, and goes on working.

    Its task was settled as `lease_expired` and run by another. If its handler comes to an end, its settlement is refused;
    if it would still run, it is cancelled as soon as the lease cannot be extended.
    """
    async with Redrive(ground.url) as app:
        added = await app.add("work", {"first_ms": first_ms, "ms": 10}, key="held")
        with WorkerProcess(ground, "late", lease=LEASE_SECONDS) as late:
            await until(ground.starts, "the first worker runs it")
            with stopped(late, ground.url), WorkerProcess(ground, "other", lease=LEASE_SECONDS) as other:
                await all_ended(app)
                assert other.stop() == 0
                if ended == "end":  # by the time it wakes, its handler has nothing left to wait for
                    await until(lambda: time.time() > ground.starts()[0].at + first_ms / 1000, "its time has passed")
            await until(lambda: events(late.log, "settle_lost"), "the late worker says that it lost the claim")
            first, second = ground.starts("held")
            assert (first.pid, second.pid) == (late.pid, other.pid)
            [lost] = events(late.log, "settle_lost")
            assert lost["key"] == "held"
            [end] = [line for line in evidence.read(ground.evidence) if line.pid == late.pid and line.what != "start"]
            assert end.what == ended

            await app.add("work", {"ms": 0}, key="next")
            await all_ended(app)
            assert [line.pid for line in ground.starts("next")] == [late.pid]
            assert late.stop() == 0
        attempts = await app.tasks.attempts(added.id)
        assert [(str(one.claim_id), one.outcome) for one in attempts] == [
            (first.claim, "lease_expired"),
            (second.claim, "done"),
        ]
        books = await read_books(app, ground.evidence)
        assert books.faults() == []
        assert {task.state for task in books.tasks.values()} == {State.DONE}


@pytest.mark.long_on("sqlite")
async def test_a_short_stop_costs_nothing(ground: Ground) -> None:
    """A worker alone that stands still past its lease keeps its own claim when it wakes: no try is charged or repeated."""
    async with Redrive(ground.url) as app:
        await app.add("work", {"ms": 4000}, key="held")
        with WorkerProcess(ground, "alone", lease=1) as alone:
            await until(ground.starts, "it runs")
            with stopped(alone, ground.url):
                await asyncio.sleep(2)
            await all_ended(app)
            assert alone.stop() == 0
            assert events(alone.log, "settle_lost") == []
        books = await read_books(app, ground.evidence)
        assert books.faults() == []
        assert books.outcomes() == {"done": 1}
        assert books.run_count == 1
