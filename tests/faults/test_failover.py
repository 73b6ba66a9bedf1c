"""A primary dies and its standby takes over. `make proof` does it twenty times, with three nodes and in other ways too."""

import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive, State
from redrive.errors import LedgerAwayError
from redrive.lane import make_task
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate

from .books import all_ended, create_effects, effects, read_books, until
from .processes import Ground, WorkerProcess, events

TASKS = 200


@pytest.fixture
def pair() -> Iterator[Any]:
    """A primary and its synchronous standby."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bench.cluster import pair
    with pair() as both:
        yield both


async def test_a_failover_loses_nothing(pair: Any, tmp_path: Path) -> None:
    """All hosts are in the URL: workers and those who add find the new primary by themselves, and what was acknowledged is done.

    What a transactional handler wrote is there once, every extra run is on the books, and a key that was perhaps added before
    can be added again.
    """
    database = open_database(pair.url)
    await migrate(database)
    await database.close()
    ground = Ground(pair.url, tmp_path)
    async with Redrive(pair.url) as app:
        await create_effects(app)

        async def done(least: int) -> bool:
            return (await app.tasks.counts())[State.DONE] >= least

        async def added(number: int) -> bool:
            """Whether it is acknowledged: nobody promises more than that."""
            tasks = [
                make_task("pair" if at % 10 == 0 else "work", {"ms": 20}, key=f"{number}-{at}") for at in range(TASKS)
            ]
            with suppress(LedgerAwayError):
                await app.add_many(tasks)
                return True
            return False

        with WorkerProcess(ground, "one", lease=3) as one, WorkerProcess(ground, "two", lease=3) as two:
            assert await added(0)
            await until(lambda: done(20), "work is under way")
            pair.kill(0)
            assert not await added(1)
            pair.promote(1)
            await until(lambda: added(1), "it is added to the new primary")
            await all_ended(app)
            assert [one.stop(), two.stop()] == [0, 0]
            for worker in (one, two):
                assert len(events(worker.log, "ledger_away")) == len(events(worker.log, "ledger_back")) == 1
                assert "Traceback" not in worker.log
        books = await read_books(app, ground.evidence)
        assert len(books.tasks) == 2 * TASKS
        assert books.faults() == []
        pairs = [task.key for task in books.tasks.values() if task.kind == "pair"]
        assert await effects(app) == dict.fromkeys(pairs, 1)
