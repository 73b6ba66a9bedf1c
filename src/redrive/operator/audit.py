"""Who did what to which tasks, or to what else people act on, when, from where and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

THINGS_NAMED_MAX = 10
"""An act on more than so many is only counted on a page; `Audit.things` names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One act, however many commits it took. `ledger` is what it was done to: a ledger, or what a system calls otherwise."""

    id: int | str
    ledger: str
    at: datetime
    act: str
    actor: str
    reason: str
    origin: str = ""
    """From where it was done, where that is known."""
    amount: int = 1
    """How many tasks it changed, or other things."""
    things: Sequence[str] = ()
    """The ids of these, if they are few."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """The filter that named them; empty where they were named one by one."""
    folded: bool = False
    """Whether it was not written as a line of the audit in its own commit: by older code, or by a system that writes deeds itself."""
    number: int | None = None
    """Its place in the chain; None until it is linked, and where there is none."""

    @property
    def task_id(self) -> str | None:
        """The one thing that it was done to; None where there are more."""
        return self.things[0] if self.amount == 1 and self.things else None
