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
FLOWS = ("added", "pruned", "done", "dead", "cancelled")
"""What changes how many tasks are in which state from one census to the next."""
_OUTCOMES = frozenset({"snoozed", "released", "lease_expired"})


def rolled_up(settled: Iterable[Settlement]) -> dict[str, float]:
    """The amounts of `MEASURED` that these settlements stand for."""
    amounts: dict[str, float] = dict.fromkeys(COUNTED, 0)
    ran, done = ZERO, State.DONE
    # Most of a batch are alike: only how long they took is looked at one by one.
    alike: dict[tuple[str, State, bool, int], int] = {}
    for claim, outcome, state, _, _, _, explanation, elapsed, _ in settled:
        ran += elapsed
        task = claim.task
        same = outcome, state, explanation is not None, task.failures
        alike[same] = alike.get(same, 0) + 1
        if state is done and task.created_at is not None:
            amounts[took_bucket((claim.claimed_at + elapsed - task.created_at).total_seconds())] += 1
    for (outcome, state, failed, failures), amount in alike.items():
        if outcome in _OUTCOMES:
            amounts[outcome] += amount
        if state is State.WAITING:
            amounts["retried"] += amount if failed else 0
            continue
        amounts[state] += amount
        if state is not State.CANCELLED:
            amounts[tries_bucket(failures + 1)] += amount
    amounts["run_seconds"] = ran.total_seconds()
    return amounts
