"""Wrong keys are counted for a while, and only so many of them."""

from redrive.access.wrong_keys import FAILURES_MAX, NOTED_MAX, WrongKeys


def test_what_is_noted_has_a_limit():
    """A stranger who sends another key from another address each time fills no memory."""
    wrong_keys = WrongKeys()
    for number in range(NOTED_MAX):
        assert not wrong_keys.note(str(number), f"{number:012}")
    assert len(wrong_keys._failures) <= NOTED_MAX


def test_a_caller_who_goes_on_is_not_forgotten():
    """Many others in between do not wipe the slate of one who guesses all the time."""
    wrong_keys = WrongKeys()
    for number in range(FAILURES_MAX):
        assert not wrong_keys.note("me", f"{number:012}")
    for number in range(100):
        wrong_keys.note(f"other {number}", f"other {number:06}")
    assert wrong_keys.note("me", "another one")


def test_a_network_is_one_caller():
    """Who has a /64 of IPv6 has as many addresses as there are keys to guess; the neighbour's network is somebody else's."""
    wrong_keys = WrongKeys()
    for number in range(FAILURES_MAX):
        assert not wrong_keys.note(f"2001:db8:1:2::{number:x}", f"{number:012}")
    assert wrong_keys.note("2001:db8:1:2::ffff", "another one")
    assert not wrong_keys.note("2001:db8:1:3::1", "one of a neighbour")
