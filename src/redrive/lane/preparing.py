"""What handlers say of tasks that are about to be stored: whether the payload fits, behind which gate, and that nobody handles the kind."""

import logging
from collections.abc import Iterable
from itertools import islice
from typing import Any

from redrive.core.task import NewTask
from redrive.engine.handlers import Handler, Handlers
from redrive.errors import PayloadError

HANDLERS_NAMED_MAX = 10
SEEN_KINDS_MAX = 10_000
"""How many kinds are remembered, so that each is looked up and warned of once."""

_log = logging.getLogger("redrive")


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
                _log.warning("nobody here handles %r: its tasks wait for a worker that does; there is %s", kind, there)
        if len(self._seen) < SEEN_KINDS_MAX:
            self._seen |= kinds
