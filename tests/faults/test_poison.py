"""A task that kills whoever runs it."""

from contextlib import ExitStack

from redrive import Redrive, State
from redrive.core.decide import LEASE_EXPIRED_ERROR
from redrive.lane import make_task

from .books import create_effects, read_books, until
from .processes import Ground, WorkerProcess

POISON_ATTEMPTS = 3


async def test_poison_ends_dead(ground: Ground) -> None:
    """A handler that kills its process is tried exactly as often as it may be, ends dead, and the others go on."""
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
        assert [one.outcome for one in attempts] == ["lease_expired"] * POISON_ATTEMPTS
        verdicts = [one.explanation["verdict"] for one in attempts if one.explanation]
        assert verdicts == ["retry"] * (POISON_ATTEMPTS - 1) + ["worker_lost"]
        assert {one.error_class for one in attempts} == {"worker_lost"}
        assert len(ground.starts("poison")) == deaths == POISON_ATTEMPTS
        books = await read_books(app, ground.evidence)
        assert [fault for fault in books.faults() if "task poison" not in fault] == []
        assert await app.tasks.counts() == {**dict.fromkeys(State, 0), State.DONE: 200, State.DEAD: 1}
