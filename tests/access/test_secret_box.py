"""Secrets are sealed with the first key and opened with any; what was never sealed is read as it is."""

import pytest

from redrive.access.secret_box import CannotOpenError, SecretBox, is_sealed, new_key
from redrive.errors import SettingsError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_what_is_sealed_shows_nothing_and_opens():
    """The same secret looks different each time, and comes back whole, also where it is not ASCII."""
    box = SecretBox([new_key()])
    first, second = box.seal(SECRET), box.seal(SECRET)
    assert first != second
    assert SECRET not in first
    assert is_sealed(first)
    assert box.open(first) == box.open(second) == SECRET
    assert box.open(box.seal("é" * 100)) == "é" * 100


def test_a_text_that_was_never_sealed_is_read_as_it_is():
    """Secrets of before there was a key go on working."""
    box = SecretBox([new_key()])
    assert not is_sealed(SECRET)
    assert (box.open(SECRET), box.is_current(SECRET)) == (SECRET, False)


def test_the_first_key_seals_and_all_open():
    """While keys are changed both are given; once all is sealed anew the old one is not needed."""
    old, new = new_key(), new_key()
    before = SecretBox([old]).seal(SECRET)
    both = SecretBox([new, old])
    after = both.seal(both.open(before))
    assert (both.is_current(before), both.is_current(after)) == (False, True)
    assert SecretBox([new]).open(after) == SECRET
    with pytest.raises(CannotOpenError, match="key that is no longer given"):
        SecretBox([new]).open(before)


@pytest.mark.parametrize("changed", ["sealed:", "sealed:AAAA", "sealed:é"])
def test_what_was_tampered_with_does_not_open(changed: str):
    """It is an error of settings, not a fault, and says nothing of the secret."""
    with pytest.raises(SettingsError):
        SecretBox([new_key()]).open(changed)


def test_a_box_needs_a_key():
    """Without one nothing could be opened again."""
    with pytest.raises(SettingsError):
        SecretBox([])
