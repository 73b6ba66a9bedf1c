"""A worker that is asked to stop while it is busy."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from redrive import Redrive, State
from redrive.lane import make_task

from .books import read_books, until
from .processes import Ground, WorkerProcess

GRACE_SECONDS = 1.0
SLOTS = 20


@pytest.mark.parametrize("kind", ["work", "block"])
async def test_sigterm_releases_what_is_unfinished(ground: Ground, kind: str) -> None:
    """SIGTERM under load: what ends within the grace is done, the rest is due at once with no failure charged, exit code 0.

    The process is gone soon after the grace, even if its handlers hang in threads that nothing can stop. Those keep their
    claims to the end, and come back by their lease.
    """
    in_threads = kind == "block"
    async with Redrive(ground.url) as app:
        await app.add_many(
            [make_task(kind, {"ms": 60_000}, key=f"long-{number}") for number in range(SLOTS - 5)]
            + [make_task(kind, {"ms": 600}, key=f"short-{number}") for number in range(5)]
            + [make_task(kind, {"ms": 0}, key=f"later-{number}", delay=timedelta(hours=1)) for number in range(50)]
        )
        with WorkerProcess(ground, "worker", lease=30, concurrency=SLOTS, grace=GRACE_SECONDS) as worker:
            await until(lambda: len(ground.starts()) == SLOTS, "all slots are busy")
            await app.add_many([make_task(kind, {"ms": 0}, key=f"queued-{number}") for number in range(500)])
            started = time.monotonic()
            assert worker.stop() == 0
            took = time.monotonic() - started
        print(f"ended after {took:.2f} s, grace {GRACE_SECONDS} s")
        assert took < GRACE_SECONDS + 30, "it waited for handlers that take a minute or more"
        books = await read_books(app, ground.evidence)
        now = datetime.now(UTC)
        for id_, task in books.tasks.items():
            outcomes = [one.outcome for one in books.attempts.get(id_, [])]
            assert task.failures == 0, task.key
            assert (task.claim_id is None) is not (in_threads and task.key.startswith("long")), task.key
            if task.key.startswith("short"):
                assert (task.state, outcomes) == ("done", ["done"]), task.key
            elif task.key.startswith("later"):
                assert (task.state, outcomes) == ("waiting", []), task.key
            elif task.key.startswith("long") and in_threads:
                assert (task.state, outcomes) == (State.CLAIMED, []), task.key
            elif task.key.startswith("long"):
                assert (task.state, outcomes) == (State.WAITING, ["released"]), task.key
                assert task.due_at <= now, task.key
            elif task.state == "waiting":
                assert task.due_at <= now, task.key
        assert in_threads or books.outcomes()["released"] >= SLOTS - 5
        assert books.outcomes()["failed"] == books.outcomes()["lease_expired"] == 0
