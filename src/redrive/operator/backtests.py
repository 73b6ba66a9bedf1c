"""Trying another policy on the tries that are on record: the history is read in pages, and replayed by `core.backtest`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.core.backtest import BackTest, RecordedTask, RecordedTry
from redrive.core.failure import ErrorClass
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Attempt
from redrive.errors import UsageError
from redrive.operator.ports import History, OperatorLedger, ReadProgress
from redrive.ports import Filter

TRIES_MAX = 1_000_000
PASSED_OVER_TIMES = 20
"""For each try that may be read so many older ones are passed over; they are found by the ids of their tasks, not by their age."""
IDS_AT_ONCE = 500
CHARGED = ("failed", "lease_expired")
SPARED = frozenset({"suspect", "probe", "refused"})
"""Verdicts on failures that were not charged."""


@dataclass(slots=True)
class Tried:
    """What trying a policy came to, and what of the history was not replayed."""

    test: BackTest
    since: datetime
    tasks_gone: int = 0
    """Tasks that are not there any more: what their key was, and so their jitter, and of which kind they were, is not known."""
    complete: bool = True
    """Whether the history was read to its end; else only so many tries of it."""
    passed_over: int = 0
    """Older tries that were met on the way."""

    def sentences(self) -> list[str]:
        """What cannot be known, and what was assumed instead."""
        test = self.test
        said = [
            "A try that never happened has no outcome. Recorded outcomes are taken to come in the same order, whenever they would have been tried.",
        ]
        if test.tasks_assumed:
            said.append(
                f"{test.tasks_assumed:,} tasks died, and this policy would have gone on: {test.tries_assumed:,} tries are taken to fail like the last one. "
                f"So {test.would.deaths:,} deaths are the most; if the next try of each had gone well, it would be {test.deaths_at_least:,}."
            )
        if test.tasks_cut:
            said.append(f"{test.tasks_cut:,} tasks went well in the end, and this policy gives them up before.")
        if test.tasks_open:
            said.append(f"{test.tasks_open:,} tasks are not at their end yet: only what is on record was replayed.")
        if self.tasks_gone:
            said.append(
                f"{self.tasks_gone:,} tasks are not there any more: their jitter is drawn by their id instead of their key."
            )
        if not self.complete:
            said.append(
                f"The history is longer: only the first tries of it were read, and {self.passed_over:,} older ones passed over. "
                "A larger --limit reads more of it."
            )
        said.append(
            "What gates hold back, how long tasks wait for a free worker, and what the load itself does to the destination is not replayed."
        )
        return said


async def try_policy(
    ledger: OperatorLedger,
    history: History,
    policy: Policy,
    since: datetime,
    *,
    kind: str | None = None,
    tries_max: int = TRIES_MAX,
    progress: ReadProgress | None = None,
) -> Tried:
    """Replay what was tried since then, of one kind or of all. Nothing is changed."""
    if tries_max < 1:
        raise UsageError(f"at least one try must be read, not {tries_max}")
    tried, after, read = Tried(BackTest(policy), since), None, 0
    while True:
        page = await history.tries(since, after=after)
        tasks = dict(page.tasks)
        known = await _known(ledger, list(tasks))
        for id_, attempts in tasks.items():
            task = known.get(id_)
            if task is None:
                tried.tasks_gone += kind is None
                if kind is not None:
                    continue
            elif kind not in (None, task[1]):
                continue
            tried.test.take(lives_of(id_ if task is None else task[0], attempts))
        amount = sum(map(len, tasks.values()))
        read += amount
        tried.passed_over += page.passed_over
        if progress is not None:
            progress(amount)
        if page.cursor is None:
            return tried
        if read >= tries_max or tried.passed_over >= tries_max * PASSED_OVER_TIMES:
            tried.complete = False
            return tried
        after = page.cursor


def lives_of(key: str, attempts: Sequence[Attempt]) -> list[RecordedTask]:
    """The tries of a task, the oldest first. After an end a new life begins: somebody has redriven it, or it came back."""
    lives: list[RecordedTask] = []
    tries: list[RecordedTry] = []
    before = 0
    for one in attempts:
        if not tries:
            before = one.number - 1
        tries.append(_recorded(one))
        if one.state is not State.WAITING or one is attempts[-1]:
            lives.append(RecordedTask(key=key, tries=tries, failures_before=before))
            tries = []
    return lives


def _recorded(one: Attempt) -> RecordedTry:
    why = one.explanation or {}
    floor = why.get("floor_seconds")
    return RecordedTry(
        started_at=one.started_at or one.ended_at - (one.duration or timedelta(0)),
        ended_at=one.ended_at,
        state=one.state,
        failed=one.outcome in CHARGED and why.get("verdict") not in SPARED,
        error_class=None if one.error_class is None else ErrorClass(one.error_class),
        floor=None if floor is None else timedelta(seconds=floor),
        delay=one.delay,
    )


async def _known(ledger: OperatorLedger, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By id, the keys and kinds of tasks that are still there."""
    found: dict[str, tuple[str, str]] = {}
    for start in range(0, len(ids), IDS_AT_ONCE):
        some = [ledger.read_id(id_) for id_ in ids[start : start + IDS_AT_ONCE]]
        page = await ledger.find(Filter(ids=some), limit=IDS_AT_ONCE)
        found |= {str(task.id): (task.key, task.kind) for task in page.items}
    return found
