"""What is told when a try of a schedule has ended: a log line, and the cache that must forget."""

from collections.abc import Iterable, Sequence

from redrive import State
from redrive.events import AttemptEnded, Event, SettleFailed
from redrive.operator.json_views import instant_json
from redrive.systems.flags.aftermath import Aftermath, Superseded
from redrive.systems.flags.cache import FlagCache
from redrive.systems.kit.own_log import OwnLog

LIMIT_VERDICTS = frozenset({"exhausted", "worker_lost"})
"""Those of a failure that might have passed, and came once too often."""
SUPERSEDED = "Schedule superseded"


class FlagLogs(OwnLog):
    """The log lines of schedules; all that is not theirs alone is said as everywhere."""

    def __init__(self, aftermath: Aftermath) -> None:
        super().__init__("flags")
        self._aftermath = aftermath

    def superseded(self, gave_way: Iterable[Superseded]) -> None:
        """Tell which schedules a newer change has ended."""
        for one in gave_way:
            self.say("info", SUPERSEDED, scheduleId=one.schedule_id, flagKey=one.flag_key, reason=one.reason)

    def _write(self, event: Event) -> None:
        match event:
            case AttemptEnded() if event.settlement.explanation is not None:
                self._failed(event)
            case AttemptEnded() if event.settlement.state is State.DONE:
                self._applied(event)
            case AttemptEnded() if event.settlement.state is State.CANCELLED:
                task = event.settlement.claim.task
                self._log.info(SUPERSEDED, scheduleId=task.id, flagKey=_flag_key(event), reason=event.settlement.error)
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
        self.superseded(self._aftermath.superseded_by(ended.settlement))

    def _failed(self, ended: AttemptEnded) -> None:
        settlement, explained = ended.settlement, ended.settlement.explanation
        assert explained is not None
        named = {"scheduleId": settlement.claim.task.id, "flagKey": _flag_key(ended)}
        ended_with = {"retryCount": stored_count(ended), "lastError": settlement.error}
        if settlement.delay is not None:
            next_retry_at = instant_json(self._aftermath.next_retry_at(settlement))
            self._log.info(
                "Retrying failed schedule", **named, retryCount=settlement.failures, nextRetryAt=next_retry_at
            )
        elif explained.verdict in LIMIT_VERDICTS:
            self._log.error("Schedule retry limit exceeded", **named, **ended_with)
        else:
            self._log.error("Schedule failed for good", **named, **ended_with, reason=explained.verdict)


class Forgetting:
    """Lets the cache of this process forget what a schedule has changed; other processes hear of it by its commit.

    It is told last, so it also forgets what the others have told.
    """

    def __init__(self, cache: FlagCache, aftermath: Aftermath) -> None:
        self._cache = cache
        self._aftermath = aftermath

    def observe(self, events: Sequence[Event]) -> None:
        ended = [event.settlement for event in events if isinstance(event, AttemptEnded)]
        if any(settlement.state is State.DONE for settlement in ended):
            self._cache.forget()
        for settlement in ended:
            self._aftermath.told(settlement)


def stored_count(ended: AttemptEnded) -> int:
    """The number in `retry_count` after a failure: it stops at its maximum."""
    explained = ended.settlement.explanation
    assert explained is not None
    return min(ended.settlement.failures, explained.failures_max - 1)


def _flag_key(event: AttemptEnded | SettleFailed) -> str:
    return str(event.settlement.claim.task.payload["flag_key"])
