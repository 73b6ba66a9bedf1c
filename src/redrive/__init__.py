"""Durable retries for Python, over any table, on SQLite and PostgreSQL."""

from redrive._version import __version__
from redrive.app import Redrive, Workers
from redrive.core import jitter
from redrive.core.backoff import Exponential, Fixed, Linear, Schedule
from redrive.core.durations import days, hours, minutes, parse_duration, seconds
from redrive.core.failure import ErrorClass, describe_error, redact, safe_text
from redrive.core.outcome import Cancelled, Snoozed
from redrive.core.policy import Policy
from redrive.core.preview import Try, preview
from redrive.core.states import State
from redrive.core.table import Counts, LedgerTable, Words
from redrive.core.task import Added, Attempt, NewTask, Task
from redrive.engine.handlers import Context
from redrive.engine.worker import WorkerSettings
from redrive.errors import (
    BusinessError,
    PermanentError,
    RateLimitedError,
    RedriveError,
    TransientError,
    UsageError,
)
from redrive.lane import Lane, make_task
from redrive.operator.acts import Acted
from redrive.ports import Filter, Page

__all__ = [
    "Acted",
    "Added",
    "Attempt",
    "BusinessError",
    "Cancelled",
    "Context",
    "Counts",
    "ErrorClass",
    "Exponential",
    "Filter",
    "Fixed",
    "Lane",
    "LedgerTable",
    "Linear",
    "NewTask",
    "Page",
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
    "Try",
    "UsageError",
    "Words",
    "WorkerSettings",
    "Workers",
    "__version__",
    "days",
    "describe_error",
    "hours",
    "jitter",
    "make_task",
    "minutes",
    "parse_duration",
    "preview",
    "redact",
    "safe_text",
    "seconds",
]
