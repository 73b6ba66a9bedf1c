"""What is told when a try of a schedule has ended: a log line, and the cache that must forget."""

from collections.abc import Sequence
from datetime import datetime

from redrive import State
from redrive.events import AttemptEnded, Event, SettleFailed
from redrive.extend import Database
from redrive.observe.logs import LogObserver
from redrive.operator.json_views import instant_json
from redrive.systems.flags.cache import FlagCache

LIMIT_VERDICTS = frozenset({"exhausted", "worker_lost"})
"""Those of a failure that might have passed, and came once too often."""


class FlagLogs(LogObserver):
    """The log lines of schedules; all that is not theirs alone is said as everywhere."""

    def __init__(self, database: Database) -> None:
        super().__init__(system="flags")
        self._database = database

    def _write(self, event: Event) -> None:
        match event:
            case AttemptEnded() if event.settlement.explanation is not None:
                self._failed(event)
            case AttemptEnded() if event.settlement.state is State.DONE:
                self._applied(event)
            case SettleFailed():
                task = event.settlement.claim.task
                self._log.error(
                    "Schedule could not be settled",
                    scheduleId=task.id,
                    flagKey=_flag_key(event),
                    outcome=event.settlement.outcome,
                    error=event.error,
                )
            case _:
                super()._write(event)

    def _applied(self, ended: AttemptEnded) -> None:
        task = ended.settlement.claim.task
        named = {"scheduleId": task.id, "flagKey": _flag_key(ended)}
        if task.failures:
            self._log.info("Schedule applied on retry", **named, retryCount=task.failures)
        else:
            self._log.info("Schedule applied", **named)

    def _failed(self, ended: AttemptEnded) -> None:
        settlement, explained = ended.settlement, ended.settlement.explanation
        assert explained is not None
        named = {"scheduleId": settlement.claim.task.id, "flagKey": _flag_key(ended)}
        ended_with = {"retryCount": stored_count(ended), "lastError": settlement.error}
        if settlement.delay is not None:
            next_retry_at = instant_json(ended_at(self._database, ended) + settlement.delay)
            self._log.info(
                "Retrying failed schedule", **named, retryCount=settlement.failures, nextRetryAt=next_retry_at
            )
        elif explained.verdict in LIMIT_VERDICTS:
            self._log.error("Schedule retry limit exceeded", **named, **ended_with)
        else:
            self._log.error("Schedule failed for good", **named, **ended_with, reason=explained.verdict)


class Forgetting:
    """Lets the cache of this process forget what a schedule has changed; other processes hear of it by its commit."""

    def __init__(self, cache: FlagCache) -> None:
        self._cache = cache

    def observe(self, events: Sequence[Event]) -> None:
        if any(isinstance(event, AttemptEnded) and event.settlement.state is State.DONE for event in events):
            self._cache.forget()


def ended_at(database: Database, ended: AttemptEnded) -> datetime:
    """When the try ended; its next one is planned from then on.

    Where the server's clock wrote that, it is told from the claim, which has that clock's time: a few milliseconds early,
    by what writing took.
    """
    settlement = ended.settlement
    return settlement.claim.claimed_at + settlement.elapsed if database.server_clock else database.now()


def stored_count(ended: AttemptEnded) -> int:
    """The number in `retry_count` after a failure: it stops at its maximum."""
    explained = ended.settlement.explanation
    assert explained is not None
    return min(ended.settlement.failures, explained.failures_max - 1)


def _flag_key(event: AttemptEnded | SettleFailed) -> str:
    return str(event.settlement.claim.task.payload["flag_key"])
