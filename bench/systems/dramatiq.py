"""Dramatiq on RabbitMQ: persistent messages, publisher confirms, durable queues, one worker process of eight threads.

Adding: Dramatiq has no bulk call, and a confirmed publish waits for the broker. Several threads, each with the
connection that Dramatiq gives every thread, let RabbitMQ write many messages with one fsync.
"""

import logging
import os
from typing import Any

# As many messages in hand as Celery has; Dramatiq reads this when it is imported. 5,400 a second instead of 4,400.
os.environ.setdefault("dramatiq_queue_prefetch", "200")

import dramatiq
import pika
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.common import dq_name, xq_name
from dramatiq.middleware import CurrentMessage

from bench.job import Audit, Job, Tally
from bench.systems import threads

PUBLISHERS = 16
WORKER_THREADS = 8


def actor(job: Job, tally: Tally | None = None) -> Any:
    logging.getLogger("dramatiq").setLevel(logging.CRITICAL)
    broker = RabbitmqBroker(url=job.url, confirm_delivery=True)
    broker.add_middleware(CurrentMessage())

    @dramatiq.actor(broker=broker, queue_name=job.name, max_retries=3, min_backoff=0, max_backoff=0)
    def attempt(number: int) -> None:
        assert tally is not None
        message = CurrentMessage.get_current_message()
        assert message is not None
        tally.attempt(number, first_try=message.options.get("retries", 0) == 0)

    return attempt


def prepare(job: Job) -> None:
    attempt = actor(job)
    attempt.broker.declare_queue(job.name, ensure=True)
    attempt.broker.close()


def add(job: Job) -> None:
    attempt = actor(job)

    def publish(numbers: range) -> None:
        for number in numbers:
            attempt.send(number)

    threads.share(job.tasks, PUBLISHERS, publish)


def work(job: Job, tally: Tally) -> None:
    attempt = actor(job, tally)
    worker = dramatiq.Worker(attempt.broker, worker_threads=WORKER_THREADS)
    worker.start()
    tally.wait()
    worker.stop()
    attempt.broker.close()


def audit(job: Job) -> Audit:
    """Delayed and dead messages have queues of their own; none may be left in any."""
    with pika.BlockingConnection(pika.URLParameters(job.url)) as connection:
        channel = connection.channel()
        queues = (job.name, dq_name(job.name), xq_name(job.name))
        return Audit(left=sum(channel.queue_declare(name, passive=True).method.message_count for name in queues))
