"""Huey on SQLite: WAL with synchronous=FULL, one consumer, retries with no delay, no results kept.

Adding: one call per task is all there is; threads would only queue for Huey's one connection.
"""

import logging
from typing import Any

import huey as peer

from bench.job import Audit, Job, Tally

WORKERS = 1


def application(job: Job, tally: Tally | None = None) -> tuple[Any, Any]:
    logging.getLogger("huey").setLevel(logging.CRITICAL)
    app = peer.SqliteHuey("bench", filename=job.url, fsync=True, results=False)

    @app.task(retries=1, retry_delay=0, context=True, name="attempt")
    def attempt(number: int, task: Any = None) -> None:
        assert tally is not None
        tally.attempt(number, first_try=task.retries == 1)

    return app, attempt


def prepare(job: Job) -> None:
    app, _ = application(job)
    app.storage.close()


def add(job: Job) -> None:
    app, attempt = application(job)
    for number in range(job.tasks):
        attempt(number)
    app.storage.close()


def work(job: Job, tally: Tally) -> None:
    app, _ = application(job, tally)
    consumer = app.create_consumer(workers=WORKERS, periodic=False)
    consumer.start()
    tally.wait()
    consumer.stop(graceful=True)
    app.storage.close()


def audit(job: Job) -> Audit:
    app, _ = application(job)
    return Audit(left=app.pending_count() + app.scheduled_count())
