"""Durable retries for Python, over any table, on SQLite and PostgreSQL.

What a program needs to add tasks, handle them and say how they are retried is here. The rest is one level down, each in
the module of its idea: `redrive.app`, `redrive.lane`, `redrive.policies`, `redrive.gates`, `redrive.effects`, `redrive.errors`, `redrive.testing`; and
`redrive.extend` for whoever writes a system.
"""

from redrive._version import __version__
from redrive.app import Redrive
from redrive.core import jitter
from redrive.core.backoff import Exponential, Fixed, Linear, Schedule
from redrive.core.durations import days, hours, minutes, seconds
from redrive.core.outcome import Cancelled, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.table import LedgerTable, Words
from redrive.core.task import Task
from redrive.engine.context import Context
from redrive.errors import BusinessError, PermanentError, RateLimitedError, RedriveError, TransientError
from redrive.ports import Filter

__all__ = [
    "BusinessError",
    "Cancelled",
    "Context",
    "Exponential",
    "Filter",
    "Fixed",
    "LedgerTable",
    "Linear",
    "PermanentError",
    "Policy",
    "RateLimitedError",
    "Redrive",
    "RedriveError",
    "Schedule",
    "Snoozed",
    "State",
    "Task",
    "TransientError",
    "Words",
    "__version__",
    "days",
    "hours",
    "jitter",
    "minutes",
    "seconds",
]
