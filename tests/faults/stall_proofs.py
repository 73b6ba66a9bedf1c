"""Workers that stand still past their leases and wake up at the worst moment: small by `test_late_worker.py`, and at full size by `python -m proof stalls`."""

import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import make_url

from redrive import Redrive

from . import evidence
from .books import all_ended, read_books, until
from .processes import Ground, WorkerProcess, events

LEASE_SECONDS = 2.0
PATIENCE_SECONDS = 1800.0
ENDS_MS, RUNS_ON_MS = 1500, 3_600_000
"""A handler that has nothing left to wait for when its worker wakes, so that it settles at once; and one that would run on."""
MOMENTS = ("while another runs it", "after another has ended it")


@contextmanager
def stopped(worker: WorkerProcess, url: str) -> Iterator[None]:
    """The worker stands still for the length of the block, without the one write lock that a SQLite file has."""
    stop(worker, url)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


def stop(worker: WorkerProcess, url: str) -> None:
    """Let it stand still, but not with the lock that nobody else could work without."""
    worker.signal(signal.SIGSTOP)
    while _is_locked(url):
        worker.signal(signal.SIGCONT)
        worker.signal(signal.SIGSTOP)


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


async def stalled(ground: Ground, rng: random.Random, *, workers: int, at_once: int) -> str:
    """No late worker settles anything: its claim ends as `lease_expired`, another's as done; it says that it lost, and goes on working."""
    moments: Counter[str] = Counter()
    late_claims: dict[str, str] = {}
    refused = 0
    async with Redrive(ground.url) as app:
        for first in range(0, workers, at_once):
            keys = {f"held-{number}": rng.choice(MOMENTS) for number in range(first, min(workers, first + at_once))}
            moments.update(keys.values())
            with ExitStack() as stack:
                late = {}
                for key in keys:  # one after the other, so that each has one
                    first_ms = rng.choice((ENDS_MS, ENDS_MS, RUNS_ON_MS))
                    await app.add("work", {"first_ms": first_ms, "ms": 300}, key=key)
                    worker = WorkerProcess(ground, f"late-{key}", lease=LEASE_SECONDS, concurrency=1)
                    late[key] = stack.enter_context(worker)
                    await until(lambda key=key: ground.starts(key), f"{key} runs", PATIENCE_SECONDS)
                    [start] = ground.starts(key)
                    assert start.pid == worker.pid
                    late_claims[key] = start.claim
                    stop(worker, ground.url)
                other = stack.enter_context(WorkerProcess(ground, f"other-{first}", lease=LEASE_SECONDS))
                await _wake_at_worst(ground, late, keys)
                await all_ended(app, PATIENCE_SECONDS)
                for key, worker in late.items():
                    await until(
                        lambda worker=worker: events(worker.log, "settle_lost"),
                        f"{key} says that it lost",
                        PATIENCE_SECONDS,
                    )
                    refused += len(events(worker.log, "settle_lost"))
                assert [worker.stop() for worker in (*late.values(), other)] == [0] * (len(late) + 1)
        books = await read_books(app, ground.evidence)
    assert books.faults() == []
    outcomes = {
        (task.key, str(one.claim_id)): one.outcome for id_, task in books.tasks.items() for one in books.attempts[id_]
    }
    accepted = [key for key, claim in late_claims.items() if outcomes[key, claim] != "lease_expired"]
    assert not accepted, f"{len(accepted)} stale settlements were accepted: {accepted[:3]}"
    told = ", ".join(f"{amount} {moment}" for moment, amount in sorted(moments.items()))
    return f"{workers} workers continued ({told}): 0 stale settlements accepted, {refused} refused; {outcomes_told(books.outcomes())}"


def outcomes_told(outcomes: Counter[str]) -> str:
    """In words."""
    return ", ".join(f"{amount:,} {outcome}" for outcome, amount in sorted(outcomes.items()))


async def _wake_at_worst(ground: Ground, late: dict[str, WorkerProcess], keys: dict[str, str]) -> None:
    """Continue each as soon as another runs its task, or as soon as another has ended it."""
    asleep = dict(keys)

    def woken() -> bool:
        seen = {
            (line.key, line.what)
            for line in evidence.read(ground.evidence)
            if line.key in late and line.pid != late[line.key].pid
        }
        for key, moment in list(asleep.items()):
            if (key, "start" if moment == MOMENTS[0] else "end") in seen:
                late[key].signal(signal.SIGCONT)
                del asleep[key]
        return not asleep

    await until(woken, "others have taken over", PATIENCE_SECONDS, every=0.01)
