"""Prometheus metrics: the names that dashboards and alerts rely on, and labels that cannot grow without bound."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
from prometheus_client import generate_latest

from redrive.core.operation import OperationState
from redrive.core.outcome import Done, Failed, LeaseExpired
from redrive.core.states import Act
from redrive.core.task import Abandoned
from redrive.errors import PermanentError, TransientError
from redrive.events import (
    AttemptEnded,
    AttemptStarted,
    LedgerAway,
    LedgerBack,
    OperationChanged,
    SettleFailed,
    SettleLost,
    TaskAdded,
    TasksChanged,
    TasksPruned,
)
from redrive.observe.metrics import GATES_MAX, KINDS_MAX, MetricsObserver


@pytest.fixture
def metrics():
    return MetricsObserver()


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, {"ledger": "work"} | labels)


def test_added_tasks_are_counted_once(metrics):
    """A task that was there already is not added again."""
    metrics.observe([TaskAdded("work", "mail", "a", 1, True), TaskAdded("work", "mail", "a", 1, False)])
    assert value(metrics, "redrive_tasks_added_total", kind="mail") == 1


def test_attempts_are_counted_by_outcome(metrics, make_settlement):
    """Each end of an attempt is counted by what it came to; retries and deaths have counters of their own."""
    metrics.observe(
        [
            AttemptEnded("work", make_settlement(Done())),
            AttemptEnded("work", make_settlement(Done())),
            AttemptEnded("work", make_settlement(Failed(ValueError("odd")))),
            AttemptEnded("work", make_settlement(Failed(PermanentError("no")))),
            AttemptEnded("work", make_settlement(LeaseExpired(), failures=2, alone=True)),
        ]
    )
    by_outcome = {
        outcome: value(metrics, "redrive_attempts_total", kind="mail", outcome=outcome)
        for outcome in ("done", "failed", "lease_expired")
    }
    assert by_outcome == {"done": 2, "failed": 2, "lease_expired": 1}
    assert value(metrics, "redrive_retries_scheduled_total", kind="mail") == 1
    assert value(metrics, "redrive_tasks_dead_total", kind="mail", verdict="permanent") == 1
    assert value(metrics, "redrive_tasks_dead_total", kind="mail", verdict="worker_lost") == 1


def test_lost_and_failed_settlements_are_counted(metrics, make_settlement):
    """Both ways in which a settlement is not written can be alerted on."""
    settlement = make_settlement(Done())
    metrics.observe(
        [SettleLost("work", settlement), SettleLost("work", settlement), SettleFailed("work", settlement, "odd")]
    )
    assert value(metrics, "redrive_settle_lost_total") == 2
    assert value(metrics, "redrive_settle_failed_total") == 1


def test_acts_are_counted_by_task(metrics):
    """One redrive of three tasks counts three."""
    metrics.observe([TasksChanged("work", Act.REDRIVE, (1, 2, 3), "ada", "")])
    assert value(metrics, "redrive_tasks_changed_total", act="redrive") == 3


def test_operations_are_counted_by_where_they_stand(metrics):
    """An operation that halts is one more."""
    metrics.observe([OperationChanged("work", "7c2f", OperationState.HALTED, "too many failed", "redrive")])
    assert value(metrics, "redrive_operations_changed_total", state="halted") == 1


def test_the_ledger_is_up_or_down(metrics):
    """An outage shows as zero, its end as one."""
    metrics.observe([LedgerAway("work", "gone")])
    assert value(metrics, "redrive_ledger_up") == 0
    metrics.observe([LedgerBack("work", timedelta(seconds=1))])
    assert value(metrics, "redrive_ledger_up") == 1


def test_drift_is_from_due_to_claimed(metrics, make_settlement):
    """How late a task was started; a clock that went backwards counts as not late."""
    metrics.observe([AttemptEnded("work", make_settlement(Done(), late=timedelta(seconds=2)))])
    assert value(metrics, "redrive_drift_seconds_sum", kind="mail") == 2
    metrics.observe([AttemptEnded("work", make_settlement(Done(), late=timedelta(seconds=-5)))])
    assert value(metrics, "redrive_drift_seconds_sum", kind="mail") == 2
    assert value(metrics, "redrive_drift_seconds_count", kind="mail") == 2


def test_durations_are_of_real_runs(metrics, make_settlement):
    """How long handlers ran; a claim whose worker was lost has neither a duration nor a drift."""
    metrics.observe([AttemptEnded("work", make_settlement(Done(), elapsed=timedelta(seconds=3)))])
    lost = Abandoned(claim_id=None, claimed_at=None)
    metrics.observe([AttemptEnded("work", make_settlement(LeaseExpired(), abandoned=lost))])
    assert value(metrics, "redrive_run_seconds_sum", kind="mail") == 3
    assert value(metrics, "redrive_run_seconds_count", kind="mail") == 1
    assert value(metrics, "redrive_drift_seconds_count", kind="mail") == 1


def test_labels_do_not_grow_with_what_strangers_send(metrics, make_settlement):
    """Kinds beyond the limit are counted together as `other`, and those that were known stay apart."""
    metrics.observe([TaskAdded("work", f"kind{number}", "k", number, True) for number in range(KINDS_MAX + 50)])
    assert value(metrics, "redrive_tasks_added_total", kind="other") == 50
    metrics.observe([AttemptEnded("work", make_settlement(Done(), kind="one more"))])
    metrics.observe([AttemptEnded("work", make_settlement(Done(), kind="kind0"))])
    assert value(metrics, "redrive_attempts_total", kind="other", outcome="done") == 1
    assert value(metrics, "redrive_attempts_total", kind="kind0", outcome="done") == 1
    exported = generate_latest(metrics.registry).decode()
    assert exported.count("redrive_tasks_added_total{") == KINDS_MAX + 1


def test_facts_without_a_metric_are_ignored(metrics, make_claim):
    """Facts that nobody counts make no noise."""
    before = generate_latest(metrics.registry)
    metrics.observe([AttemptStarted("work", make_claim()), TasksPruned("work", 3)])
    assert generate_latest(metrics.registry) == before


def test_the_names_are_a_promise(metrics):
    """Dashboards and alerts are written against these names."""
    assert {family.name for family in metrics.registry.collect()} == {
        "redrive_attempts",
        "redrive_drift_seconds",
        "redrive_gate_held",
        "redrive_gate_let_through",
        "redrive_gate_parked",
        "redrive_gate_refused",
        "redrive_gate_state",
        "redrive_ledger_up",
        "redrive_oldest_due_seconds",
        "redrive_operations_changed",
        "redrive_retries_scheduled",
        "redrive_run_seconds",
        "redrive_settle_failed",
        "redrive_settle_lost",
        "redrive_tasks",
        "redrive_tasks_added",
        "redrive_tasks_changed",
        "redrive_tasks_dead",
    }


def test_two_observers_have_registries_of_their_own():
    """Two applications in one process do not collide."""
    assert MetricsObserver().registry is not MetricsObserver().registry


@dataclass(frozen=True)
class Seen:
    """A gate as it is shown."""

    name: str
    does: str = "letting through"
    held: int = 1
    parked: int | None = 7


def test_tries_behind_gates_are_counted(metrics, make_settlement):
    """What a gate let through, and what its destination did not serve; tasks without a gate are none of its business."""

    def ended(outcome, gate):
        settlement = make_settlement(outcome)
        task = settlement.claim.task._replace(gate=gate)
        return AttemptEnded("work", settlement._replace(claim=settlement.claim._replace(task=task)))

    failed = Failed(TransientError("down"))
    metrics.observe([ended(Done(), "bank"), ended(failed, "bank"), ended(Failed(PermanentError("no")), "bank")])
    metrics.observe([ended(failed, None), ended(LeaseExpired(), "bank")])
    assert value(metrics, "redrive_gate_let_through_total", gate="bank") == 4
    assert value(metrics, "redrive_gate_refused_total", gate="bank") == 1
    metrics.observe([ended(Done(), f"gate-{number}") for number in range(2 * GATES_MAX)])
    assert value(metrics, "redrive_gate_let_through_total", gate="other") == GATES_MAX + 1
    assert value(metrics, "redrive_gate_let_through_total", gate=f"gate-{GATES_MAX}") is None


def test_gates_that_are_gone_leave_no_gauge(metrics):
    """What was shown before and is not shown now is gone; more than a hundred share one label."""
    metrics.show_gates("work", [Seen("bank", "holding"), Seen("smtp")], {}, 0)
    assert value(metrics, "redrive_gate_state", gate="bank", state="holding") == 1
    assert value(metrics, "redrive_gate_parked", gate="bank") == 7
    metrics.show_gates("work", [Seen("bank", "returning", parked=None)], {"holding": 5, "letting through": 80}, 12)
    assert value(metrics, "redrive_gate_state", gate="bank", state="holding") is None
    assert value(metrics, "redrive_gate_state", gate="bank", state="returning") == 1
    assert value(metrics, "redrive_gate_held", gate="smtp") is None
    assert value(metrics, "redrive_gate_state", gate="other", state="holding") == 5
    assert value(metrics, "redrive_gate_held", gate="other") == 12
