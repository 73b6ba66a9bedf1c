"""The one way to write in the commits of the engine, for our systems and for yours.

A `Beside` is called in the transaction of every claim, settlement and act, before anything is released to others: an audit, a
reply, a status that follows from many tasks. What it raises takes everything back.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from redrive.core.decide import Settlement
from redrive.core.states import Act, State
from redrive.core.task import Claim, TaskId
from redrive.ports import Actor


class Beside:
    """Override what you need. What you leave alone is not called, and costs nothing."""

    refused_ends: frozenset[State] = frozenset()
    """Ends that `acted` refuses whatever the task; people are not offered them."""
    refused_edit: str | None = None
    """Why no payload here may be changed, in a sentence; None where nothing is against it."""

    def claimed(self, connection: Connection, claims: Sequence[Claim]) -> None:
        """These tasks were claimed to be run."""

    def settled(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        """These settlements were written; those that the fence refused are not among them."""

    def acted(
        self, connection: Connection, act: Act, state: State, ids: Sequence[TaskId], actor: Actor, note: Any
    ) -> None:
        """These tasks were changed to `state` by a person or a system, which may have left a note."""

    def listens(self, to: str) -> bool:
        """Whether the method of this name was overridden."""
        return getattr(type(self), to) is not getattr(Beside, to)
