"""Sentry: one report for each task that dies, grouped by its cause. A try that will be made again is none.

    app = Redrive(url, observers=[SentryObserver()])

What is sent is what the history keeps: secrets are hidden, values of variables and payloads are not sent.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from redrive.core.decide import Settlement
from redrive.core.stack import Raised, read_stack
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.errors import needs_extra
from redrive.events import AttemptEnded, Event

with needs_extra("redrive.observe.sentry", "sentry"):
    import sentry_sdk

TASKS_MAX = 1000
"""Of how many tasks that wait for a retry the tries are remembered."""
TRIES_MAX = 20
"""How many of the last tries of a task are sent with its death."""


class SentryObserver:
    """Reports deaths, to Sentry as the application has set it up (`sentry_sdk.init`).

    A report has the tries that this process saw before, as breadcrumbs; the task's page has them all.
    """

    def __init__(self) -> None:
        self._tries: OrderedDict[tuple[str, TaskId], list[dict[str, Any]]] = OrderedDict()

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`. Sentry's own thread does the sending."""
        for event in events:
            if not isinstance(event, AttemptEnded):
                continue
            settlement = event.settlement
            about = (event.ledger, settlement.claim.task.id)
            if settlement.state is State.WAITING:
                if settlement.explanation is not None:
                    self._remember(about, settlement)
                continue
            before = self._tries.pop(about, [])
            if settlement.state is State.DEAD:
                sentry_sdk.capture_event(report_of(event.ledger, settlement, before))

    def _remember(self, about: tuple[str, TaskId], settlement: Settlement) -> None:
        tries = self._tries.setdefault(about, [])
        tries.append(_breadcrumb(settlement))
        del tries[:-TRIES_MAX]
        self._tries.move_to_end(about)
        if len(self._tries) > TASKS_MAX:
            self._tries.popitem(last=False)


def report_of(ledger: str, settlement: Settlement, before: Sequence[dict[str, Any]] = ()) -> Any:
    """The event of Sentry's for a death. Pure."""
    task, explanation = settlement.claim.task, settlement.explanation
    error = settlement.error or "dead"
    name, _, message = error.partition(": ")
    stack = None if explanation is None else explanation.stack
    chain = [] if stack is None else read_stack(stack.text)
    at = "" if stack is None else stack.at or ""
    report: dict[str, Any] = {
        "level": "error",
        "logger": "redrive",
        "transaction": task.kind,
        # A cause, as everywhere in redrive: a kind, the class of the error and the line of the user's code.
        "fingerprint": ["redrive", ledger, task.kind, name, at],
        "tags": {
            "redrive.ledger": ledger,
            "redrive.kind": task.kind,
            "redrive.verdict": explanation.verdict if explanation else "",
        },
        "contexts": {
            "redrive": {
                "task_id": str(task.id),
                "key": task.key,
                "failures": settlement.failures,
                "redrives": task.redrives,
                "decision": explanation.sentence() if explanation else "",
            }
        },
        "breadcrumbs": {"values": list(before)},
        # Sentry wants the cause first and what was raised at last last.
        "exception": {"values": [_exception(one) for one in reversed(chain)] or [{"type": name, "value": message}]},
    }
    report["exception"]["values"][-1] |= {"type": name, "value": message}
    return report


def _exception(raised: Raised) -> dict[str, Any]:
    frames = [
        {"filename": one.file, "lineno": one.line, "function": one.name, "context_line": one.code, "in_app": one.own}
        for one in raised.frames
    ]
    return {"type": raised.error, "value": "", "stacktrace": {"frames": frames}}


def _breadcrumb(settlement: Settlement) -> dict[str, Any]:
    ended = settlement.claim.claimed_at + settlement.elapsed
    said = settlement.explanation.sentence() if settlement.explanation else ""
    return {
        "category": "redrive.try",
        "level": "warning",
        "timestamp": ended.timestamp(),
        "message": f"try {settlement.claim.number}: {settlement.error}",
        "data": {"decision": said},
    }
