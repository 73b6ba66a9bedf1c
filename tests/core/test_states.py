"""The state machine accepts exactly the table of the design, written out here by hand."""

from itertools import product

import pytest

from redrive.core.states import TERMINAL, TRANSITIONS, Act, State, check_transition, sources
from redrive.errors import LedgerError, TransitionError

ALLOWED = {
    ("claim", "waiting", "claimed"),
    ("settle", "claimed", "done"),
    ("settle", "claimed", "waiting"),
    ("settle", "claimed", "dead"),
    ("settle", "claimed", "cancelled"),
    ("cancel", "waiting", "cancelled"),
    ("bury", "waiting", "dead"),
    ("redrive", "dead", "waiting"),
    ("resolve", "dead", "done"),
    ("resolve", "dead", "cancelled"),
    ("return", "done", "waiting"),
    ("return", "dead", "waiting"),
    ("return", "cancelled", "waiting"),
}


def test_the_words_are_the_published_ones():
    """States and acts are stored and shown as these words."""
    assert {state.value for state in State} == {"waiting", "claimed", "done", "dead", "cancelled"}
    assert {act.value for act in Act} == {"claim", "settle", "cancel", "bury", "redrive", "resolve", "return"}


@pytest.mark.parametrize(("act", "before", "after"), list(product(Act, State, State)), ids=str)
def test_a_transition_is_accepted_iff_listed(act, before, after):
    """Of all acts and pairs of states only the listed ones pass; all others are refused."""
    if (act.value, before.value, after.value) in ALLOWED:
        check_transition(act, before, after)
    else:
        with pytest.raises(TransitionError):
            check_transition(act, before, after)


def test_the_table_holds_nothing_else():
    """`TRANSITIONS` is the same table, with an entry for every act."""
    assert set(TRANSITIONS) == set(Act)
    assert {(act.value, a.value, b.value) for act, pairs in TRANSITIONS.items() for a, b in pairs} == ALLOWED


def test_a_refusal_says_what_is_allowed():
    """The error names the act, both states and the ways that are open."""
    with pytest.raises(
        TransitionError, match="resolve cannot lead from waiting to done; it may lead dead → cancelled, dead → done"
    ):
        check_transition(Act.RESOLVE, State.WAITING, State.DONE)
    assert issubclass(TransitionError, LedgerError)


@pytest.mark.parametrize(("act", "after"), list(product(Act, State)), ids=str)
def test_sources_are_the_table_read_backwards(act, after):
    """`sources` gives, sorted, the states from which an act may lead somewhere."""
    expected = sorted(before for listed, before, to in ALLOWED if listed == act.value and to == after.value)
    assert [state.value for state in sources(act, after)] == expected


def test_terminal_states_are_left_only_by_people_or_by_a_return():
    """Nothing that a worker does leaves a terminal state, and every other state can be left by it."""
    by_worker = {before for act, before, _ in ALLOWED if act in {"claim", "settle"}}
    assert {state.value for state in TERMINAL} == {"done", "dead", "cancelled"}
    assert by_worker == {state.value for state in State} - {state.value for state in TERMINAL}
