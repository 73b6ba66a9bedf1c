"""What triggers writes into the log, in the words of its contract, and what it counts.

Changes of status and failed deliveries are told by the store after the commit that made them, in the process that made it. Each
line has the time of the change itself: sorted by it, the logs of any number of services are one story.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from typing import Any

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
                self._tell_failure(one, who | where)
                continue
            words = {"old_status": one.old_status, "new_status": one.new_status}
            self.say_of(one.at, "info", "status_transition", **who, **where, **words)
            if one.new_status == "failed":
                ended = {"failed_at": instant_json(one.failed_at), "last_error": one.last_error}
                self.say_of(one.at, "error", "event_failed", **who, **where, **ended)

    def _tell_failure(self, failed: DeliveryFailed, facts: Mapping[str, Any]) -> None:
        next_retry_at = instant_json(failed.next_retry_at)
        status = "failed" if failed.next_retry_at is None else "queued"
        told = {"error": failed.error, "next_retry_at": next_retry_at, "status": status}
        self.say_of(failed.at, "warning", "delivery_failure", **facts, **told)
        if failed.next_retry_at is not None:
            delay = (failed.next_retry_at - failed.at).total_seconds()
            latency = None if failed.latency is None else round(failed.latency.total_seconds(), 6)
            plan = {"next_retry_at": next_retry_at, "delay_seconds": round(delay, 6), "latency_seconds": latency}
            # The contract's search for retries looks for these two words in the text of a line.
            self.say_of(failed.at, "info", "retry_scheduled", message="retry scheduled", **facts, **plan)


class InOrder:
    """Tells changes in the order in which they were made, though two commits may be heard of in the other order.

    An event is taken in over one connection and claimed over another, and whose commit is answered first is chance. So what happens
    to an event is held back until its intake was heard of, where that is under way in this process. Other processes write a log of
    their own: there the time of each line tells the order.
    """

    def __init__(self, tell: Callable[[Sequence[Change]], None]) -> None:
        self._tell = tell
        self._held: dict[str, list[Change]] = {}

    def expect(self, event_ids: Iterable[str]) -> None:
        """These events are being taken in; `heard` follows, whatever comes of it."""
        for id_ in event_ids:
            self._held[id_] = []

    def heard(self, event_ids: Iterable[str]) -> None:
        """What came of it was told, or nobody will ever know."""
        held = [change for id_ in event_ids for change in self._held.pop(id_, ())]
        if held:
            self._tell(held)

    def tell(self, changes: Sequence[Change]) -> None:
        """Tell these changes, now or when it is their turn."""
        if self._held:
            ready: list[Change] = []
            for one in changes:
                later = None if _is_first(one) else self._held.get(one.event_id)
                (ready if later is None else later).append(one)
            changes = ready
        if changes:
            self._tell(changes)


def _is_first(change: Change) -> bool:
    return isinstance(change, StatusChanged) and change.old_status is None


def measures(changes: Iterable[Change]) -> Iterator[tuple[str, float]]:
    """What changes add to the metrics: their names, whoever keeps them, and how much. Pure."""
    for one in changes:
        if not isinstance(one, StatusChanged):
            continue
        if one.old_status is None:
            yield "created", 1
        if one.new_status == "delivered":
            yield "delivered", 1
            yield "time_to_delivery", max(0.0, (one.at - one.created_at).total_seconds())
        if one.new_status == "failed":
            yield "failed", 1
        if one.new_status in ("delivered", "failed"):
            yield "retry_attempts", one.retry_attempts


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
        self.statuses = Gauge("trigger_events", "Events in each status, at one instant", ["status"], registry=registry)
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
        for name, amount in measures(changes):
            metric = getattr(self, name)
            (metric.inc if isinstance(metric, Counter) else metric.observe)(amount)
