"""A person's wish that a task which runs be cancelled."""

from typing import NamedTuple
from uuid import UUID

from redrive.core.outcome import Cancelled
from redrive.core.task import TaskId


class Stop(NamedTuple):
    """Who wants the run of a task under this fence to be cancelled, and why."""

    task_id: TaskId
    claim_id: UUID
    actor: str
    reason: str

    def outcome(self) -> Cancelled:
        """What the run came to, if it obeyed."""
        return Cancelled(f"cancelled while it ran by {self.actor}{f': {self.reason}' if self.reason else ''}")
