"""What people see of the relay: its metrics, and its log lines in words of its own. Payloads are never logged."""

import logging
from collections import Counter as Tally
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from redrive import State
from redrive.events import AttemptEnded, AttemptStarted, Event, TaskAdded
from redrive.observe.logs import LogObserver
from redrive.systems.relay.deaths import DeadLetter
from redrive.systems.relay.message import Arrival
from redrive.systems.relay.rules import Verdict
from redrive.systems.relay.store import Stored

_log = logging.getLogger("redrive")

QUEUES_MAX = 50
"""Queues beyond this many are counted as `other`: labels must not grow with what strangers send."""
OTHER = "other"
DRIFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class QueueLabels:
    """The label of a queue: its name, for as many queues as there may be labels."""

    def __init__(self) -> None:
        self._queues: set[str] = set()

    def __call__(self, queue: str) -> str:
        if queue not in self._queues:
            if len(self._queues) >= QUEUES_MAX:
                return OTHER
            self._queues.add(queue)
        return queue


class DeadLetterMetrics:
    """The metrics of the dead-letter handler; what it has in common with the relay has the same names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._label = QueueLabels()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, registry=self.registry)

        self._letters = counter("relay_dead_letters", "Dead letters handed to the relay", "class", "queue")
        self.invalid = counter("retry_invalid_messages", "Messages in quarantine", "reason")
        self.confirms_lost = counter("retry_confirms_lost", "Publisher confirms cut off: possible duplicates")
        self.up = Gauge("service_up", "Whether the dead-letter handler runs", registry=self.registry)

    def handed_over(self, letter_class: str, queue: str | None) -> None:
        """Count a dead letter that the relay's queue has. Where no queue is known there is none to name."""
        self._letters.labels(letter_class, OTHER if queue is None else self._label(queue)).inc()


class RelayMetrics:
    """The metrics of the relay, from the facts of its lane and from what arrives."""

    def __init__(self) -> None:
        self._label = QueueLabels()
        self._registered = False

    def register(self, registry: CollectorRegistry) -> None:
        """Begin to count."""

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, registry=registry)

        self.scheduled = counter("retries_scheduled", "Messages stored for a retry", "queue")
        self.executed = counter("retries_executed", "Retries published, or tried to", "queue", "status")
        self.exhausted = counter("retries_exhausted", "Messages handed to manual review", "queue")
        self.invalid = counter("retry_invalid_messages", "Messages in quarantine", "reason")
        self.confirms_lost = counter("retry_confirms_lost", "Publisher confirms cut off: possible duplicates")
        self.drift = Histogram("retry_drift_seconds", "From due to published", buckets=DRIFT_SECONDS, registry=registry)
        self.depth = Gauge("retry_queue_depth", "Messages that wait for their retry", registry=registry)
        self.oldest_due = Gauge("retry_oldest_due_seconds", "How long the oldest due message waits", registry=registry)
        self.up = Gauge("service_up", "Whether the relay runs", registry=registry)
        self._registered = True

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`."""
        if not self._registered:
            return
        for event in events:
            if isinstance(event, AttemptEnded):
                self._ended(event)

    def _ended(self, event: AttemptEnded) -> None:
        settlement = event.settlement
        claim = settlement.claim
        queue = self._label(claim.task.payload["original_queue"])
        if settlement.state is State.DEAD:
            self.exhausted.labels(queue).inc()
        elif settlement.state is State.DONE:
            self.executed.labels(queue, "success").inc()
            if claim.task.due_at is not None:
                late = claim.claimed_at + settlement.elapsed - claim.task.due_at
                self.drift.observe(max(0.0, late.total_seconds()))
        elif settlement.explanation is not None:  # a release at a stop is no try
            self.executed.labels(queue, "failed").inc()

    def stored(self, stored: Stored) -> None:
        """Count what was stored."""
        if self._registered:
            tally = Tally(self._label(one.queue) for _, one, _ in (*stored.new, *stored.returned))
            for queue, amount in tally.items():
                self.scheduled.labels(queue).inc(amount)

    def quarantined(self, reason: str) -> None:
        """Count a message that is in quarantine."""
        if self._registered:
            self.invalid.labels(reason).inc()

    def gauges(self, *, depth: int, oldest_due: timedelta | None) -> None:
        """Show what was asked of the database."""
        if self._registered:
            self.depth.set(depth)
            self.oldest_due.set(oldest_due.total_seconds() if oldest_due else 0)

    def running(self, *, up: bool) -> None:
        """Show whether the relay runs."""
        if self._registered:
            self.up.set(int(up))

    def confirm_lost(self) -> None:
        """Count a confirm that was cut."""
        if self._registered:
            self.confirms_lost.inc()


class RelayLog(LogObserver):
    """The relay's story, one line for each step of a message."""

    def __init__(self) -> None:
        super().__init__(system="relay")

    def _write(self, event: Event) -> None:
        match event:
            case TaskAdded():
                pass  # `stored` tells it with what only the intake knows
            case AttemptStarted():
                pass
            case AttemptEnded():
                self._told(event)
            case _:
                super()._write(event)

    def _told(self, event: AttemptEnded) -> None:
        settlement = event.settlement
        claim = settlement.claim
        row = claim.task.payload
        fields: dict[str, Any] = {
            "message_id": claim.task.key,
            "queue": row["original_queue"],
            "retry_count": claim.task.failures + (settlement.state is State.DONE),
            "max_retries": row["max_retries"],
        }
        if settlement.state is State.DONE:
            if claim.task.due_at is not None:
                late = claim.claimed_at + settlement.elapsed - claim.task.due_at
                fields["drift_seconds"] = round(max(0.0, late.total_seconds()), 3)
            self._log.info("retry_published", **fields)
        elif settlement.state is State.DEAD:
            self._log.error("retry_exhausted", **fields, error=row["error_reason"])
        elif settlement.explanation is None:
            self._log.info("retry_released", **fields)
        else:
            delay = settlement.delay.total_seconds() if settlement.delay is not None else 0
            self._log.warning("retry_failed", **fields, error=settlement.error, delay_seconds=round(delay, 3))

    def _tell(self, write: Callable[..., Any], event: str, **fields: Any) -> None:
        """Write of what stands already: a full disk under the logs must not undo it."""
        try:
            write(event, **fields)
        except Exception:
            _log.exception("%s could not be logged", event)

    def stored(self, stored: Stored) -> None:
        """Tell what arrived and waits now."""
        for name, stories in (("retry_scheduled", stored.new), ("retry_returned", stored.returned)):
            for _, one, delay in stories:
                self._tell(self._log.info, name, **_about(one), delay_seconds=round(delay.total_seconds(), 3))
        for one in stored.known:
            self._tell(self._log.info, "retry_known", **_about(one))

    def dead_letter(self, letter: DeadLetter, verdict: Verdict) -> None:
        """Tell of a dead letter that the relay's queue has, and what was decided about it."""
        self._tell(
            self._log.info,
            "dead_letter",
            message_id=letter.message_id,
            queue=letter.trouble.queue,
            reason=letter.trouble.reason,
            deaths=letter.trouble.deaths,
            letter_class=verdict.letter_class.value,
            rule=verdict.rule,
            retry_count=letter.retry_count,
            error=letter.error_reason,
        )

    def quarantined(self, reason: str, detail: str) -> None:
        """Tell of a message that could not be read."""
        self._tell(self._log.warning, "retry_invalid", reason=reason, error=detail)

    def unstored(self, error: str) -> None:
        """Tell that the database does not store, and why."""
        self._tell(self._log.error, "retry_unstored", error=error)

    def confirm_lost(self, message_id: object, queue: str) -> None:
        """Tell of a message that is published once more because nobody knows whether it arrived. Bad input may have no id."""
        known = {} if message_id is None else {"message_id": message_id}
        self._tell(self._log.warning, "retry_confirm_lost", **known, queue=queue)

    def broker(self, link: str, *, up: bool, error: str) -> None:
        """Tell that a connection to the broker has come or gone."""
        if up:
            self._tell(self._log.info, "broker_connected", link=link)
        else:
            self._tell(self._log.error, "broker_away", link=link, error=error)


def _about(arrival: Arrival) -> dict[str, Any]:
    return {
        "message_id": arrival.message_id,
        "queue": arrival.queue,
        "retry_count": arrival.retry_count,
        "max_retries": arrival.max_retries,
    }
