"""Celery on RabbitMQ: persistent messages, publisher confirms, a durable queue, acks_late, two worker processes.

Adding: Celery has no bulk call, and a confirmed publish waits for the broker. Several threads, each with a producer of
its own, let RabbitMQ write many messages with one fsync.

Retrying: `autoretry_for` with no countdown. Part of its cost is Celery's own: for each failure a worker process copies
the traceback with the source positions of every frame and sends 46 kB to its parent, about 2 ms on a busy machine.
"""

import os
import signal
import threading
from typing import Any

from celery import Celery
from kombu import Connection

from bench.job import Audit, FirstTryError, Job, Tally
from bench.systems import threads

PUBLISHERS = 8
PROCESSES = 2
PREFETCH = 200


def application(job: Job, tally: Tally | None = None) -> Any:
    app = Celery("bench", broker=job.url)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_pool_limit=PUBLISHERS,
        broker_transport_options={"confirm_publish": True},
        task_acks_late=True,
        task_default_delivery_mode="persistent",
        task_default_queue=job.name,
        task_ignore_result=True,
        worker_prefetch_multiplier=PREFETCH // PROCESSES,
    )

    @app.task(name="attempt", bind=True, autoretry_for=(FirstTryError,), retry_kwargs={"countdown": 0})
    def attempt(task: Any, number: int) -> None:
        assert tally is not None
        tally.attempt(number, first_try=task.request.retries == 0)

    return app


def prepare(job: Job) -> None:
    app = application(job)
    with app.connection_for_write() as connection:
        app.amqp.queues[job.name](connection.default_channel).declare()


def add(job: Job) -> None:
    app = application(job)
    attempt = app.tasks["attempt"]

    def publish(numbers: range) -> None:
        with app.amqp.producer_pool.acquire(block=True) as producer:
            for number in numbers:
                attempt.apply_async((number,), producer=producer)

    threads.share(job.tasks, PUBLISHERS, publish)


def work(job: Job, tally: Tally) -> None:
    """The worker runs in this process and forks its two; a TERM to itself is Celery's warm shutdown."""
    worker = application(job, tally).Worker(
        hostname=f"{job.name}@localhost",
        pool="prefork",
        concurrency=PROCESSES,
        loglevel="CRITICAL",
        without_gossip=True,
        without_heartbeat=True,
        without_mingle=True,
    )

    def stop_when_done() -> None:
        tally.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_done, daemon=True).start()
    try:
        worker.start()
    except SystemExit as ended:
        if ended.code:
            raise


def audit(job: Job) -> Audit:
    with Connection(job.url) as connection:
        declared = connection.default_channel.queue_declare(job.name, passive=True)
    return Audit(left=declared.message_count)
