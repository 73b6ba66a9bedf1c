"""The state machine, as one table.

The diagram in `docs/concepts.md` and the CHECK in the schema are compared with it in a test. "Due later" is not a
state but a due time in the future; "failed" is not a state but the outcome of an attempt.
"""

from enum import StrEnum

from redrive.errors import TransitionError


class State(StrEnum):
    """Where a task stands."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Act(StrEnum):
    """What moves a task from one state to another."""

    CLAIM = "claim"
    SETTLE = "settle"
    CANCEL = "cancel"
    BURY = "bury"
    REDRIVE = "redrive"
    RESOLVE = "resolve"
    RETURN = "return"


_W, _C, _DONE, _DEAD, _X = State.WAITING, State.CLAIMED, State.DONE, State.DEAD, State.CANCELLED

TRANSITIONS: dict[Act, frozenset[tuple[State, State]]] = {
    Act.CLAIM: frozenset({(_W, _C)}),
    Act.SETTLE: frozenset({(_C, _DONE), (_C, _W), (_C, _DEAD), (_C, _X)}),
    Act.CANCEL: frozenset({(_W, _X)}),
    Act.BURY: frozenset({(_W, _DEAD)}),
    Act.REDRIVE: frozenset({(_DEAD, _W)}),
    Act.RESOLVE: frozenset({(_DEAD, _DONE), (_DEAD, _X)}),
    Act.RETURN: frozenset({(_DONE, _W), (_DEAD, _W), (_X, _W)}),
}
"""For each act the changes of state that it may make; every pair not listed is refused."""

TERMINAL = frozenset({State.DONE, State.DEAD, State.CANCELLED})
"""States in which nothing is due: no due time, no lease."""


def check_transition(act: Act, before: State, after: State) -> None:
    """Raise `TransitionError` unless `act` may lead from `before` to `after`."""
    if (before, after) not in TRANSITIONS[act]:
        allowed = ", ".join(sorted(f"{a} → {b}" for a, b in TRANSITIONS[act]))
        raise TransitionError(f"{act} cannot lead from {before} to {after}; it may lead {allowed}")


def sources(act: Act, after: State) -> tuple[State, ...]:
    """The states from which `act` may lead to `after`."""
    return tuple(sorted(before for before, to in TRANSITIONS[act] if to is after))
