"""`redrive tasks`: look at tasks, add them, bring dead ones back or end them."""

import json as json_module
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from redrive.cli.listing import listed, say_rest
from redrive.cli.opened import Ledgers, on_ledgers
from redrive.cli.options import (
    AfterOption,
    ByOption,
    CauseOption,
    ErrorOption,
    KeyOption,
    KindOption,
    OlderOption,
    YesOption,
    duration_option,
)
from redrive.cli.output import PROBLEM, complain, out, print_json, say, when
from redrive.cli.task_acts import AskedAct, by_lane, cancel_running
from redrive.cli.task_view import SeenTask, coloured, failures_of
from redrive.cli.where import Where, with_ledgers, with_options
from redrive.core.durations import ZERO
from redrive.core.failure import redact
from redrive.core.states import Act, State
from redrive.core.table import TASKS
from redrive.core.task import Added, Task
from redrive.errors import UsageError
from redrive.operator.asked import read_filter
from redrive.operator.json_views import (
    id_json,
    task_json,
)
from redrive.operator.names import find_named
from redrive.ports import Filter

tasks = typer.Typer(help="Look at tasks, add them, bring dead ones back or end them.", no_args_is_help=True)

StateOption = Annotated[State | None, typer.Option("--state", help="Only tasks in this state.")]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="INSTANT", help="Only tasks that were in this state by then: 2026-01-31T09:00:00Z."
    ),
]

FILTER: dict[str, tuple[Any, Any]] = {
    "kind": (KindOption, None),
    "key": (KeyOption, None),
    "error": (ErrorOption, None),
    "cause": (CauseOption, None),
    "older_than": (OlderOption, None),
    "until": (UntilOption, None),
}
"""What is asked for wherever tasks are meant."""


# --- list -----------------------------------------------------------------------------------------------------------


@tasks.command("list")
@with_ledgers
@with_options("asked", {"state": (StateOption, None), **FILTER}, read_filter)
def list_tasks(
    limit: Annotated[int, typer.Option(help="How many to show.", min=1, max=1000)] = 50,
    after: AfterOption = None,
    *,
    asked: Filter,
    where: Where,
) -> None:
    """List the tasks of every ledger in the database, those of systems included, by ledger and then by id.

    Tables that your application has adopted need [cyan]--app[/]. Ledgers that could not be read are named.

    Example: [cyan]redrive tasks list --state dead --error Timeout --older-than 1h[/]
    """
    found = listed(
        lambda lane, cursor, most: lane.find(asked, cursor=cursor, limit=most),
        where, after=after, limit=limit,
    )  # fmt: skip
    if where.json:
        tasks = [{"ledger": ledger} | task_json(task) for ledger, task in found.items]
        print_json({"tasks": tasks, "after": found.after, "unseen": found.unseen})
    elif found.items:
        out().print(_table(found.items))
    else:
        say("no task matches")
    say_rest(found, where)


def _table(tasks: list[tuple[str, Task]]) -> Table:
    # At home ids and states must be whole in a narrow terminal; where there are others, their ledger comes first.
    ledgers = any(ledger != TASKS.name for ledger, _ in tasks)
    now = datetime.now(UTC)
    table = Table(box=None, header_style="bold", expand=True)
    for name in (*(["ledger"] if ledgers else []), "id", "state", "kind", "key", "failures", "due"):
        table.add_column(name, no_wrap=True)
    table.add_column("last error", no_wrap=True, overflow="ellipsis", ratio=1)
    for ledger, task in tasks:
        table.add_row(
            *([escape(ledger)] if ledgers else []),
            str(task.id), coloured(task.state), escape(_cut(task.kind, 32)), escape(_cut(task.key, 20)), failures_of(task),
            when(task.due_at, now=now), escape(redact(task.last_error or "").replace("\n", " ")),
        )  # fmt: skip
    return table


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


# --- show -----------------------------------------------------------------------------------------------------------


@tasks.command("show")
@with_ledgers
def show(
    id: Annotated[str, typer.Argument(metavar="ID|KEY", help="The task's id, or its key.")],
    *,
    where: Where,
) -> None:
    """Show one task: its row, payload, every try with the reason for what was decided, and who acted on it.

    With [cyan]--app[/] also the exact times of the retries to come, which only its policy knows.

    Example: [cyan]redrive tasks show invoice-7 --app shop.tasks:app[/]
    """

    async def look(ledgers: Ledgers) -> SeenTask | None:
        [(chosen, _)] = (await by_lane(ledgers.lanes, [id])).items()
        task = await find_named(await chosen.ledger(), id)
        if task is None:
            return None
        parked = await chosen.parked(task)
        return SeenTask(
            chosen.name, task, parked, await chosen.attempts(task.id), await chosen.deeds(task.id),
            chosen.to_come(task, parked=parked),
        )  # fmt: skip

    found = on_ledgers(look, where)
    if found is None:
        complain(f"there is no task with the id or key {id!r}")
        raise typer.Exit(PROBLEM)
    if where.json:
        print_json(found.json())
    else:
        found.show()


# --- add ------------------------------------------------------------------------------------------------------------


@tasks.command("add")
@with_ledgers
def add(
    kind: Annotated[str, typer.Argument(help="What is to be done; it chooses the handler.")],
    payload: Annotated[str, typer.Argument(help="JSON for the handler; - reads it from stdin.")] = "null",
    key: Annotated[str | None, typer.Option(help="Adding the same key again adds no second task.")] = None,
    delay: Annotated[timedelta, duration_option("--delay", "When the first try is due.")] = ZERO,
    attempts: Annotated[int | None, typer.Option(help="How many tries in all, instead of the policy's.", min=1)] = None,
    deadline: Annotated[timedelta | None, duration_option("--deadline", "It is not tried after this.")] = None,
    *,
    where: Where,
) -> None:
    """Add a task.

    Example: [cyan]redrive tasks add send_invoice '{"invoice": 7}' --key invoice-7[/]
    """
    try:
        given = json_module.loads(sys.stdin.read() if payload == "-" else payload)
    except ValueError as error:
        raise UsageError(f"the payload is not JSON ({error}): quote it, such as '{{\"invoice\": 7}}'") from None

    async def store(ledgers: Ledgers) -> Added:
        [chosen] = ledgers.lanes
        return await chosen.add(kind, given, key=key, delay=delay, attempts=attempts, deadline=deadline)

    added = on_ledgers(store, replace(where, lane=where.lane or TASKS.name), create=True)
    id_ = escape(str(added.id))
    if where.json:
        print_json({"id": id_json(added.id), "key": added.key, "new": added.new, "same_payload": added.same_payload})
    elif added.new:
        say(f"added task [bold]{id_}[/]: `redrive tasks show {id_}` follows it")
    else:
        other = "" if added.same_payload else ", with another payload"
        say(f"task [bold]{id_}[/] has this key already{other}; nothing was added")


# --- redrive, cancel and resolve ------------------------------------------------------------------------------------

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; required, and kept with each task.")]
ACT: dict[str, tuple[Any, Any]] = {
    "names": (
        Annotated[list[str] | None, typer.Argument(metavar="[ID|KEY]...", help="The tasks, by id or key.")],
        None,
    ),
    **FILTER,
    "every": (Annotated[bool, typer.Option("--all", help="All tasks that this can be done to.")], False),
    "at_most": (
        Annotated[
            int | None,
            typer.Option("--at-most", help="Change at most this many, such as the number you were shown.", min=0),
        ],
        None,
    ),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Only count.")], False),
    "reason": (ReasonOption, ""),
    "by": (ByOption, None),
    "yes": (YesOption, False),
}
"""What every act on tasks is told."""
CANCEL = {name: option for name, option in ACT.items() if name != "cause"}
"""Only dead tasks have a cause."""


@tasks.command("redrive")
@with_ledgers
@with_options("given", ACT, dict)
def redrive(*, given: dict[str, Any], where: Where) -> None:
    """Send dead tasks back to waiting, due now, with a fresh budget. Their history stays.

    Example: [cyan]redrive tasks redrive --kind send_invoice --error Timeout --reason "mail server is back"[/]
    """
    _act(Act.REDRIVE, given, where)


@tasks.command("cancel")
@with_ledgers
@with_options("given", CANCEL, dict)
def cancel(
    running: Annotated[
        bool, typer.Option("--running", help="Running tasks, by id or key: their handlers are told to end.")
    ] = False,
    *,
    given: dict[str, Any],
    where: Where,
) -> None:
    """Cancel waiting tasks; with [cyan]--running[/], tasks that are running now.

    Example: [cyan]redrive tasks cancel 17 18 --reason "sent by hand"[/]
    """
    if running:
        names, reason, by = given["names"], given["reason"], given["by"]
        if not names or any(
            given[name] != CANCEL[name][1] for name in CANCEL.keys() - {"names", "reason", "by", "yes"}
        ):
            raise UsageError(
                "--running takes tasks by id or key, and nothing else: redrive tasks cancel 17 --running --reason …"
            )
        cancel_running(names, reason, by, where)
    else:
        _act(Act.CANCEL, given, where)


class Ended(StrEnum):
    """How a task ends that a person has dealt with."""

    DONE = State.DONE.value
    CANCELLED = State.CANCELLED.value


@tasks.command("resolve")
@with_ledgers
@with_options("given", ACT, dict)
def resolve(
    end: Annotated[Ended, typer.Option("--as", help="How they end.")] = Ended.DONE,
    *,
    given: dict[str, Any],
    where: Where,
) -> None:
    """End dead tasks as done or cancelled, because you have dealt with them.

    Example: [cyan]redrive tasks resolve invoice-7 --reason "paid by hand"[/]
    """
    _act(Act.RESOLVE, given, where, State(end))


def _act(act: Act, given: dict[str, Any], where: Where, end: State = State.DONE) -> None:
    asked = read_filter(**{name: given.pop(name) for name in FILTER if name in given})
    AskedAct(act, asked, **given, end=end).run(where)
