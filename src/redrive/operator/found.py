"""What a look of a search in the background has found."""

import json
from dataclasses import dataclass
from typing import Any

from redrive.core.failure import redact
from redrive.core.task import Task, TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one look found: how many tasks it went through, and the id of the last one; None at the end."""

    tasks: list[Task]
    looked_at: int
    last: TaskId | None


def holds_text(task: Task, text: str, shown: Any) -> bool:
    """Whether people who see this task see the text, which is in lower case. `shown` makes of a payload what they may see."""
    if not text:
        return True
    if any(text in (said or "").lower() for said in (task.key, task.kind, redact(task.last_error or ""))):
        return True
    return text in json.dumps(shown(task.payload), ensure_ascii=False, default=str).lower()
