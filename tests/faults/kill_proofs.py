"""Nothing acknowledged is lost, whoever is killed: the engine, small by `test_kill_storm.py` and at full size by `python -m proof kills_engine`.

Each system has a file of its own: `flag_kills.py`, `webhook_kills.py` and so on. A kill comes whenever another share of the work is done,
so that kills are spread over all of it, however fast the machine is.
"""

import asyncio
import random
from collections import Counter
from contextlib import ExitStack
from itertools import count

from sqlalchemy import Connection, text

from redrive import Redrive
from redrive.lane import NewTask, make_task

from .books import all_ended, create_effects, effects, read_books, until, watch_leases
from .processes import Ground, WorkerProcess

LEASE_SECONDS = 2.0
WORKERS = 3
HANGING, HANGS_MS = "hanging", 3_600_000
PATIENCE_SECONDS = 3600.0
"""How long it may take until another share is done, on a machine however busy."""


def settled(connection: Connection) -> int:
    """How many tries have ended, of all ledgers, as their workers have counted them."""
    counted = "sum(done + retried + dead + cancelled + snoozed + released + lease_expired)"
    return int(connection.execute(text(f"SELECT {counted} FROM redrive_minute")).scalar() or 0)


def attempts(connection: Connection) -> Counter[str]:
    """How many attempts came to what, of all ledgers; no claim has two."""
    twice = connection.execute(
        text("SELECT task_id FROM redrive_attempt GROUP BY ledger, task_id, claim_id HAVING count(*) > 1 LIMIT 3")
    )
    assert not (ids := twice.scalars().all()), f"one claim has two attempts: {ids}"
    counted = connection.execute(text("SELECT outcome, count(*) AS amount FROM redrive_attempt GROUP BY outcome"))
    return Counter({row.outcome: row.amount for row in counted})


def tasks_of(round_: int, amount: int, rng: random.Random) -> list[NewTask]:
    """Some quick, some slower, some that fail once, some with an effect in the database."""
    return [
        make_task(
            rng.choices(["work", "pair"], [9, 1])[0],
            {"ms": rng.choice([0, 1, 5, 20, 80]), "fails": int(rng.random() < 0.2)},
            key=f"{round_}-{number}",
        )
        for number in range(amount)
    ]


async def engine(ground: Ground, rng: random.Random, *, tasks: int, kills: int) -> str:
    """SIGKILL at any moment loses no task, leaves none held past its lease, and every extra run is on the books.

    Each run of a handler belongs to a claim of its own, each claim ends in exactly one attempt row, and a run that did
    not settle is explained by an attempt that says `lease_expired`. What a transactional handler wrote is there once.
    """
    per_kill = tasks // kills
    async with Redrive(ground.url) as app:
        await create_effects(app)
        with ExitStack() as stack:
            names = (f"worker-{number}" for number in count())

            def another() -> WorkerProcess:
                return stack.enter_context(WorkerProcess(ground, next(names), lease=LEASE_SECONDS, grace=5))

            watching = asyncio.create_task(watch_leases(app, LEASE_SECONDS))
            workers = [another() for _ in range(WORKERS)]

            def kill(victim: int) -> None:
                assert workers[victim].kill() == -9, "a worker ended by itself: see its log"
                workers[victim] = another()

            for round_ in range(kills):
                await app.add_many(tasks_of(round_, per_kill, rng))

                async def under_way(least: int = round_ * per_kill + per_kill // 3) -> bool:
                    return await app.database.read(settled) >= least

                await until(under_way, "its tasks are under way", PATIENCE_SECONDS)
                kill(rng.randrange(WORKERS))
            # The others hit by chance. This one hits for certain: the task runs until its worker is killed.
            await app.add("work", {"first_ms": HANGS_MS, "ms": 0}, key=HANGING)
            await until(lambda: ground.starts(HANGING), "it was begun", PATIENCE_SECONDS)
            [held] = ground.starts(HANGING)
            kill([worker.pid for worker in workers].index(held.pid))
            ended = asyncio.create_task(all_ended(app, PATIENCE_SECONDS))
            await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not watching.cancel():
                await watching  # it has found a task that is stuck
            await ended
            assert [worker.stop() for worker in workers] == [0] * WORKERS
        books = await read_books(app, ground.evidence)
        assert len(books.tasks) == kills * per_kill + 1, f"{len(books.tasks)} of {kills * per_kill + 1} tasks are there"
        assert books.faults() == []
        outcomes = books.outcomes()
        hit = books.run_count - outcomes["done"] - outcomes["failed"]
        assert hit, "the kills hit nothing: this shows nothing"
        pairs = [task.key for task in books.tasks.values() if task.kind == "pair"]
        assert await effects(app) == dict.fromkeys(pairs, 1)
    return (
        f"{len(books.tasks):,} acknowledged, 0 lost; {kills + 1} kills met {outcomes['lease_expired']:,} tasks held, {hit:,} of them running; "
        f"{sum(outcomes.values()):,} claims, one attempt each; {len(pairs):,} writes of transactional handlers, once each"
    )
