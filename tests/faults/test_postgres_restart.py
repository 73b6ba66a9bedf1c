"""PostgreSQL goes away under load and comes back."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from redrive import Redrive, State
from redrive.errors import LedgerAwayError
from redrive.lane import make_task
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate
from tests.breadth import WIDE

from .books import create_effects, effects, read_books, until
from .own_postgres import OwnServer
from .postmaster_proofs import killed
from .processes import Ground, WorkerProcess, events

TASKS_PER_OUTAGE = 1000 if WIDE else 250


async def test_workers_survive_outages_of_postgres(server: OwnServer, tmp_path: Path) -> None:
    """Workers wait for a PostgreSQL that is away and go on by themselves; each outage is one log line, and one when it ends.

    Connections that end while the server stays are no outage for a worker if a look of its chores meets the first that is dead: the
    others are made anew then, before a claim needs them.

    Stopped and started at once, stopped for a while, all connections ended, and crashed: nothing is lost, what a
    transactional handler wrote is there once, and every extra run is on the books.
    """
    database = open_database(server.url)
    await migrate(database)
    await database.close()
    ground = Ground(server.url, tmp_path)
    outages: list[Callable[[], Awaitable[None]]] = [
        lambda: server.restart(0), lambda: server.restart(2), server.terminate, server.crash
    ]  # fmt: skip
    async with Redrive(ground.url) as app:
        await create_effects(app)

        async def done(least: int) -> bool:
            with suppress(LedgerAwayError):  # this test's own connections were cut too
                return (await app.tasks.counts())[State.DONE] >= least
            return False

        with WorkerProcess(ground, "one", lease=3) as one, WorkerProcess(ground, "two", lease=3) as two:
            workers, seen = (one, two), 0
            for number, outage in enumerate(outages):
                await app.add_many(
                    [
                        make_task(
                            "pair" if at % 20 == 0 else "work", {"ms": 100, "fails": at % 7 == 0}, key=f"{number}-{at}"
                        )
                        for at in range(TASKS_PER_OUTAGE)
                    ]
                )
                before = number * TASKS_PER_OUTAGE
                await until(lambda least=before + 50: done(least), "work is under way")
                await outage()
                seen += outage != server.terminate
                await until(
                    lambda least=seen: all(len(events(one.log, "ledger_back")) >= least for one in workers),
                    "both workers found it again",
                )
                await until(lambda least=before + TASKS_PER_OUTAGE: done(least), "all of it is done", timeout=150)
            assert [worker.stop() for worker in workers] == [0, 0]
            for worker in workers:
                away, back, failed = (
                    len(events(worker.log, name)) for name in ("ledger_away", "ledger_back", "settle_failed")
                )
                assert (back, failed) == (away, 0), worker.log[-3000:]
                assert seen <= away <= len(outages), worker.log[-3000:]
                assert "Traceback" not in worker.log
        books = await read_books(app, ground.evidence)
        print(f"{len(outages)} outages, {len(books.tasks)} tasks, {books.run_count} runs, {dict(books.outcomes())}")
        assert len(books.tasks) == len(outages) * TASKS_PER_OUTAGE
        assert books.faults() == []
        pairs = [task.key for task in books.tasks.values() if task.kind == "pair"]
        assert await effects(app) == dict.fromkeys(pairs, 1)


async def test_nothing_acknowledged_is_lost_when_postgres_is_killed(
    server: OwnServer, tmp_path: Path, rng: Random
) -> None:
    """SIGKILL to the postmaster and all of its processes; at full size by `python -m proof postmaster_kills`."""
    print(await killed(server, Ground(server.url, tmp_path), rng, tasks=200, kills=1))
