"""What is done with a message that is due: it goes to its own queue, or to people when its retries are spent.

Only this ends a row. A lost confirm, a broker that is away or a crash charge nothing, and the row stays due.
"""

import json
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from aio_pika import DeliveryMode, Message

from redrive import PermanentError, Policy, Task, TransientError, seconds
from redrive.observe.traces import current_trace
from redrive.operator.words import describe_error
from redrive.systems.relay import headers as amqp
from redrive.systems.relay.broker import Publisher
from redrive.systems.relay.settings import RelaySettings
from redrive.systems.relay.wire import Published

AGAIN_MAX = seconds(60)
"""A message that no queue takes is tried at least this often, however long retries may wait."""
QUEUES_MAX = 1000
"""How many missing queues are remembered; of more the longest missing is forgotten, and its messages are tried more often again."""


class Work:
    """The handler of the relay."""

    def __init__(self, settings: RelaySettings, publisher: Publisher, policy: Policy, service: str) -> None:
        self._settings = settings
        self._publisher = publisher
        self._policy = policy
        self._service = service
        self._missing = MissingQueues()

    async def publish(self, task: Task) -> None:
        """Publish a due message to its queue, or to the reviewers when its retries are spent."""
        row = task.payload
        spent = is_spent(task)
        queue = self._settings.manual_review_queue if spent else row["original_queue"]
        try:
            message = review_message(task) if spent else retry_message(task, self._service)
            answer = await self._publisher.publish(message, queue)
        except Exception as error:
            raise self._again(task, f"cannot be published: {describe_error(error)}") from error
        if answer in (Published.CONFIRMED, Published.REFUSED):
            self._missing.found(queue)
        match answer:
            case Published.CONFIRMED if spent:
                why = row["error_reason"] or "none was given"
                raise PermanentError(
                    f"all {row['max_retries']} retries are spent, so it is in {queue} now. Last error: {why}"
                )
            case Published.CONFIRMED:
                return
            case Published.UNROUTABLE:
                if spent:
                    await self._publisher.declare_again(queue)
                raise self._again(
                    task,
                    f"unroutable: there is no queue {queue!r}; it is tried again until there is one",
                    at_least=self._missing.missed(queue),
                )
            case Published.REFUSED:
                raise self._again(task, f"refused: the broker does not take messages for {queue!r} now")
            case Published.UNCONFIRMED:
                raise self._again(task, f"unconfirmed: {queue!r} may have it, but the broker did not say so")

    def _again(self, task: Task, reason: str, *, at_least: timedelta = timedelta(0)) -> TransientError:
        """Try again with the backoff of its count. The count itself is raised by nothing but a confirm."""
        delay = max(self._policy.delay(task.failures + 1, task.key), at_least)
        return TransientError(reason, retry_after=min(delay, self._settings.max_delay, AGAIN_MAX))


class MissingQueues:
    """Since when each queue has been missing, so that messages for it are not tried in vain all the time.

    A message for a queue that has been missing for a while waits as long again before its next try. So the tries of one message
    become rarer while its queue stays away, and thousands of messages for one queue cost little. Kept in memory only: a relay
    that restarts knows of none.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[str, float] = {}

    def missed(self, queue: str) -> timedelta:
        """It is missing: for how long now, as far as is known."""
        now = self._now()
        if queue not in self._since and len(self._since) >= QUEUES_MAX:
            del self._since[next(iter(self._since))]
        return timedelta(seconds=now - self._since.setdefault(queue, now))

    def found(self, queue: str) -> None:
        """It is there."""
        self._since.pop(queue, None)


def is_spent(task: Task) -> bool:
    """Whether it goes to people now. What they have resubmitted goes out once at least, also where no retry is allowed."""
    most: int = task.payload["max_retries"]
    return task.failures >= (max(most, 1) if amqp.RESUBMITTED_BY in task.payload["headers"] else most)


def retry_message(task: Task, service: str) -> Message:
    """The original message for its own queue: the payload byte for byte, its headers, and ours."""
    row = task.payload
    ours: dict[str, Any] = {
        amqp.COUNT: task.failures + 1,
        amqp.MESSAGE_ID: task.key,
        amqp.ERROR: amqp.shortened(row["error_reason"] or ""),
        amqp.SCHEDULER: service,
    }
    if (trace := current_trace()) is not None:  # of our own span, which continues the one that came
        ours[amqp.TRACE] = trace
    theirs = {name: amqp.from_json(value) for name, value in row["headers"].items()}
    return Message(
        _payload(row),
        headers={name: value for name, value in theirs.items() if name not in amqp.NOTES} | ours,
        content_type=row["content_type"],
        delivery_mode=DeliveryMode.PERSISTENT,
        **amqp.properties(theirs.get(amqp.PROPERTIES)),
    )


def _payload(row: Mapping[str, Any]) -> bytes:
    """The payload's bytes; SQLite keeps what was inserted as text as such."""
    payload = row["original_payload"]
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def review_message(task: Task) -> Message:
    """What people get to see of a message whose retries are spent."""
    row = task.payload
    body = {
        "message_id": task.key,
        "original_queue": row["original_queue"],
        "original_payload": b64encode(_payload(row)).decode(),
        "error_reason": row["error_reason"] or "",
        "retry_count": task.failures,
        "max_retries": row["max_retries"],
        "failed_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    said = {
        name: amqp.shortened(str(row["headers"][name]))
        for name in (amqp.LETTER_CLASS, amqp.LETTER_RULE)
        if name in row["headers"]
    }
    return Message(
        json.dumps(body, ensure_ascii=False).encode(),
        headers={amqp.EXCEEDED: True, amqp.QUEUE: row["original_queue"]} | said,
        content_type="application/json",
        message_id=task.key if len(task.key.encode()) <= amqp.SHORT_BYTES_MAX else None,
        delivery_mode=DeliveryMode.PERSISTENT,
    )
