"""A wish that a run ends."""

from uuid import uuid4

from redrive.core.outcome import Cancelled
from redrive.core.stop import Stop


def test_a_run_that_is_ended_says_by_whom_and_why() -> None:
    """The task is cancelled with these words; a reason may be left out."""
    assert Stop(7, uuid4(), "ada", "wrong customer").outcome() == Cancelled(
        "cancelled while it ran by ada: wrong customer"
    )
    assert Stop(7, uuid4(), "ada", "").outcome() == Cancelled("cancelled while it ran by ada")
