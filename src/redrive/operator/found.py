"""What a look of a search in the background has found."""

from dataclasses import dataclass

from redrive.core.task import Task, TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one look found: how many tasks it went through, and the id of the last one; None at the end."""

    tasks: list[Task]
    looked_at: int
    last: TaskId | None
