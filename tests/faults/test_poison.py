"""A task that kills whoever runs it."""

from contextlib import ExitStack

import pytest

from redrive import Redrive, State
from redrive.core.decide import LEASE_EXPIRED_ERROR
from redrive.lane import make_task

from .books import create_effects, read_books, until
from .processes import Ground, WorkerProcess

POISON_ATTEMPTS = 3


@pytest.mark.long_on("postgres")
async def test_poison_ends_dead(ground: Ground) -> None:
    """After one free run a handler that kills its process is tried as often as it may be, ends dead, and the others go on."""
    async with Redrive(ground.url) as app:
        await create_effects(app)
        poison = await app.add("poison", key="poison", attempts=POISON_ATTEMPTS)
        await app.add_many([make_task("work", {"ms": 50}, key=f"other-{number}") for number in range(200)])
        with ExitStack() as stack:

            def another() -> WorkerProcess:
                return stack.enter_context(WorkerProcess(ground, f"worker-{deaths}", lease=1, concurrency=4, grace=5))

            deaths = 0
            worker = another()

            async def all_settled() -> bool:
                """Like a supervisor: start a new worker where one has died."""
                nonlocal worker, deaths
                if worker.exit_code is not None:
                    deaths += 1
                    worker = another()
                counts = await app.tasks.counts()
                return counts[State.WAITING] == counts[State.CLAIMED] == 0

            await until(all_settled, "everything is settled", timeout=150)
            assert worker.stop() == 0
        task = await app.tasks.get("poison")
        assert task is not None
        assert (task.state, task.failures, task.last_error) == (State.DEAD, POISON_ATTEMPTS, LEASE_EXPIRED_ERROR)
        attempts = await app.tasks.attempts(poison.id)
        assert [one.outcome for one in attempts] == ["lease_expired"] * (1 + POISON_ATTEMPTS)
        verdicts = [one.explanation["verdict"] for one in attempts if one.explanation]
        assert verdicts == ["suspect"] + ["retry"] * (POISON_ATTEMPTS - 1) + ["worker_lost"]
        assert {one.error_class for one in attempts} == {"worker_lost"}
        assert len(ground.starts("poison")) == deaths == 1 + POISON_ATTEMPTS
        books = await read_books(app, ground.evidence)
        assert [fault for fault in books.faults() if "task poison" not in fault] == []
        assert await app.tasks.counts() == {**dict.fromkeys(State, 0), State.DONE: 200, State.DEAD: 1}


HEALTHY = 100
PROCESSES = 4
LEASE_SECONDS = 5
"""Longer than a busy machine makes a healthy process wait for its turn: one that is late would be charged like a dead one."""


@pytest.mark.long_on("sqlite")
async def test_the_neighbours_of_a_poison_are_not_charged(ground: Ground) -> None:
    """Of a hundred healthy tasks and one that kills its process all healthy ones are done with at most one extra run each.

    They come back together, but run alone then; so the culprit dies alone, named, with the number of workers that it took.
    """
    async with Redrive(ground.url) as app:
        await create_effects(app)
        healthy = [make_task("work", {"ms": 30}, key=f"healthy-{number}") for number in range(HEALTHY)]
        half = HEALTHY // 2
        poison = make_task("poison", key="poison", attempts=POISON_ATTEMPTS)
        await app.add_many([*healthy[:half], poison, *healthy[half:]])
        with ExitStack() as stack:
            started = 0

            def another() -> WorkerProcess:
                nonlocal started
                started += 1
                return stack.enter_context(
                    WorkerProcess(ground, f"worker-{started}", lease=LEASE_SECONDS, concurrency=40, grace=5)
                )

            workers, deaths = [another() for _ in range(PROCESSES)], 0

            async def all_settled() -> bool:
                """Like a supervisor: start a new worker where one has died."""
                nonlocal workers, deaths
                alive = [worker for worker in workers if worker.exit_code is None]
                gone = PROCESSES - len(alive)
                deaths += gone
                workers = alive + [another() for _ in range(gone)]
                counts = await app.tasks.counts()
                return counts[State.WAITING] == counts[State.CLAIMED] == 0

            await until(all_settled, "everything is settled", timeout=150)
            assert [worker.stop() for worker in workers] == [0] * PROCESSES
        books = await read_books(app, ground.evidence)
        assert [fault for fault in books.faults() if "task poison" not in fault] == []
        for id_, task in books.tasks.items():
            if task.key != "poison":
                assert (task.state, task.failures) == ("done", 0)
                assert len(books.runs[id_]) <= 2, f"{task.key} was run {len(books.runs[id_])} times"
        culprit = await app.tasks.get("poison")
        assert culprit is not None
        assert (culprit.state, culprit.failures) == (State.DEAD, POISON_ATTEMPTS)
        last = (await app.tasks.attempts(culprit.id))[-1]
        assert last.explanation is not None
        assert (last.explanation["verdict"], last.explanation["lost_alone"]) == ("worker_lost", POISON_ATTEMPTS)
        assert deaths == len(ground.starts("poison")) == 1 + POISON_ATTEMPTS
