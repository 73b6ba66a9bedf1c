"""What another policy would have made of the tries that are on record. Pure.

Each task of the history is tried again on paper. Its recorded failures happen again, in their order, with their class and what they asked for, and with the
waits and the budget of the other policy between them. What was never tried has no outcome, so something must be assumed, and the result says how often:

- Where the other policy gives up before the recorded end, the task dies there, though it may have gone well later. That is known, not assumed.
- Where it goes on after the recorded tries are used up, because the task died, nobody knows how the next ones would have ended. Two bounds are given: each
  of these tries fails like the last one (`deaths`), or the first of them goes well (`deaths_at_least`).
- Each outcome is taken to depend on the number of the try, not on when it is made. A shorter wait may have met the same outage again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from redrive.core.durations import ZERO
from redrive.core.failure import RETRIED, ErrorClass
from redrive.core.policy import Policy
from redrive.core.states import State

TRIES_MAX = 10_000
"""So many tries of one task are thought through; a policy that allows more is cut there."""
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTry:
    """A try of a task as the history has it."""

    started_at: datetime
    ended_at: datetime
    state: State
    """What the task was after it."""
    failed: bool
    """Whether it was charged; a run that was snoozed, released or spared by a gate was not."""
    error_class: ErrorClass | None = None
    floor: timedelta | None = None
    """What a `Retry-After` asked for."""
    delay: timedelta | None = None
    """The wait that followed, where one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTask:
    """A task with its tries, the oldest first; of one that was redriven, those since then."""

    key: str
    tries: Sequence[RecordedTry]
    failures_before: int = 0
    """How many failures it had before the first of these."""


@dataclass(slots=True)
class Load:
    """Tries that reached the destination, by the minute in which they began."""

    minutes: Counter[int] = field(default_factory=Counter)

    def add(self, at: datetime) -> None:
        """One more."""
        self.minutes[int(at.timestamp()) // 60] += 1

    @property
    def peak(self) -> int:
        """The most in one minute."""
        return max(self.minutes.values(), default=0)

    @property
    def mean(self) -> float:
        """How many in a minute, from the first to the last in which there was one."""
        if not self.minutes:
            return 0.0
        return self.minutes.total() / (max(self.minutes) - min(self.minutes) + 1)


@dataclass(slots=True)
class Side:
    """What happened, or what would have: one side of the comparison."""

    tries: int = 0
    deaths: int = 0
    waited: timedelta = ZERO
    """All waits between two tries, added up."""
    load: Load = field(default_factory=Load)


@dataclass(slots=True)
class BackTest:
    """The history beside what another policy would have made of it; feed it tasks, then read it."""

    policy: Policy
    tasks: int = 0
    happened: Side = field(default_factory=Side)
    would: Side = field(default_factory=Side)
    deaths_at_least: int = 0
    """Deaths that are sure: by what is on record, or by an error that is never tried again."""
    tries_assumed: int = 0
    """Tries that never happened, which are taken to have failed."""
    tasks_assumed: int = 0
    """Tasks with such tries."""
    tasks_cut: int = 0
    """Tasks that would have gone well later, and that the policy gives up before."""
    tasks_open: int = 0
    """Tasks that were not at their end when the history was read: only what is on record was replayed."""
    tries_not_made: int = 0
    """Tries that happened, and that the policy would not have made."""

    def take(self, tasks: Iterable[RecordedTask]) -> None:
        """Replay more tasks."""
        for task in tasks:
            if task.tries:
                self._replay(task)

    def _replay(self, task: RecordedTask) -> None:
        self.tasks += 1
        self._note_history(task)
        failures, at = task.failures_before, task.tries[0].started_at
        created = at
        last = len(task.tries) - 1
        for number, one in enumerate(task.tries):
            self.would.tries += 1
            self.would.load.add(at)
            at += one.ended_at - one.started_at
            if not one.failed:
                if one.state is not State.WAITING:
                    return
                if number < last:
                    at += self._wait(one.delay or ZERO)
                continue
            failures += 1
            delay = self._after(task.key, failures, one, created, at)
            if delay is None:
                self._die(task, number)
                return
            if number < last:
                at += self._wait(delay)
            elif one.state is State.DEAD:
                self._go_on(task, failures, created, at + self._wait(delay))
                return
        self.tasks_open += 1

    def _note_history(self, task: RecordedTask) -> None:
        last = task.tries[-1]
        self.happened.tries += len(task.tries)
        self.happened.deaths += last.state is State.DEAD
        for one, following in zip(task.tries, [*task.tries[1:], None], strict=True):
            self.happened.load.add(one.started_at)
            if following is not None:
                self.happened.waited += max(ZERO, following.started_at - one.ended_at)

    def _after(self, key: str, failures: int, one: RecordedTry, created: datetime, ended: datetime) -> timedelta | None:
        """The wait after a failure; None if the task dies of it. As `decide` does it, from what is on record."""
        if one.error_class is not None and one.error_class not in RETRIED:
            return None
        if failures >= self.policy.failures_max:
            return None
        delay = self.policy.delay(failures, key)
        if one.floor is not None:
            delay = max(delay, min(one.floor, self.policy.retry_after_max))
        if self.policy.deadline is not None and ended + delay >= created + self.policy.deadline:
            return None
        return delay

    def _die(self, task: RecordedTask, number: int) -> None:
        self.would.deaths += 1
        self.deaths_at_least += 1
        self.tries_not_made += len(task.tries) - number - 1
        self.tasks_cut += task.tries[-1].state is State.DONE

    def _go_on(self, task: RecordedTask, failures: int, created: datetime, at: datetime) -> None:
        """The task died, and this policy would have gone on: each further try is taken to fail like the last one, for as long."""
        last = task.tries[-1]
        took = last.ended_at - last.started_at
        self.tasks_assumed += 1
        for _ in range(TRIES_MAX):
            self.would.tries += 1
            self.tries_assumed += 1
            self.would.load.add(at)
            at += took
            failures += 1
            delay = self._after(task.key, failures, last, created, at)
            if delay is None:
                break
            at += self._wait(delay)
        self.would.deaths += 1

    def _wait(self, delay: timedelta) -> timedelta:
        self.would.waited += delay
        return delay
