"""A task before it is stored: how it is made, and what handlers say of it (its payload, its gate, and that nobody handles its kind)."""

import logging
import secrets
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, TypedDict

from redrive.core.durations import ZERO, Span
from redrive.core.gate_order import Priority, read_priority
from redrive.core.payload_types import as_json
from redrive.core.task import PAYLOAD_BYTES_MAX, NewTask
from redrive.engine.handlers import Handler, Handlers
from redrive.errors import PayloadError, UsageError
from redrive.observe.traces import current_trace

HANDLERS_NAMED_MAX = 10
SEEN_KINDS_MAX = 10_000
"""How many kinds are remembered, so that each is looked up and warned of once."""

_log = logging.getLogger("redrive")


class AddOptions(TypedDict, total=False):
    """What can be said about a task when it is added, besides its kind and payload."""

    key: str | None
    """What you know it by: adding it again is the same task. Without one it gets a random key."""
    delay: Span
    """How long after now its first try is due."""
    attempts: int | None
    """How many tries it has, in place of the policy's number."""
    deadline: Span | None
    """How long after now it may still be tried."""
    gate: str | None
    """The destination that it is for, whose limits it waits behind."""
    tenant: str | None
    """Whose it is."""
    priority: Priority | str | None
    """`"high"` or `"low"` goes before or behind others of its gate."""


def check_options(how: Mapping[str, Any], options: type[Any], sentence: str) -> None:
    """Refuse words that are not among these options, in a sentence that names both."""
    if unknown := how.keys() - options.__annotations__.keys():
        both = (sorted(unknown), options.__annotations__)
        raise UsageError(sentence.format(*(", ".join(f"{name}=" for name in names) for names in both)))


def check_made(tasks: Iterable[Any]) -> None:
    """Refuse what is not a task to be added."""
    for one in tasks:
        if not isinstance(one, NewTask):
            raise UsageError(f"add_many takes tasks that redrive.lane.make_task has made, not {one!r:.80}")


def make_task(
    kind: str,
    payload: Any = None,
    *,
    key: str | None = None,
    delay: Span = ZERO,
    attempts: int | None = None,
    deadline: Span | None = None,
    gate: str | None = None,
    tenant: str | None = None,
    priority: Priority | str | None = None,
    payload_bytes_max: int = PAYLOAD_BYTES_MAX,
) -> NewTask:
    """A task to be added, see `AddOptions`; without a key it gets a random one, and adding it again makes another task.

    `payload_bytes_max` is for a system whose payloads may be larger than 1 MiB.
    """
    return NewTask(
        kind=kind,
        key=secrets.token_hex(16) if key is None else key,
        payload=as_json(payload),
        delay=delay,
        failures_max=attempts,
        deadline=deadline,
        trace=current_trace(),
        gate=gate,
        tenant=tenant,
        priority=None if priority is None else read_priority(priority).level,
        payload_bytes_max=payload_bytes_max,
    )


def prepared(tasks: Iterable[NewTask], handlers: Handlers) -> list[NewTask]:
    """The tasks with payloads that fit their handlers, behind the gates that those name."""
    given = list(tasks)
    if handlers.has_typed:
        for task in given:
            _value_of(task, handlers.find(task.kind))
    if not handlers.has_gates and all(task.gate is None and task.tenant is None for task in given):
        return given
    return [_behind_gate(task, handlers.find(task.kind)) for task in given]


def _value_of(task: NewTask, handler: Handler | None) -> Any:
    """The payload as its handler gets it, or a `PayloadError`."""
    if handler is None or handler.payload is None:
        return task.payload
    try:
        return handler.payload.read(task.payload)
    except PayloadError as error:
        raise PayloadError(f"{task.kind!r}: {error}") from error


def _behind_gate(task: NewTask, handler: Handler | None) -> NewTask:
    if handler is None:
        return task
    gate = task.gate if task.gate is not None or handler.gate is None else handler.gate(_value_of(task, handler))
    return task if gate is None and task.tenant is None else task.behind(gate, handler.policy.deadline)


class UnhandledKinds:
    """Warns of kinds that no handler here takes, once of each."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._seen: set[str] = set()

    def look_at(self, tasks: Iterable[NewTask]) -> None:
        """Warn of the kinds of these tasks. A process without handlers only adds, and others work: it is not warned."""
        if not len(self._handlers):
            return
        kinds = {task.kind for task in tasks}
        if kinds <= self._seen:
            return
        for kind in sorted(kinds - self._seen):
            if self._handlers.find(kind) is None:
                there = ", ".join(handler.kind for handler in islice(self._handlers, HANDLERS_NAMED_MAX))
                more = len(self._handlers) - HANDLERS_NAMED_MAX
                there += f" and {more} more" if more > 0 else ""
                _log.warning(
                    "no handler here for %r: its tasks wait for a worker that has one; here are %s", kind, there
                )
        if len(self._seen) < SEEN_KINDS_MAX:
            self._seen |= kinds
