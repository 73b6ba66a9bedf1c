"""What a batch of settlements adds to its minute: computed here, once, for every database.

Pure: no clock, no SQL. A task took from when it was stored until its handler came back, which is the claim's start plus how
long the run took: the claim has the ledger's own time, and only the moment between claim and call is missing.
"""

from collections.abc import Iterable

from redrive.core.decide import Settlement
from redrive.core.durations import ZERO
from redrive.core.histograms import TOOK, TRIES, took_bucket, tries_bucket
from redrive.core.states import State

STATES_AND_OUTCOMES = ("done", "retried", "dead", "cancelled", "snoozed", "released", "lease_expired")
COUNTED = (*STATES_AND_OUTCOMES, *TRIES, *TOOK)
"""What is counted in whole numbers."""
MEASURED = (*COUNTED, "run_seconds")
"""All that settlements add to a minute."""
_OUTCOMES = frozenset({"snoozed", "released", "lease_expired"})


def rolled_up(settled: Iterable[Settlement]) -> dict[str, float]:
    """The amounts of `MEASURED` that these settlements stand for."""
    amounts: dict[str, float] = dict.fromkeys(COUNTED, 0)
    ran, waiting = ZERO, State.WAITING
    for claim, outcome, state, _, _, _, explanation, elapsed, _ in settled:
        ran += elapsed
        if outcome in _OUTCOMES:
            amounts[outcome] += 1
        if state is waiting:
            if explanation is not None:
                amounts["retried"] += 1
            continue
        amounts[state] += 1
        task = claim.task
        if state is not State.CANCELLED:
            amounts[tries_bucket(task.failures + 1)] += 1
        if state is State.DONE and task.created_at is not None:
            amounts[took_bucket((claim.claimed_at + elapsed - task.created_at).total_seconds())] += 1
    amounts["run_seconds"] = ran.total_seconds()
    return amounts
