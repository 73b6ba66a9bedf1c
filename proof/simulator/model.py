"""What must be true after every commit, whoever made it. It knows rows and what processes did, and nothing of how the engine works."""

import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID, uuid5

from redrive.core.states import TRANSITIONS, Act, State
from redrive.core.task import is_alone

ROWS = "SELECT id, key, state, failures, redrives, due_at, lease_until, claim_id, gate FROM redrive_task"
ENDED = "SELECT rowid, task_id, claim_id, outcome, state, worker, explanation FROM redrive_attempt WHERE rowid > ?"
GATES = "SELECT name, held, paused_at IS NOT NULL AND coalesce(paused_until > ?, 1) FROM redrive_gate"
LIMITS = "SELECT pattern, concurrency FROM redrive_gate_rule WHERE concurrency IS NOT NULL"
BY_PEOPLE = {pair: act for act in (Act.CANCEL, Act.REDRIVE, Act.RESOLVE) for pair in TRANSITIONS[act]}


Held = tuple[int, str]
"""A task and the fence under which it is held."""


class Row(NamedTuple):
    """A task as it stands in the database."""

    id: int
    key: str
    state: str
    failures: int
    redrives: int
    due_at: object
    lease_until: float | None
    fence: str | None
    gate: str | None


@dataclass(slots=True)
class Fence:
    """A claim: who took it, what its handler came to, and whether its lease ran out before it was settled."""

    owner: str
    expired: bool = False
    taken_over_by: str | None = None
    """Who found it lost, and holds it until the loss is written."""
    runs: int = 0
    came_to: str | None = None
    ended: str | None = None


@dataclass
class Model:
    """The book of one world."""

    driver: sqlite3.Connection
    failures_max: int
    seen: dict[int, Row] = field(default_factory=dict)
    fences: dict[Held, Fence] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    running: dict[str, Counter[Held]] = field(default_factory=lambda: defaultdict(Counter))
    """By process the fences of what runs there."""
    outcomes: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    """What a world has been through, so that nobody believes a model that has seen nothing."""
    _attempts: int = 0

    def begin(self) -> None:
        """Forget attempts of worlds before: the counter of SQLite's rows goes on."""
        self._attempts = self.driver.execute("SELECT coalesce(max(rowid), 0) FROM redrive_attempt").fetchone()[0]

    # --- what processes do ----------------------------------------------------------------------------------------------

    def started(self, process: str, id_: int, fence: UUID) -> None:
        """A handler begins."""
        held = (id_, fence.hex)
        known = self.fences.get(held)
        assert known is not None, "a task ran under a fence that no row ever had"
        known.runs += 1
        assert known.runs == 1, "one claim was run twice"
        assert known.owner == process, f"{process} ran what {known.owner} had claimed"
        beside = self.running[process]
        assert not any(is_alone(UUID(other)) for _, other in beside), "something ran beside a suspect"
        assert not (is_alone(fence) and beside), "a suspect ran beside something"
        beside[held] += 1

    def ended(self, process: str, id_: int, fence: UUID, outcome: str | None) -> None:
        """A handler came to this; None if it was stopped."""
        self.fences[id_, fence.hex].came_to = outcome
        del self.running[process][id_, fence.hex]

    def died(self, process: str) -> None:
        """A process is gone, with all that ran in it."""
        self.running.pop(process, None)

    # --- what the database says -----------------------------------------------------------------------------------------

    def look(self, process: str, now: float) -> None:
        """Compare the rows with those before this commit."""
        attempts: dict[int, tuple[str, str, str, str]] = {}
        for number, task, claim, outcome, state, worker, explanation in self.driver.execute(ENDED, (self._attempts,)):
            self._attempts = number
            assert int(task) not in attempts, f"task {task}: two claims ended in one commit"
            attempts[int(task)] = (claim.replace("-", ""), outcome, state, worker)
            self.outcomes[outcome] += 1
            del explanation
        rows = {row[0]: Row(*row) for row in self.driver.execute(ROWS)}
        claimed: list[Row] = []
        for id_, row in rows.items():
            before = self.seen.get(id_)
            if before is None:
                assert row.state == State.WAITING, f"{row.key} was added as {row.state}"
            elif before != row:
                self._change(before, row, attempts.pop(id_, None), process, now, claimed)
        assert not attempts, f"an attempt was written, and its task did not change: {attempts}"
        assert self.seen.keys() <= rows.keys(), "a task is gone"
        self.seen = rows
        self._gates({row.gate for row in claimed if row.gate is not None}, now)

    def _change(
        self,
        old: Row,
        new: Row,
        attempt: tuple[str, str, str, str] | None,
        process: str,
        now: float,
        claimed: list[Row],
    ) -> None:
        key, pair = new.key, (State(old.state), State(new.state))
        if new.fence is not None and old.fence is None:
            assert pair in TRANSITIONS[Act.CLAIM], f"{key}: {pair} by a claim"
            assert (new.id, new.fence) not in self.fences, f"{key}: a fence was used twice"
            assert attempt is None, f"{key}: an attempt ended that only began"
            self.fences[new.id, new.fence] = Fence(process)
            claimed.append(new)
        elif new.fence is not None and old.fence is not None:
            assert attempt is None, f"{key}: {attempt} ended, and it is still held"
            if new.fence != old.fence:
                alone = uuid5(UUID(old.fence), "alone").hex
                assert new.fence == alone, f"{key}: another fence took the place of one that holds"
                held = self.fences.pop((old.id, old.fence))
                assert held.owner == process, f"{key}: {process} changed the fence of {held.owner}"
                assert not held.runs, f"{key}: the fence changed while it ran"
                self.fences[new.id, new.fence] = held
            elif old.lease_until is not None and old.lease_until <= now:
                lost = self.fences[new.id, new.fence]
                lost.expired, lost.taken_over_by = True, process
                self.met["a lease that ran out"] += 1
            else:
                held = self.fences[new.id, new.fence]
                assert process in (held.owner, held.taken_over_by), (
                    f"{key}: {process} took what {held.owner} still held"
                )
        elif old.fence is not None:
            assert pair in TRANSITIONS[Act.SETTLE], f"{key}: {pair} by a settlement"
            assert attempt is not None, f"{key}: a claim ended without its attempt"
            self._settled(old, new, attempt, process)
        else:
            assert attempt is None, f"{key}: an attempt of a task that nobody held"
            if pair[0] is not pair[1]:
                assert pair in BY_PEOPLE, f"{key}: {pair} by nobody"
                self.met[f"{BY_PEOPLE[pair]} by a person or an operation"] += 1
            redriven = pair == (State.DEAD, State.WAITING)
            assert new.redrives == old.redrives + redriven, f"{key}: redriven {old.redrives} → {new.redrives}"
            assert new.failures == (0 if redriven else old.failures), f"{key}: {old.failures} → {new.failures} failures"
        assert new.failures <= self.failures_max, f"{key}: more failures than its budget"

    def _settled(self, old: Row, new: Row, attempt: tuple[str, str, str, str], process: str) -> None:
        fence, outcome, state, worker = attempt
        assert fence == old.fence, f"{new.key}: {worker} settled with a fence that did not hold"
        known = self.fences[new.id, fence]
        assert known.ended is None, f"{new.key}: a claim ended twice"
        known.ended = outcome
        assert state == new.state, f"{new.key}: the attempt says {state}, the row {new.state}"
        assert worker == process, f"{new.key}: {process} wrote as {worker}"
        charged = new.failures - old.failures
        if outcome == "lease_expired":
            assert known.expired, f"{new.key}: counted as lost while its lease held"
            assert charged <= is_alone(UUID(fence)), f"{new.key}: charged for a worker that others may have killed"
        elif known.owner != process:
            assert known.expired, f"{new.key}: {process} settled what {known.owner} held"
            assert outcome == "cancelled", f"{new.key}: {process} settled the {outcome} of {known.owner}"
        elif outcome in ("done", "failed", "snoozed"):
            assert known.came_to == outcome, f"{new.key}: written as {outcome}, and it was {known.came_to}"
        assert charged == (outcome == "failed" and new.failures > old.failures) or outcome == "lease_expired", (
            f"{new.key}: {outcome} charged {charged}"
        )
        if outcome == "failed" and new.state == State.WAITING:
            assert charged == 1, f"{new.key}: a failure that cost nothing"
        if new.state == State.WAITING:
            assert new.due_at is not None, f"{new.key}: waits for nothing"

    def _gates(self, let_through: set[str], now: float) -> None:
        held = Counter(row.gate for row in self.seen.values() if row.gate is not None and row.fence is not None)
        limits = dict(self.driver.execute(LIMITS).fetchall())
        for name, counted, paused in self.driver.execute(GATES, (now,)):
            if name in let_through:
                assert not paused, f"gate {name} is paused, and let something through"
                most = limits.get(name, held[name])
                assert held[name] <= most, f"gate {name} holds {held[name]}, more than its limit of {most}"
                self.met["a gate at its limit"] += held[name] == most
            assert name.startswith("kind:") or counted == held[name], f"gate {name} counts {counted}, not {held[name]}"

    # --- at the end -----------------------------------------------------------------------------------------------------

    def unfinished(self) -> list[Row]:
        return [row for row in self.seen.values() if row.state in (State.WAITING, State.CLAIMED)]

    def finish(self) -> None:
        """All has come to its end: nothing acknowledged is missing, no claim is open, nothing was released twice."""
        keys = {row.key for row in self.seen.values()}
        assert self.acknowledged <= keys, f"acknowledged and lost: {self.acknowledged - keys}"
        assert not self.unfinished(), f"never ended: {[(row.key, row.state) for row in self.unfinished()]}"
        open_ = [fence for fence, known in self.fences.items() if known.ended is None]
        assert not open_, f"claims that never ended: {open_}"
        deeds = self.driver.execute(
            "SELECT task_id, count(*) FROM redrive_deed WHERE act = 'redrive' AND task_id NOT LIKE '%:%' GROUP BY task_id"
        )
        redriven = dict(deeds.fetchall())
        for row in self.seen.values():
            assert redriven.get(str(row.id), 0) == row.redrives, f"{row.key}: {row.redrives} redrives, not as recorded"
        released = "fate IN ('released', 'done', 'failed', 'ended')"
        for task, times, amount in self.driver.execute(
            f"SELECT task_id, count(DISTINCT operation), count(*) FROM redrive_operation_task WHERE {released} GROUP BY task_id"
        ):
            row = self.seen[int(task)]
            assert times == amount, f"{row.key}: twice in the set of one operation"
            assert amount <= row.redrives, f"{row.key}: released by {amount} operations, redriven {row.redrives} times"
