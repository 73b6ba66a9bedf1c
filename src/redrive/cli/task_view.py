"""One task with its history, as `redrive tasks show` prints it."""

import json as json_module
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape

from redrive.cli.output import exactly, out, print_deeds, print_rows, say, when
from redrive.core.durations import format_duration
from redrive.core.failure import redact
from redrive.core.preview import Try
from redrive.core.stack import stack_lines
from redrive.core.states import State
from redrive.core.task import Attempt, Deed, Task
from redrive.operator.gates import ParkedTask
from redrive.operator.json_views import attempt_json, deed_json, explained, parked_json, redacted, task_json, try_json

COLOURS = {
    State.WAITING: "yellow",
    State.CLAIMED: "cyan",
    State.DONE: "green",
    State.DEAD: "red",
    State.CANCELLED: "dim",
}


def coloured(state: State) -> str:
    """A state in its colour."""
    return f"[{COLOURS[state]}]{state}[/]"


def failures_of(task: Task) -> str:
    """How much of its budget a task has spent."""
    return str(task.failures) if task.failures_max is None else f"{task.failures} of {task.failures_max}"


@dataclass(frozen=True, slots=True)
class SeenTask:
    """What is known of one task."""

    ledger: str
    task: Task
    parked: ParkedTask | None
    attempts: list[Attempt]
    deeds: list[Deed]
    to_come: list[Try] | None

    def json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ledger": self.ledger,
            **task_json(self.task, payload=True),
            "attempts": [attempt_json(one) for one in self.attempts],
            "deeds": [deed_json(deed) for deed in self.deeds],
            "to_come": None if self.to_come is None else [try_json(one) for one in self.to_come],
            "parked": parked_json(self.parked),
        }

    def show(self) -> None:
        """For people."""
        console = out()
        _show_row(self.ledger, self.task, self.parked)
        _show_attempts(console, self.attempts)
        print_deeds(self.deeds)
        _show_to_come(console, self.task, self.to_come)


def _show_row(ledger: str, task: Task, parked: ParkedTask | None) -> None:
    print_rows(
        [
            ("ledger", escape(ledger)),
            ("id", str(task.id)),
            ("key", escape(task.key)),
            ("kind", escape(task.kind)),
            ("state", coloured(task.state)),
            ("failures", failures_of(task)),
            ("redrives", str(task.redrives) if task.redrives else None),
            ("gate", escape(task.gate) if task.gate else None),
            ("parked", escape(parked.explained()) if parked is not None else None),
            ("due", f"{exactly(task.due_at)} ({when(task.due_at)})" if task.due_at else None),
            ("lease until", exactly(task.lease_until) if task.lease_until else None),
            ("deadline", exactly(task.deadline_at) if task.deadline_at else None),
            ("created", exactly(task.created_at) if task.created_at else None),
            ("ended", exactly(task.ended_at) if task.ended_at else None),
            ("last error", escape(redact(task.last_error)) if task.last_error else None),
            ("payload", escape(json_module.dumps(redacted(task.payload), ensure_ascii=False, indent=2))),
        ]
    )


def _ran(span: timedelta) -> str:
    return format_duration(span) if span >= timedelta(milliseconds=1) else "less than 1ms"


def _show_attempts(console: Console, attempts: list[Attempt]) -> None:
    console.print(f"\n[bold]{len(attempts) or 'no'} attempt{'' if len(attempts) == 1 else 's'}[/]")
    for one in attempts:
        took = "" if one.duration is None else f", took {_ran(one.duration)}"
        started = one.started_at or one.ended_at
        version = "" if one.version is None else f" in version {one.version}"
        console.print(
            f"  {one.number}. {exactly(started)} [{COLOURS[one.state]}]{one.outcome}[/] → {one.state}"
            f"[dim]{took}, by {escape(one.worker + version)}[/]"
        )
        if one.error:
            console.print(f"     {escape(redact(one.error))}")
        for line in stack_lines(one.stack):
            console.print(f"     [dim]{escape(line)}[/]", highlight=False)
        sentence = explained(one.explanation)
        if sentence:
            console.print(f"     [dim]{escape(sentence)}[/]")


def _show_to_come(console: Console, task: Task, to_come: list[Try] | None) -> None:
    if to_come is None:
        if task.state in (State.WAITING, State.CLAIMED):
            say("[dim]the times of the retries to come need the policy: --app MODULE:APP[/]")
        return
    if to_come:
        console.print("\n[bold]to come, if every try fails[/]")
    for one in to_come:
        console.print(f"  {one.number}. {exactly(one.at)} ({when(one.at)})")
