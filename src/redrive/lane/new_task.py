"""A task as it is made before it is stored."""

import secrets
from typing import Any, TypedDict, Unpack

from redrive.core.durations import ZERO, Span, read_span
from redrive.core.gate_order import Priority, read_priority
from redrive.core.payload_types import as_json
from redrive.core.task import PAYLOAD_BYTES_MAX, NewTask
from redrive.observe.traces import current_trace


class AddOptions(TypedDict, total=False):
    """What can be said of a task when it is added, beside its kind and payload."""

    key: str | None
    """What you know it by: adding it again is the same task. Without one it gets a random key."""
    delay: Span
    """How long after now its first try is due."""
    attempts: int | None
    """How many tries it has, in place of the policy's number."""
    deadline: Span | None
    """How long after now it is tried."""
    gate: str | None
    """The destination that it is for, whose limits it waits for."""
    tenant: str | None
    """Whose it is."""
    priority: Priority | str | None
    """`"high"` or `"low"` goes before or behind others of its gate."""


def make_task(
    kind: str, payload: Any = None, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX, **how: Unpack[AddOptions]
) -> NewTask:
    """A task to be added; without a key it gets a random one, and adding it again makes another task.

    `payload_bytes_max` is for a system whose payloads may be larger than 1 MiB.
    """
    return _new_task(kind, as_json(payload), payload_bytes_max, **how)


def _new_task(
    kind: str,
    payload: Any,
    payload_bytes_max: int,
    *,
    key: str | None = None,
    delay: Span = ZERO,
    attempts: int | None = None,
    deadline: Span | None = None,
    gate: str | None = None,
    tenant: str | None = None,
    priority: Priority | str | None = None,
) -> NewTask:
    return NewTask(
        kind=kind,
        key=secrets.token_hex(16) if key is None else key,
        payload=payload,
        delay=delay if delay is ZERO else read_span("delay", delay),
        failures_max=attempts,
        deadline=None if deadline is None else read_span("deadline", deadline),
        trace=current_trace(),
        gate=gate,
        tenant=tenant,
        priority=None if priority is None else read_priority(priority).level,
        payload_bytes_max=payload_bytes_max,
    )
