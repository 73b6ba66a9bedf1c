"""A part of an error is found where it is shown, and only there."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from redrive.errors import TooSlowError
from redrive.operator.shown_errors import shows, sifted


def test_only_what_is_shown_is_there():
    """A text that redaction hides is not in an error; what stands in its place is, in upper or lower case."""
    error = "Refused: token=abcdefgh12 for bob"
    assert not shows(error, "abcdefgh")
    assert shows(error, "refused")
    assert shows(error, "token=[redacted] for")
    assert not shows(None, "x")


async def test_a_page_is_filled_though_candidates_do_not_fit():
    """The next candidates are looked at until the page is full: a short one would tell of those that hide the text."""
    numbers = list(range(1, 1001))

    async def look(after: int | None, amount: int) -> list[int]:
        return [number for number in numbers if number > (after or 0)][:amount]

    async def fitting(some: Sequence[int]) -> list[int]:
        return [number for number in some if number % 300 == 0]

    assert await sifted(look, fitting, None, 2, None) == [300, 600]
    assert await sifted(look, fitting, 600, 2, None) == [900]
    with pytest.raises(TooSlowError):
        await sifted(look, fitting, None, 2, timedelta(seconds=-1))
