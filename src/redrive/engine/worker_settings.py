"""What a worker is told before it begins."""

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from redrive.core.durations import SpanField, format_duration, read_span
from redrive.core.states import TERMINAL, State
from redrive.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker works; the defaults are sane."""

    concurrency: int = 100
    """How many handlers run at once. Where tasks have tenants a quarter more, for tenants that have less than their share."""
    lease: SpanField = SpanField(timedelta(seconds=30))
    """How long a claim holds without a sign of life; extended at half time."""
    batch: int = 1000
    """How many tasks are claimed or settled in one statement, at most."""
    grace: SpanField = SpanField(timedelta(seconds=10))
    """How long a stopping worker waits for its handlers before it releases them."""
    poll: SpanField = SpanField(timedelta(seconds=1))
    """The safety net: how long a worker waits for a wake-up before it looks by itself."""
    retention: Mapping[State, timedelta] = field(default_factory=dict)
    """How long ended tasks are kept, by state; a state that is not named here is kept for ever."""
    prune_every: SpanField = SpanField(timedelta(hours=1))
    """How often tasks older than that are deleted."""

    def __post_init__(self) -> None:
        for name, most in (("concurrency", 10_000), ("batch", 5_000)):
            amount = getattr(self, name)
            if isinstance(amount, bool) or not isinstance(amount, int) or not 1 <= amount <= most:
                raise SettingsError(f"{name} must be a whole number from 1 to {most:,}, not {amount!r}")
        for name, least in (("lease", 1), ("poll", 0.01), ("grace", 0), ("prune_every", 1)):
            if getattr(self, name) < timedelta(seconds=least):
                raise SettingsError(f"{name} must be at least {least}s, not {format_duration(getattr(self, name))}")
        for state in self.retention:
            if state not in TERMINAL:
                raise SettingsError(f"retention is for tasks that have ended, not for {state!r}")
        kept = {state: read_span("retention", span) for state, span in self.retention.items()}
        object.__setattr__(self, "retention", kept)


def worker_name() -> str:
    """A name that no other worker has: host, process and a few random letters."""
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(3)}"
