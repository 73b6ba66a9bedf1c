"""How far a try has come, and what it leaves for the next one."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

CHECKPOINT_BYTES_MAX = 64 * 1024
WORDS_CHARS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is durable of it: the share that is done, in words, and the checkpoint."""

    at: datetime
    share: float | None = None
    words: str | None = None
    checkpoint: Any = None
