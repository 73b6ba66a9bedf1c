"""What a worker counts of each kind and cause: tries, failures, how long runs took. Kept in memory, and handed out to be written.

A settlement costs one addition here; causes are worked out when somebody takes the counts, every two seconds or so. The counts of a
minute are those since it began, so that writing them twice changes nothing. A process that is killed takes what it has counted since
the last writing with it: seconds of figures, and never a task.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from redrive.core.cause import cause_of
from redrive.core.decide import SUSPECT, Settlement
from redrive.core.durations import ZERO
from redrive.core.failure import redact
from redrive.core.histograms import RAN, RAN_SECONDS
from redrive.core.preview import preview
from redrive.core.states import State
from redrive.engine.handlers import Handlers

KINDS_MAX = 200
"""Kinds of one ledger that are counted by their names; the others share one."""
ERRORS_MAX = 200
"""Errors that are told apart between two takings; the failures of more are counted with their kind alone."""
CAUSES_MAX = 100
"""Causes of one minute."""
MINUTES_MAX = 10
"""Minutes that are kept while nobody can write them."""
SAMPLE_CHARS_MAX = 500
OTHER = "other kinds"
WHOLE = ""
"""The cause of a row that counts all tries of a kind."""
_RELEASED = "released"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_log = logging.getLogger("redrive")


@dataclass(slots=True)
class KindMinute:
    """What one minute counted of a kind, or of a cause. Without a cause all tries count; with one only those that failed of it."""

    minute: datetime
    kind: str
    cause: str = WHOLE
    begun: int = 0
    """First tries."""
    tries: int = 0
    failures: int = 0
    done: int = 0
    dead: int = 0
    first_failure: datetime | None = None
    last_failure: datetime | None = None
    first_success: datetime | None = None
    last_success: datetime | None = None
    ran: list[int] = field(default_factory=lambda: [0] * len(RAN))

    def failed(self, amount: int, at: datetime) -> None:
        """So many tries have failed now."""
        self.failures += amount
        self.first_failure = min(self.first_failure or at, at)
        self.last_failure = max(self.last_failure or at, at)

    def succeeded(self, amount: int, at: datetime) -> None:
        """So many tasks are done now."""
        self.done += amount
        self.first_success = min(self.first_success or at, at)
        self.last_success = max(self.last_success or at, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCause:
    """A cause that tries have failed of, dead or not."""

    id: str
    kind: str
    text: str
    sample: str
    at: str | None
    first_seen: datetime
    last_seen: datetime
    budget: tuple[int, timedelta] | None
    """How many tries a task that fails each time gets, and how long that takes from the first to the last."""


@dataclass(frozen=True, slots=True)
class KindCounts:
    """What is to be written of one ledger."""

    ledger: str
    minutes: Sequence[KindMinute]
    causes: Sequence[SeenCause]

    def __bool__(self) -> bool:
        return bool(self.minutes)


_Error = tuple[str, str | None, str | None]
"""A kind, an error as it was raised, and the line that it came from."""
_Row = tuple[datetime, str, str]
"""A minute, a kind and a cause."""


class KindTally:
    """Counts the settlements of one worker. Nothing here waits for anybody, and everything is bounded."""

    def __init__(self, ledger: str, handlers: Handlers) -> None:
        self.tries = 0
        """How many tries have ended since the worker was made."""
        self._ledger = ledger
        self._handlers = handlers
        self._minutes: dict[datetime, dict[tuple[str, str], KindMinute]] = {}
        self._over = datetime.min.replace(tzinfo=UTC)
        """The last minute that was forgotten."""
        self._changed: set[_Row] = set()
        self._errors: dict[_Error, dict[datetime, KindMinute]] = {}
        self._causes: dict[str, SeenCause] = {}
        self._kinds: set[str] = set()
        self._budgets: dict[str, tuple[int, timedelta] | None] = {}

    def add(self, settled: Iterable[Settlement]) -> None:
        """Count what was written. It is done, whatever goes wrong here."""
        try:
            self._add(settled)
        except Exception:
            _log.exception("what was settled in %s could not be counted", self._ledger)

    def _add(self, settled: Iterable[Settlement]) -> None:
        """All of a group ended at about the same time: that of the last one stands for all.

        A try that was lost beside others is no failure of its kind: any of them may have killed the worker, or somebody has.
        """
        alike: dict[tuple[str, str, State, bool, bool, int], int] = {}
        failed: dict[tuple[str, str | None, str | None, bool], int] = {}
        claim, elapsed, dead = None, ZERO, State.DEAD
        for claim, outcome, state, _, _, error, explanation, elapsed, _ in settled:
            task = claim.task
            if explanation is not None and explanation.verdict == SUSPECT:
                explanation = None
            key = (
                task.kind, outcome, state, explanation is not None, task.failures == 0,
                bisect_right(RAN_SECONDS, elapsed.total_seconds()),
            )  # fmt: skip
            alike[key] = alike.get(key, 0) + 1
            if explanation is not None:
                stack = explanation.stack
                why = (task.kind, error, None if stack is None else stack.at, state is dead)
                failed[why] = failed.get(why, 0) + 1
        if claim is None:
            return
        at = claim.claimed_at + elapsed
        minute = self._kept(at.replace(second=0, microsecond=0))
        for (kind, outcome, state, has_failed, first, bucket), amount in alike.items():
            if outcome != _RELEASED:
                self.tries += amount
                self._count(self._row(minute, self._named(kind), WHOLE), state, amount, at, has_failed, first, bucket)
        for (kind, error, line, is_dead), amount in failed.items():
            self._note((self._named(kind), error, line), minute, at, amount, is_dead)

    @staticmethod
    def _count(
        row: KindMinute, state: State, amount: int, at: datetime, has_failed: bool, first: bool, bucket: int  # noqa: FBT001
    ) -> None:  # fmt: skip
        row.tries += amount
        row.begun += amount if first else 0
        row.ran[bucket] += amount
        if has_failed:
            row.failed(amount, at)
        if state is State.DONE:
            row.succeeded(amount, at)
        elif state is State.DEAD:
            row.dead += amount

    def _note(self, error: _Error, minute: datetime, at: datetime, amount: int, is_dead: bool) -> None:  # noqa: FBT001
        noted = self._errors.get(error)
        if noted is None:
            if len(self._errors) >= ERRORS_MAX:
                return
            noted = self._errors[error] = {}
        row = noted.get(minute)
        if row is None:
            row = noted[minute] = KindMinute(minute, error[0])
            if len(noted) > MINUTES_MAX:
                del noted[min(noted)]
        row.failed(amount, at)
        row.dead += amount if is_dead else 0

    def _named(self, kind: str) -> str:
        if kind not in self._kinds:
            if len(self._kinds) >= KINDS_MAX:
                return OTHER
            self._kinds.add(kind)
        return kind

    def _kept(self, minute: datetime) -> datetime:
        """The minute that counts it. A forgotten one is not begun anew, which would replace what was written of it: the last one counts it."""
        if minute > self._over:
            self._minutes.setdefault(minute, {})
            if len(self._minutes) > MINUTES_MAX:
                self._forget(min(self._minutes))
        return minute if minute in self._minutes else max(self._minutes)

    def _row(self, minute: datetime, kind: str, cause: str) -> KindMinute:
        """The row, which is going to change."""
        rows = self._minutes[minute]
        row = rows.get((kind, cause))
        if row is None:
            row = rows[kind, cause] = KindMinute(minute, kind, cause)
        self._changed.add((minute, kind, cause))
        return row

    def _forget(self, minute: datetime) -> None:
        del self._minutes[minute]
        self._changed = {row for row in self._changed if row[0] != minute}
        self._over = max(self._over, minute)

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self) -> KindCounts:
        """What has changed since the last taking: say afterwards whether it was written."""
        for (kind, error, line), noted in self._errors.items():
            shown = redact(error or "")
            # Redacted first, as in the census: both must find the same cause.
            cause = cause_of(shown, kind=kind, at=line)
            for row in noted.values():
                self._failed(cause.id, row)
            firsts, lasts = [row.first_failure for row in noted.values()], [row.last_failure for row in noted.values()]
            self._see(
                SeenCause(
                    id=cause.id, kind=kind, text=cause.text, sample=shown[:SAMPLE_CHARS_MAX], at=line,
                    first_seen=min(one for one in firsts if one), last_seen=max(one for one in lasts if one), budget=self._budget(kind),
                )
            )  # fmt: skip
        self._errors.clear()
        changed = [self._minutes[minute][kind, cause] for minute, kind, cause in sorted(self._changed)]
        self._changed.clear()
        return KindCounts(
            self._ledger, [replace(row, ran=list(row.ran)) for row in changed], list(self._causes.values())
        )

    def wrote(self, counts: KindCounts) -> None:
        """That is written. What may still grow is kept: the last minute, and what has changed meanwhile."""
        last, grow = max(self._minutes, default=None), {row[0] for row in self._changed}
        for minute in [one for one in self._minutes if one != last and one not in grow]:
            self._forget(minute)
        for cause in counts.causes:
            if self._causes.get(cause.id) is cause:
                del self._causes[cause.id]

    def not_written(self, counts: KindCounts) -> None:
        """That could not be written: it is handed out again."""
        self._changed |= {(row.minute, row.kind, row.cause) for row in counts.minutes if row.minute in self._minutes}

    def _see(self, cause: SeenCause) -> None:
        before = self._causes.get(cause.id)
        if before is not None:
            first, last = min(before.first_seen, cause.first_seen), max(before.last_seen, cause.last_seen)
            self._causes[cause.id] = replace(cause, first_seen=first, last_seen=last)
        elif len(self._causes) < CAUSES_MAX:
            self._causes[cause.id] = cause

    def _failed(self, cause: str, noted: KindMinute) -> None:
        rows = self._minutes.get(noted.minute)
        if rows is None:
            return
        if (noted.kind, cause) not in rows and sum(bool(of) for _, of in rows) >= CAUSES_MAX:
            return
        row = self._row(noted.minute, noted.kind, cause)
        row.tries += noted.failures
        row.dead += noted.dead
        for at in (noted.first_failure, noted.last_failure):
            if at is not None:
                row.failed(0, at)
        row.failures += noted.failures

    def _budget(self, kind: str) -> tuple[int, timedelta] | None:
        """How many tries a task of the kind has, and how long from the first to the last; None where no handler is known."""
        if kind not in self._budgets:
            handler = self._handlers.find(kind)
            if handler is None:
                self._budgets[kind] = None
            else:
                tries = preview(handler.policy, kind, _EPOCH)
                self._budgets[kind] = len(tries), tries[-1].at - _EPOCH
        return self._budgets[kind]
