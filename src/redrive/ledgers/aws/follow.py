"""What follows from the parts of a head, for whoever owns the heads: the status of an event, how many there are.

It is to this ledger what `Beside` is to a table's, but made of values: it is asked before the write, and its answer is part of that
very write. It may be asked several times for one change, because somebody else was quicker; so it must be pure.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from redrive.ledgers.aws.expressions import Action
from redrive.ledgers.aws.heads import Head, Part


class FailedPart(NamedTuple):
    """A part that has just failed."""

    number: str
    error: str | None
    ended_at: datetime | None
    """When the try ended; None where nobody knows, because its worker was lost."""


class Followed(NamedTuple):
    """What follows: facts of the head to be written, None to remove one, and what is added to the counters of its owner."""

    facts: Mapping[str, Any]
    counts: Mapping[str, int]
    kept: str | None = None
    """For a head that may be forgotten some day: since when, as a text that sorts by time; only while nothing of it is open."""


class Change(NamedTuple):
    """A change of one head: how it was, how it is then, and the actions that make it so, the head's own first."""

    before: Head
    after: Head
    at: datetime
    actions: Sequence[Action]
    counts: Mapping[str, int]
    failures: Sequence[FailedPart] = ()


class Follower:
    """Override what you need; what you leave alone writes nothing."""

    def follow(
        self,
        head: Head,  # noqa: ARG002
        parts: Mapping[str, Part],  # noqa: ARG002
        now: datetime,  # noqa: ARG002
        failures: Sequence[FailedPart],  # noqa: ARG002
    ) -> Followed:
        """What follows for a head whose parts are these from now on. Pure."""
        return Followed({}, {})

    def tell(self, changes: Sequence[Change]) -> None:
        """These changes were written."""
