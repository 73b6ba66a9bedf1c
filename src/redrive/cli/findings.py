"""What `redrive doctor` finds: one line for each thing that was looked at, with a remedy where something is wrong."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "notice", "problem"]
    said: str
    remedy: str = ""

    @classmethod
    def of(cls, name: str, said: str, *, well: bool, remedy: str = "") -> "Finding":
        """What is well, or a problem with its remedy."""
        return cls(name, "ok", said) if well else cls(name, "problem", said, remedy)
