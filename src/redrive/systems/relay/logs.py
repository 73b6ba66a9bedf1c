"""What people see of the relay: its metrics, and its log lines in words of its own. Payloads are never logged."""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from redrive import State
from redrive.events import AttemptEnded, AttemptStarted, Event, Settlement, TaskAdded
from redrive.observe.metrics import OTHER, FewLabels
from redrive.operator.words import safe_text
from redrive.systems.kit.own_log import OwnLog
from redrive.systems.relay.deaths import DeadLetter
from redrive.systems.relay.message import InvalidMessageError
from redrive.systems.relay.rules import LetterVerdict
from redrive.systems.relay.values import Arrival, Stored

QUEUES_MAX = 50
"""Queues beyond this many are counted as `other`."""
EXHAUSTED = "exhausted"
DRIFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class DeadLetterMetrics:
    """The metrics of the dead-letter handler; what it has in common with the relay has the same names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._label = FewLabels(QUEUES_MAX)

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
        self._label = FewLabels(QUEUES_MAX)

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, registry=None)

        self.scheduled = counter("retries_scheduled", "Messages stored for a retry", "queue")
        self.executed = counter("retries_executed", "Retries published, or tried to", "queue", "status")
        self.exhausted = counter("retries_exhausted", "Messages handed to manual review", "queue")
        self.invalid = counter("retry_invalid_messages", "Messages in quarantine", "reason")
        self.confirms_lost = counter("retry_confirms_lost", "Publisher confirms cut off: possible duplicates")
        self.drift = Histogram("retry_drift_seconds", "From due to published", buckets=DRIFT_SECONDS, registry=None)
        self.depth = Gauge("retry_queue_depth", "Messages that wait for their retry", registry=None)
        self.oldest_due = Gauge("retry_oldest_due_seconds", "How long the oldest due message waits", registry=None)
        self.up = Gauge("service_up", "Whether the relay runs", registry=None)

    def register(self, registry: CollectorRegistry) -> None:
        """Show them with the service's own."""
        for metric in (
            self.scheduled, self.executed, self.exhausted, self.invalid, self.confirms_lost,
            self.drift, self.depth, self.oldest_due, self.up,
        ):  # fmt: skip
            registry.register(metric)

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`. One group costs a few increments however many messages it holds."""
        tally = Tally(self._ended(event.settlement) for event in events if isinstance(event, AttemptEnded))
        for (queue, became), amount in tally.items():
            if became == EXHAUSTED:
                self.exhausted.labels(queue).inc(amount)
            elif became is not None:
                self.executed.labels(queue, became).inc(amount)

    def _ended(self, settlement: Settlement) -> tuple[str, str | None]:
        """The queue of a message and what became of it: `success`, `failed` or `EXHAUSTED`; a release at a stop is not a try."""
        queue = self._label(settlement.claim.task.payload["original_queue"])
        if settlement.state is State.DEAD:
            return queue, EXHAUSTED
        if settlement.state is State.DONE:
            if (late := _drift_seconds(settlement)) is not None:
                self.drift.observe(late)
            return queue, "success"
        return queue, None if settlement.explanation is None else "failed"

    def stored(self, stored: Stored) -> None:
        """Count what was stored."""
        tally = Tally(self._label(one.queue) for _, one, _ in (*stored.new, *stored.returned))
        for queue, amount in tally.items():
            self.scheduled.labels(queue).inc(amount)


class RelayLog(OwnLog):
    """The relay's story, one line for each step of a message."""

    def __init__(self) -> None:
        super().__init__("relay")

    def _write(self, event: Event) -> None:
        match event:
            case TaskAdded() | AttemptStarted():
                pass  # `stored` tells it with what only the intake knows; that a try begins is not told
            case AttemptEnded(_, settlement):
                self._say_ended(settlement)
            case _:
                super()._write(event)

    def _say_ended(self, settlement: Settlement) -> None:
        task = settlement.claim.task
        row = task.payload
        fields: dict[str, Any] = {
            "message_id": task.key,
            "queue": row["original_queue"],
            "retry_count": task.failures + (settlement.state is State.DONE),
            "max_retries": row["max_retries"],
        }
        if settlement.state is State.DONE:
            if (late := _drift_seconds(settlement)) is not None:
                fields["drift_seconds"] = round(late, 3)
            self._log.info("retry_published", **fields)
        elif settlement.state is State.DEAD:
            self._log.error("retry_exhausted", **fields, error=row["error_reason"])
        elif settlement.explanation is None:
            self._log.info("retry_released", **fields)
        else:
            delay = settlement.delay.total_seconds() if settlement.delay is not None else 0
            self._log.warning("retry_failed", **fields, error=settlement.error, delay_seconds=round(delay, 3))

    def stored(self, stored: Stored) -> None:
        """Tell what arrived and waits now."""
        for name, stories in (("retry_scheduled", stored.new), ("retry_returned", stored.returned)):
            for _, one, delay in stories:
                self.say("info", name, **_about(one), delay_seconds=round(delay.total_seconds(), 3))
        for one in stored.known:
            self.say("info", "retry_known", **_about(one))

    def dead_letter(self, letter: DeadLetter, verdict: LetterVerdict) -> None:
        """Tell of a dead letter that the relay's queue has, and what was decided about it."""
        self.say(
            "info",
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

    def quarantined(self, error: InvalidMessageError) -> None:
        """Tell of a message that could not be read."""
        self.say("warning", "retry_invalid", reason=error.reason, error=safe_text(str(error)))

    def unstored(self, error: str) -> None:
        """Tell that the database does not store, and why."""
        self.say("error", "retry_unstored", error=error)

    def confirm_lost(self, message_id: object, queue: str) -> None:
        """Tell of a message that is published once more because nobody knows whether it arrived. Bad input may have no id."""
        known = {} if message_id is None else {"message_id": message_id}
        self.say("warning", "retry_confirm_lost", **known, queue=queue)

    def broker(self, link: str, up: bool, error: str) -> None:  # noqa: FBT001 - called by position
        """Tell that a connection to the broker has come or gone."""
        if up:
            self.say("info", "broker_connected", link=link)
        else:
            self.say("error", "broker_away", link=link, error=error)


def _drift_seconds(settlement: Settlement) -> float | None:
    """How long after its due time a message was published."""
    claim = settlement.claim
    if claim.task.due_at is None:
        return None
    return max(0.0, (claim.claimed_at + settlement.elapsed - claim.task.due_at).total_seconds())


def _about(arrival: Arrival) -> dict[str, Any]:
    return {
        "message_id": arrival.message_id,
        "queue": arrival.queue,
        "retry_count": arrival.retry_count,
        "max_retries": arrival.max_retries,
    }
