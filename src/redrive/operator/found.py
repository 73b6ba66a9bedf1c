"""What one look of many has found: of a search in the background, or of who goes through the history."""

import json
from dataclasses import dataclass
from typing import Any

from redrive.core.failure import redact
from redrive.core.task import Attempt, Task, TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one look found: how many tasks it went through, and the id of the last one; None at the end."""

    tasks: list[Task]
    looked_at: int
    last: TaskId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTries:
    """Some tasks by their ids, each with its tries, the oldest first; and how many older tries were passed over on the way."""

    tasks: list[tuple[str, list[Attempt]]]
    passed_over: int = 0
    cursor: str | None = None
    """The id to go on behind; None at the end."""


def holds_text(task: Task, text: str, shown: Any) -> bool:
    """Whether people who see this task see the text, which is in lower case. `shown` makes of a payload what they may see."""
    if not text:
        return True
    if any(text in (said or "").lower() for said in (task.key, task.kind, redact(task.last_error or ""))):
        return True
    return text in json.dumps(shown(task.payload), ensure_ascii=False, default=str).lower()
