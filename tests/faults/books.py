"""The audit: what the handlers left on record against what the ledger wrote."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select, text

from redrive import Filter, Redrive, State
from redrive.core.task import is_alone
from redrive.ledgers.sql import schema

from . import evidence

STUCK_SECONDS_MAX = 120.0
"""How long after its lease an orphaned task may still be held."""


@dataclass(slots=True)
class Books:
    """Every task with its attempts and the runs of its handler."""

    tasks: dict[str, Any]
    attempts: dict[str, list[Any]]
    runs: dict[str, list[evidence.Line]]

    def outcomes(self) -> Counter[str]:
        """How many attempts ended in which way."""
        return Counter(one.outcome for attempts in self.attempts.values() for one in attempts)

    @property
    def run_count(self) -> int:
        """How often handlers were called."""
        return sum(len(runs) for runs in self.runs.values())

    def faults(self) -> list[str]:
        """Everything that does not add up; empty when each run is explained by exactly one attempt."""
        return [fault for id_ in self.tasks for fault in self._faults_of(id_)]

    def _faults_of(self, id_: str) -> list[str]:
        task, attempts, runs = self.tasks[id_], self.attempts.get(id_, []), self.runs.get(id_, [])
        outcome_of = {str(one.claim_id): one.outcome for one in attempts}
        run_claims = [run.claim for run in runs]
        outcomes = Counter(outcome_of.values())
        found = []
        if task.state != "done" or outcomes["done"] != 1:
            found.append(f"ended {task.state} with {outcomes['done']} done attempts")
        if len(outcome_of) != len(attempts):
            found.append("one claim has two attempts")
        if len(set(run_claims)) != len(runs):
            found.append("one claim was run twice")
        if len(runs) > len(attempts):
            found.append(f"{len(runs)} runs, but only {len(attempts)} attempts")
        if unexplained := set(run_claims) - set(outcome_of):
            found.append(f"runs whose claims have no attempt: {sorted(unexplained)}")
        settled = {claim for claim, outcome in outcome_of.items() if outcome in ("done", "failed")}
        # A transaction that could not begin has failed without a run; nothing is ever done without one.
        if not {claim for claim in settled if outcome_of[claim] == "done"} <= set(run_claims):
            found.append("done without a run")
        extra = [claim for claim in run_claims if claim not in settled]
        if not all(outcome_of.get(claim) in ("lease_expired", "released") for claim in extra):
            found.append("an extra run is not explained by a lost or released claim")
        # A worker that was lost beside others charges nothing.
        charged = sum(one.outcome == "lease_expired" and is_alone(UUID(str(one.claim_id))) for one in attempts)
        if task.failures != outcomes["failed"] + charged:
            found.append(f"failures {task.failures}, but {dict(outcomes)}")
        return [f"task {task.key}: {fault}; {dict(outcomes)}" for fault in found]


async def read_books(app: Redrive, evidence_file: Path) -> Books:
    """Read everything at once."""

    def rows(connection: Connection) -> tuple[list[Any], list[Any]]:
        tasks = connection.execute(select(schema.task)).all()
        return list(tasks), list(connection.execute(select(schema.attempt)).all())

    tasks, attempt_rows = await app.database.read(rows)
    attempts, runs = defaultdict(list), defaultdict(list)
    for one in attempt_rows:
        attempts[one.task_id].append(one)
    for line in evidence.read(evidence_file):
        if line.what == "start":
            runs[line.task].append(line)
    return Books(tasks={str(task.id): task for task in tasks}, attempts=attempts, runs=runs)


async def effects(app: Redrive) -> Counter[str]:
    """How many rows the transactional handler left for each key."""
    found = await app.database.read(
        lambda connection: connection.execute(text("SELECT key FROM effect")).scalars().all()
    )
    return Counter(found)


async def create_effects(app: Redrive) -> None:
    """The table for them; it has no constraint on purpose, so that a second row would be seen."""
    await app.database.write(lambda connection: connection.execute(text("CREATE TABLE effect (key text NOT NULL)")))


async def until(holds: Callable[[], Any], what: str, timeout: float = 150, every: float = 0.05) -> None:
    """Wait until it holds; it may be async."""
    ends = time.monotonic() + timeout
    while True:
        answer = holds()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < ends, f"not within {timeout} s: {what}"
        await asyncio.sleep(every)


async def all_ended(app: Redrive, timeout: float = 150) -> None:
    """Wait until no task waits or is held."""

    async def nothing_open() -> bool:
        counts = await app.tasks.counts(counted_max=1)
        return counts[State.WAITING] == counts[State.CLAIMED] == 0

    await until(nothing_open, "all tasks ended", timeout)


async def watch_leases(app: Redrive, lease_seconds: float) -> None:
    """Look for ever, and raise when a task is stuck: held past its lease, or held for longer than any lease explains.

    The handlers here are much shorter than the lease, so a task that is held without a settlement for longer than one
    lease is an orphan, whatever its row says about its present lease.
    """
    seen: dict[tuple[Any, int], float] = {}
    while True:
        page = await app.tasks.find(Filter(state=State.CLAIMED), limit=1000)
        now, at = time.monotonic(), datetime.now(UTC)
        held = {(task.id, task.failures): seen.get((task.id, task.failures), now) for task in page.items}
        for task in page.items:
            assert task.lease_until is not None
            over = (at - task.lease_until).total_seconds()
            assert over <= STUCK_SECONDS_MAX, f"task {task.key} is held {over:.1f} s past its lease"
            since = now - held[task.id, task.failures]
            most = lease_seconds + STUCK_SECONDS_MAX
            assert since <= most, f"task {task.key} is held for {since:.1f} s, lease {lease_seconds} s"
        seen = held
        await asyncio.sleep(0.25)
