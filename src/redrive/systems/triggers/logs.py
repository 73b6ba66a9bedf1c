"""What triggers writes into the log, in the words of its contract.

Changes of status and failed deliveries are written down by the store in the commit that makes them, in `trigger_changes`,
whichever process makes it; the service takes them from there, logs and counts each at most once: they are deleted before
they are logged, so a service that is killed in between loses those of one look, up to a hundred lines. The store itself and
the history of attempts lose nothing. Only what changes nothing in the store, a retry that begins, is logged by an observer
of the lane.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from sqlalchemy import Connection, delete, select

from redrive.errors import LedgerAwayError
from redrive.events import AttemptEnded, AttemptStarted, Event, TaskAdded
from redrive.extend import Database
from redrive.observe.logs import LogObserver
from redrive.operator.json_views import instant_json
from redrive.systems.triggers import tables as t

_fallback = logging.getLogger("redrive")

LOOK_EVERY_SECONDS = 0.25
CHANGES_PER_LOOK = 100
"""So many lines are written in a few milliseconds; requests are answered in between."""


class DeliveryLog(LogObserver):
    """The lane's own words: a retry that begins. The rest comes from the store."""

    def __init__(self) -> None:
        super().__init__(system="triggers")

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`."""
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


class ChangeLog:
    """Takes the changes that the store wrote down, logs and counts them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._log: Any = structlog.get_logger(system="triggers")
        self.metrics: TriggerMetrics | None = None

    async def run(self, stopped: asyncio.Event) -> None:
        """Look again and again until told to stop, then once more."""
        while not stopped.is_set():
            await self._follow_safely()
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK_EVERY_SECONDS)
        await self._follow_safely()

    async def _follow_safely(self) -> None:
        try:
            await self.follow()
        except LedgerAwayError:
            pass  # the workers say so; what is written down waits
        except Exception:  # a full disk under the log, for one: it must not stop the deliveries
            _fallback.exception("changes could not be logged")

    async def follow(self) -> int:
        """Log all that is written down now; how much it was."""
        amount = 0
        while await self._database.read(_peek):
            rows = await self._database.write(_take)
            if not rows:
                break  # another process has just taken them
            for row in rows:
                self._tell(row)
            amount += len(rows)
        return amount

    def _tell(self, row: Any) -> None:
        who = {"event_id": row.event_id, "user_id": row.user_id}
        if row.kind == "failure":
            self._log.warning(
                "delivery_failure", **who, retry_attempts=row.retry_attempts, error=row.error,
                next_retry_at=instant_json(row.next_retry_at), correlation_id=row.correlation_id,
            )  # fmt: skip
            return
        self._log.info(
            "status_transition", **who, old_status=row.old_status, new_status=row.new_status,
            retry_attempts=row.retry_attempts, correlation_id=row.correlation_id,
        )  # fmt: skip
        if row.new_status == "failed":
            self._log.error(
                "event_failed", **who, failed_at=instant_json(row.failed_at), last_error=row.error,
                retry_attempts=row.retry_attempts, correlation_id=row.correlation_id,
            )  # fmt: skip
        self._count(row)

    def _count(self, row: Any) -> None:
        metrics = self.metrics
        if metrics is None:
            return
        if row.old_status is None:
            metrics.created.inc()
        if row.new_status == "delivered":
            metrics.delivered.inc()
            metrics.time_to_delivery.observe(max(0.0, (row.at - row.created_at).total_seconds()))
        if row.new_status == "failed":
            metrics.failed.inc()
        if row.new_status in ("delivered", "failed"):
            metrics.retry_attempts.observe(row.retry_attempts)


def _peek(connection: Connection) -> bool:
    """Whether there is anything to take: looking costs no write."""
    return connection.execute(select(t.changes.c.id).limit(1)).first() is not None


def _take(connection: Connection) -> list[Any]:
    c = t.changes
    first = select(c.c.id).order_by(c.c.id).limit(CHANGES_PER_LOOK).with_for_update(skip_locked=True)
    ids = list(connection.execute(first).scalars())
    if not ids:
        return []
    return sorted(connection.execute(delete(c).where(c.c.id.in_(ids)).returning(*c.c)), key=lambda row: int(row.id))
