"""Who did what to which task, or to what else people act on, and why."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One deed. `ledger` is what it was done to: a ledger, or what a system calls otherwise; `task_id` which one of that."""

    id: int | str
    ledger: str
    task_id: str
    at: datetime
    act: str
    actor: str
    reason: str
