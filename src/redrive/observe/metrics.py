"""Prometheus metrics. Counters come from the facts; depths and ages are asked of the ledgers when somebody scrapes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from redrive.core.gates import GateAnswer, answer_of
from redrive.core.states import State
from redrive.events import (
    AttemptEnded,
    Event,
    LedgerAway,
    LedgerBack,
    OperationChanged,
    SettleFailed,
    SettleLost,
    TaskAdded,
    TasksChanged,
)

OTHER = "other"
KINDS_MAX = 100
"""Kinds beyond this many are counted as `other`."""
GATES_MAX = 100
"""Gates beyond this many are shown as `other`."""
SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ShownGate(Protocol):
    """What is told of one gate."""

    @property
    def name(self) -> str: ...

    @property
    def does(self) -> str: ...

    @property
    def held(self) -> int: ...

    @property
    def parked(self) -> int | None: ...


class FewLabels:
    """Labels of their own for as many names as came first; the others share one: labels must not grow with what strangers send."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()

    def __call__(self, name: str, *within: str) -> str:
        known = (*within, name)
        if known not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(known)
        return name


class MetricsObserver:
    """Counts what happens, by ledger and kind."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        by_kind = ["ledger", "kind"]

        def counter(name: str, meaning: str, labels: list[str]) -> Counter:
            return Counter(name, meaning, labels, registry=self.registry)

        def gauge(name: str, meaning: str, labels: list[str]) -> Gauge:
            return Gauge(name, meaning, labels, registry=self.registry)

        def histogram(name: str, meaning: str) -> Histogram:
            return Histogram(name, meaning, by_kind, buckets=SECONDS, registry=self.registry)

        self.added = counter("redrive_tasks_added", "Tasks stored", by_kind)
        self.ended = counter("redrive_attempts", "Attempts ended, by outcome", [*by_kind, "outcome"])
        self.retries = counter("redrive_retries_scheduled", "Retries planned", by_kind)
        self.dead = counter("redrive_tasks_dead", "Tasks that will not be tried again", [*by_kind, "verdict"])
        self.lost = counter("redrive_settle_lost", "Settlements refused by the fence", ["ledger"])
        self.failed = counter("redrive_settle_failed", "Settlements that could not be written", ["ledger"])
        self.changed = counter("redrive_tasks_changed", "Tasks that people or systems acted on", ["ledger", "act"])
        self.operations = counter(
            "redrive_operations_changed", "Redrive operations, by where they came to stand", ["ledger", "state"]
        )
        self.up = gauge("redrive_ledger_up", "Whether the ledger answers", ["ledger"])
        self.duration = histogram("redrive_run_seconds", "How long handlers ran")
        self.drift = histogram("redrive_drift_seconds", "From due to started")
        self.depth = gauge("redrive_tasks", "Tasks by state, counted up to a limit", ["ledger", "state"])
        self.oldest_due = gauge("redrive_oldest_due_seconds", "How long the oldest due task waits", ["ledger"])
        by_gate = ["ledger", "gate"]
        self.gate_state = gauge("redrive_gate_state", "Gates by what they do", [*by_gate, "state"])
        self.gate_held = gauge("redrive_gate_held", "Tasks of a gate that run", by_gate)
        self.gate_parked = gauge("redrive_gate_parked", "Due tasks that a gate keeps back, up to 10,000", by_gate)
        self.let_through = counter("redrive_gate_let_through", "Tries that a gate let through", by_gate)
        self.refused = counter("redrive_gate_refused", "Tries that the destination of a gate did not serve", by_gate)
        self._counters: dict[tuple[str, ...], Counter] = {}
        """By name and labels, of which there are few."""
        self._measured: dict[tuple[str, str], tuple[Histogram, Histogram]] = {}
        self._kind = FewLabels(KINDS_MAX)
        self._gate = FewLabels(GATES_MAX)
        self._shown: dict[str, list[tuple[Gauge, tuple[str, ...]]]] = {}

    def show_gates(self, ledger: str, gates: Sequence[ShownGate], others: Mapping[str, int], held: int) -> None:
        """Set the gauges of a ledger's gates; those beyond some have one label in common, `others` by what they do and `held` in all.

        What was shown before and is not shown now is gone: a gauge that nobody sets any more would stay for ever.
        """
        for metric, labels in self._shown.pop(ledger, ()):
            metric.remove(*labels)
        shown: list[tuple[Gauge, tuple[str, ...], float]] = []
        for one in gates[:GATES_MAX]:
            shown.append((self.gate_state, (ledger, one.name, one.does), 1))
            shown.append((self.gate_held, (ledger, one.name), one.held))
            shown.append((self.gate_parked, (ledger, one.name), one.parked or 0))
        shown += [(self.gate_state, (ledger, OTHER, does), amount) for does, amount in others.items()]
        if others:
            shown.append((self.gate_held, (ledger, OTHER), held))
        for metric, labels, value in shown:
            metric.labels(*labels).set(value)
        self._shown[ledger] = [(metric, labels) for metric, labels, _ in shown]

    def _histograms(self, ledger: str, kind: str) -> tuple[Histogram, Histogram]:
        """Of how long handlers ran and how late they began. To find a metric by its labels takes longer than to count in it."""
        found = self._measured.get((ledger, kind))
        if found is None:
            found = self._measured[ledger, kind] = self.duration.labels(ledger, kind), self.drift.labels(ledger, kind)
        return found

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`. One group costs a few increments however many facts it holds."""
        tally: defaultdict[tuple[str, ...], int] = defaultdict(int)
        for event in events:
            match event:
                case TaskAdded(ledger, kind, _, _, new) if new:
                    tally["added", ledger, self._kind(kind, ledger)] += 1
                case AttemptEnded(ledger, settlement):
                    claim = settlement.claim
                    if claim.task.gate is not None:
                        gate = self._gate(claim.task.gate, ledger)
                        tally["let_through", ledger, gate] += 1
                        if answer_of(settlement)[0] in (GateAnswer.BAD, GateAnswer.REFUSED):
                            tally["refused", ledger, gate] += 1
                    kind = self._kind(claim.task.kind, ledger)
                    tally["ended", ledger, kind, settlement.outcome] += 1
                    if settlement.explanation is not None and settlement.state is State.WAITING:
                        tally["retries", ledger, kind] += 1
                    elif settlement.explanation is not None:
                        tally["dead", ledger, kind, settlement.explanation.verdict] += 1
                    if claim.abandoned is not None:  # it ended with its worker, nobody knows when
                        continue
                    duration, drift = self._histograms(ledger, kind)
                    duration.observe(settlement.elapsed.total_seconds())
                    if claim.task.due_at is not None:
                        late = (claim.claimed_at - claim.task.due_at).total_seconds()
                        drift.observe(max(0.0, late))
                case SettleLost(ledger):
                    tally["lost", ledger] += 1
                case SettleFailed(ledger):
                    tally["failed", ledger] += 1
                case TasksChanged(ledger, act, ids):
                    tally["changed", ledger, act.value] += len(ids)
                case OperationChanged(ledger, _, state):
                    tally["operations", ledger, state.value] += 1
                case LedgerAway(ledger):
                    self.up.labels(ledger).set(0)
                case LedgerBack(ledger):
                    self.up.labels(ledger).set(1)
                case _:
                    pass
        for counted, amount in tally.items():
            if (counter := self._counters.get(counted)) is None:
                name, *labels = counted
                counter = self._counters[counted] = getattr(self, name).labels(*labels)
            counter.inc(amount)
