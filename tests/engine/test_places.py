"""How much of what is due can start."""

from types import SimpleNamespace

import pytest

from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.places import Places
from tests.engine.workbench import STEADY, ignore


def places_of(most=2, taken=0, **transactional):
    handlers = Handlers()
    for kind, is_transactional in transactional.items():
        handlers.add(make_handler(kind, ignore, STEADY, transactional=is_transactional))
    places = Places(handlers, SimpleNamespace(transactions_max=most))
    for _ in range(taken):
        places.take()
    return places


@pytest.mark.parametrize(
    ("most", "taken", "transactional", "portion"),
    [
        (2, 0, {"a": False, "b": False}, (9, ["a", "b"])),
        (9, 0, {"a": False, "b": True}, (9, ["a", "b"])),
        (2, 0, {"b": True}, (2, ["b"])),
        (2, 2, {"b": True}, (0, [])),
        (2, 2, {"a": False, "b": True}, (9, ["a"])),
    ],
    ids=["no transactions", "enough places", "a few places", "no place", "no place, but other kinds"],
)
def test_what_to_claim(most, taken, transactional, portion):
    """One claim for all where all of it can start; else only what has a place, and never less of other kinds."""
    assert places_of(most, taken, **transactional).portion(9, list(transactional)) == portion


@pytest.mark.parametrize(("most", "sharers", "share"), [(16, 1, 9), (16, 2, 8), (16, 5, 3), (1, 2, 1)])
def test_lanes_share_the_places_of_their_database(most, sharers, share):
    """Each worker of a process takes its part of them, at least one: together they claim no more than has a connection."""
    handlers = Handlers()
    handlers.add(make_handler("b", ignore, STEADY, transactional=True))
    places = Places(handlers, SimpleNamespace(transactions_max=most), sharers)
    assert places.portion(9, ["b"]) == (share, ["b"])


def test_kinds_are_claimed_in_turns():
    """Where there are fewer places than slots each half has its turn, and both are asked before a worker is idle."""
    places = places_of(2, 0, a=False, b=True)
    asked = [places.portion(9, ["a", "b"]) for _ in range(4)]
    assert asked == [(2, ["b"]), (9, ["a"])] * 2
    assert places.portion(9, ["a", "b"]) == (2, ["b"])
    assert places.others_left()
    assert not places.others_left(), "it is said once"
    assert places.portion(9, ["a", "b"]) == (9, ["a"])
    assert not places.others_left()


def test_a_place_that_is_given_back_is_told_to_who_waits_for_it():
    """Only where something was left for want of a place; an idle worker meanwhile waits for other kinds alone."""
    places = places_of(1, 0, a=False, b=True)
    places.take()
    assert places.startable(["a", "b"]) == ["a", "b"]
    places.portion(9, ["a", "b"])
    assert places.startable(["a", "b"]) == ["a"]
    assert places.give_back()
    places.portion(1, ["a", "b"])
    places.take()
    assert not places.give_back()


def test_each_place_is_given_back_by_itself():
    """As many are left as were not taken."""
    places = places_of(3, 3, b=True)
    for left in (1, 2):
        places.give_back()
        assert places.portion(9, ["b"]) == (left, ["b"])
