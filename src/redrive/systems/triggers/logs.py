"""What triggers writes into the log, in the words of its contract, and what it counts.

Changes of status and failed deliveries are told by `beside.py` after the commit that made them, in the process that made it.
"""

from collections.abc import Sequence
from contextvars import copy_context

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from redrive.events import AttemptEnded, AttemptStarted, Event, TaskAdded
from redrive.operator.json_views import instant_json
from redrive.systems.kit.own_log import OwnLog
from redrive.systems.triggers.values import Change, DeliveryFailed, StatusChanged


class DeliveryLog(OwnLog):
    """The lane's own words: a retry that begins, a delivery that failed, and what became of the event."""

    def __init__(self) -> None:
        super().__init__("triggers")

    def observe(self, events: Sequence[Event]) -> None:
        rest = []
        for event in events:
            match event:
                case AttemptStarted(_, claim) if claim.task.failures or claim.task.redrives:
                    facts = claim.task.payload
                    self._log.info(
                        "retry_attempted",
                        event_id=facts["event_id"],
                        user_id=facts["user_id"],
                        retry_attempts=claim.task.failures,
                        correlation_id=facts["correlation_id"],
                    )
                case AttemptStarted() | AttemptEnded() | TaskAdded():
                    pass
                case _:
                    rest.append(event)
        super().observe(rest)

    def tell(self, changes: Sequence[Change]) -> None:
        """Log what has changed."""
        copy_context().run(self._tell, changes)

    def _tell(self, changes: Sequence[Change]) -> None:
        structlog.contextvars.unbind_contextvars("request_id")  # requests share commits: it may be another's
        for one in changes:
            who = {"event_id": one.event_id, "user_id": one.user_id}
            where = {"retry_attempts": one.retry_attempts, "correlation_id": one.correlation_id}
            if isinstance(one, DeliveryFailed):
                next_retry_at = instant_json(one.next_retry_at)
                self.say("warning", "delivery_failure", **who, **where, error=one.error, next_retry_at=next_retry_at)
                continue
            self.say("info", "status_transition", **who, **where, old_status=one.old_status, new_status=one.new_status)
            if one.new_status == "failed":
                failed_at = instant_json(one.failed_at)
                self.say("error", "event_failed", **who, **where, failed_at=failed_at, last_error=one.last_error)


class TriggerMetrics:
    """The metrics of triggers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.created = Counter("events_created", "Events taken in", registry=registry)
        self.delivered = Counter("events_delivered", "Events delivered or acknowledged", registry=registry)
        self.failed = Counter("events_failed", "Events that failed for good", registry=registry)
        self.received = Gauge(
            "events_received", "Events that wait in inboxes or for their first try", registry=registry
        )
        self.queued = Gauge("events_queued", "Events under delivery", registry=registry)
        self.time_to_delivery = Histogram(
            "time_to_delivery_seconds", "From taken in to delivered", registry=registry,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 120, 300, 420, 900, 1320, 3600),
        )  # fmt: skip
        self.queries = Counter("event_status_queries", "Looks at the status of an event", registry=registry)
        self.retry_attempts = Histogram(
            "retry_attempts", "Failed deliveries of events that have ended", buckets=(0, 1, 2, 3), registry=registry
        )

    def count(self, changes: Sequence[Change]) -> None:
        """Count what has changed."""
        for one in changes:
            if not isinstance(one, StatusChanged):
                continue
            if one.old_status is None:
                self.created.inc()
            if one.new_status == "delivered":
                self.delivered.inc()
                self.time_to_delivery.observe(max(0.0, (one.at - one.created_at).total_seconds()))
            if one.new_status == "failed":
                self.failed.inc()
            if one.new_status in ("delivered", "failed"):
                self.retry_attempts.observe(one.retry_attempts)
