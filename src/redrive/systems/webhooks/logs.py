"""What is said and counted of webhooks, by the names that people who run the inbox look for."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from redrive import State
from redrive.events import AttemptEnded, AttemptStarted, Event, Settlement, TaskAdded
from redrive.lane import NewTask
from redrive.systems.kit.own_log import OwnLog

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class WebhookLogs(OwnLog):
    """One line for each step of a webhook; payloads are never logged."""

    def __init__(self) -> None:
        super().__init__("webhooks")

    def _write(self, event: Event) -> None:
        match event:
            case TaskAdded(_, kind, key, id_, new):
                named = {"event_id": str(id_), "event_type": kind, "idempotency_key": key}
                self._log.info("webhook_accepted" if new else "webhook_duplicate", **named)
            case AttemptStarted(_, claim):
                self._log.info("webhook_started", **_named(claim), attempt=claim.number)
            case AttemptEnded(_, settlement):
                self._say_ended(settlement)
            case _:
                super()._write(event)

    def queue_full(self, task: NewTask, *, queue_maxsize: int) -> None:
        """A webhook was refused."""
        self.say(
            "warning", "webhook_queue_full",
            idempotency_key=task.key, event_type=task.kind, queue_maxsize=queue_maxsize,
        )  # fmt: skip

    def key_reused(self, task: NewTask, *, event_id: str, known_event_type: str) -> None:
        """A sender used the key of one webhook for another, which was therefore taken for the first and not stored."""
        self.say(
            "warning", "webhook_key_reused",
            event_id=event_id, idempotency_key=task.key, event_type=task.kind, known_event_type=known_event_type,
        )  # fmt: skip

    def refused(self, *, source: str, reason: str) -> None:
        """A signature did not fit."""
        self.say("warning", "webhook_signature_refused", source=source, reason=reason)

    def replayed(self, *, source: str, idempotency_key: str, known_key: str) -> None:
        """A signed body came again under another identity, and was therefore taken for the first."""
        self.say("warning", "webhook_replayed", source=source, idempotency_key=idempotency_key, known_key=known_key)

    def _say_ended(self, settlement: Settlement) -> None:
        fields: dict[str, Any] = {
            **_named(settlement.claim),
            "attempt": settlement.claim.number,
            "duration_seconds": round(settlement.elapsed.total_seconds(), 6),
        }
        explained, delay = settlement.explanation, settlement.delay
        if explained is not None:
            fields |= {"error": settlement.error, "error_class": explained.error_class.value}
        if delay is not None:
            fields["delay_seconds"] = round(delay.total_seconds(), 3)
        if settlement.state is State.DONE:
            self._log.info("webhook_completed", **fields)
        elif explained is None:
            self._log.info(f"webhook_{settlement.outcome}", **fields)
        elif delay is not None:
            self._log.info("webhook_retry_scheduled", **fields, attempts_left=explained.budget_left)
        else:
            self._log.error("webhook_dead", **fields, verdict=explained.verdict)


def _named(claim: Any) -> dict[str, Any]:
    task = claim.task
    return {"event_id": str(task.id), "event_type": task.kind, "idempotency_key": task.key}


class WebhookMetrics:
    """An observer that counts, and what the routes count themselves."""

    def __init__(self) -> None:
        self.events = Counter(
            "webhook_events", "Webhooks that came in, by what became of them", ["result"], registry=None
        )
        self.depth = Gauge("webhook_queue_depth", "Webhooks that are due and not processed", registry=None)
        self.duration = Histogram(
            "webhook_processing_duration_seconds", "How long handlers ran", buckets=SECONDS, registry=None
        )
        self.errors = Counter("webhook_processing_errors", "Tries that failed", registry=None)
        self.accepted, self.duplicates, self.rejected = (
            self.events.labels(result) for result in ("accepted", "duplicate", "rejected")
        )

    def register(self, registry: CollectorRegistry) -> None:
        """Show them with the service's own."""
        for metric in (self.events, self.depth, self.duration, self.errors):
            registry.register(metric)

    def observe(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case TaskAdded(new=new):
                    (self.accepted if new else self.duplicates).inc()
                case AttemptEnded(_, settlement):
                    if settlement.explanation is not None:
                        self.errors.inc()
                    if settlement.claim.abandoned is None:  # else it ended with its worker, nobody knows when
                        self.duration.observe(settlement.elapsed.total_seconds())
                case _:
                    pass
