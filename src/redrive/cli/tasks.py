"""`redrive tasks`: look at tasks, add them, bring dead ones back."""

import json as json_module
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from redrive.cli.common import (
    PROBLEM,
    AppOption,
    DatabaseOption,
    JsonOption,
    LaneOption,
    LedgersListed,
    YesOption,
    complain,
    duration_option,
    exactly,
    list_ledgers,
    opened_ledgers,
    out,
    print_json,
    run,
    say,
    when,
)
from redrive.cli.task_acts import AskedAct, by_lane, cancel_running
from redrive.core.durations import ZERO, format_duration
from redrive.core.failure import redact
from redrive.core.preview import Try
from redrive.core.stack import stack_lines
from redrive.core.states import Act, State
from redrive.core.table import TASKS
from redrive.core.task import Added, Attempt, Deed, Task
from redrive.errors import UsageError
from redrive.operator.asked import read_filter
from redrive.operator.gates import ParkedTask
from redrive.operator.json_views import (
    attempt_json,
    deed_json,
    explained,
    id_json,
    parked_json,
    redacted,
    task_json,
    try_json,
)
from redrive.operator.names import find_named

COLOURS = {
    State.WAITING: "yellow",
    State.CLAIMED: "cyan",
    State.DONE: "green",
    State.DEAD: "red",
    State.CANCELLED: "dim",
}

tasks = typer.Typer(help="Look at tasks, add them, bring dead ones back.", no_args_is_help=True)

StateOption = Annotated[State | None, typer.Option("--state", help="Only tasks in this state.")]
KindOption = Annotated[str | None, typer.Option("--kind", help="Only tasks of this kind.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Only the task with this key.")]
ErrorOption = Annotated[str | None, typer.Option("--error", help="Only tasks whose last error contains this text.")]
CauseOption = Annotated[
    str | None, typer.Option("--cause", help="Only dead tasks with this failure cause, as the dashboard groups them.")
]
OlderOption = Annotated[
    timedelta | None, duration_option("--older-than", "Only tasks that have not changed for this long.")
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="INSTANT", help="Only tasks that were in this state by then: 2026-01-31T09:00:00Z."
    ),
]


# --- list -----------------------------------------------------------------------------------------------------------


@tasks.command("list")
def list_tasks(
    state: StateOption = None,
    kind: KindOption = None,
    key: KeyOption = None,
    error: ErrorOption = None,
    cause: CauseOption = None,
    older_than: OlderOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option(help="How many to show.", min=1, max=1000)] = 50,
    after: Annotated[str | None, typer.Option(help="Continue there, as the last page said.")] = None,
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """List the tasks of all ledgers of the database, those of systems too, ledger by ledger and in the order of their ids.

    Tables that your application has adopted are known with [cyan]--app[/] only. What could not be looked at is said.

    Example: [cyan]redrive tasks list --state dead --error Timeout --older-than 1h[/]
    """

    asked = read_filter(state=state, kind=kind, key=key, error=error, cause=cause, older_than=older_than, until=until)

    async def work() -> LedgersListed[Task]:
        async with opened_ledgers(database, app, lane) as ledgers:
            return await list_ledgers(
                ledgers,
                lambda lane, cursor, most: lane.find(asked, cursor=cursor, limit=most),
                after=after,
                limit=limit,
            )

    found = run(work())
    if json:
        tasks = [{"ledger": ledger} | task_json(task) for ledger, task in found.items]
        print_json({"tasks": tasks, "after": found.after, "unseen": found.unseen})
    elif found.items:
        out().print(_table(found.items))
    else:
        say("no task matches")
    for name, reason in found.unseen.items():
        say(f"[yellow]not looked at: {escape(name)}[/]: {escape(reason)}")
    if found.after is not None and not json:
        say(f"[dim]there are more: --after {escape(found.after)}[/]")


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
            str(task.id), _coloured(task.state), escape(_cut(task.kind, 32)), escape(_cut(task.key, 20)), _failures(task),
            when(task.due_at, now=now), escape(redact(task.last_error or "").replace("\n", " ")),
        )  # fmt: skip
    return table


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _coloured(state: State) -> str:
    return f"[{COLOURS[state]}]{state}[/]"


def _failures(task: Task) -> str:
    return str(task.failures) if task.failures_max is None else f"{task.failures} of {task.failures_max}"


# --- show -----------------------------------------------------------------------------------------------------------


@tasks.command("show")
def show(
    id: Annotated[str, typer.Argument(metavar="ID|KEY", help="The task's id, or its key.")],
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show one task: its row, payload, every try with the reason for what was decided, and who acted on it.

    With [cyan]--app[/] also the exact times of the retries to come, which only its policy knows.

    Example: [cyan]redrive tasks show invoice-7 --app shop.tasks:app[/]
    """

    async def work() -> tuple[str, Task, list[Attempt], list[Deed], list[Try] | None, ParkedTask | None] | None:
        async with opened_ledgers(database, app, lane) as ledgers:
            [(chosen, _)] = (await by_lane(ledgers.lanes, [id])).items()
            task = await find_named(await chosen.ledger(), id)
            if task is None:
                return None
            parked = await chosen.parked(task)
            to_come = chosen.to_come(task, parked=parked)
            return chosen.name, task, await chosen.attempts(task.id), await chosen.deeds(task.id), to_come, parked

    found = run(work())
    if found is None:
        complain(f"there is no task with the id or key {id!r}")
        raise typer.Exit(PROBLEM)
    ledger, task, attempts, deeds, to_come, parked = found
    if json:
        print_json(
            {"ledger": ledger}
            | task_json(task, payload=True)
            | {
                "attempts": [attempt_json(one) for one in attempts],
                "deeds": [deed_json(deed) for deed in deeds],
                "to_come": None if to_come is None else [try_json(one) for one in to_come],
                "parked": parked_json(parked),
            }
        )
        return
    console = out()
    _show_row(console, ledger, task, parked)
    _show_attempts(console, attempts)
    _show_deeds(console, deeds)
    _show_to_come(console, task, to_come)


def _show_row(console: Console, ledger: str, task: Task, parked: ParkedTask | None) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    rows: list[tuple[str, str | None]] = [
        ("ledger", escape(ledger)),
        ("id", str(task.id)),
        ("key", escape(task.key)),
        ("kind", escape(task.kind)),
        ("state", _coloured(task.state)),
        ("failures", _failures(task)),
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
    for name, value in rows:
        if value is not None:
            grid.add_row(name, value)
    console.print(grid)


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


def _show_deeds(console: Console, deeds: list[Deed]) -> None:
    if deeds:
        console.print("\n[bold]who acted on it[/]")
    for deed in deeds:
        reason = f": {escape(deed.reason)}" if deed.reason else ""
        console.print(f"  {exactly(deed.at)} {deed.act} by {escape(deed.actor)}{reason}")


def _show_to_come(console: Console, task: Task, to_come: list[Try] | None) -> None:
    if to_come is None:
        if task.state in (State.WAITING, State.CLAIMED):
            say("[dim]the times of the retries to come need the policy: --app MODULE:APP[/]")
        return
    if to_come:
        console.print("\n[bold]to come, if every try fails[/]")
    for one in to_come:
        console.print(f"  {one.number}. {exactly(one.at)} ({when(one.at)})")


# --- add ------------------------------------------------------------------------------------------------------------


@tasks.command("add")
def add(
    kind: Annotated[str, typer.Argument(help="What is to be done; it chooses the handler.")],
    payload: Annotated[str, typer.Argument(help="JSON for the handler; - reads it from stdin.")] = "null",
    key: Annotated[str | None, typer.Option(help="Adding the same key again adds nothing.")] = None,
    delay: Annotated[timedelta, duration_option("--delay", "When the first try is due.")] = ZERO,
    attempts: Annotated[int | None, typer.Option(help="How many tries in all, instead of the policy's.", min=1)] = None,
    deadline: Annotated[timedelta | None, duration_option("--deadline", "After this it is not tried any more.")] = None,
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Add a task.

    Example: [cyan]redrive tasks add send_invoice '{"invoice": 7}' --key invoice-7[/]
    """
    try:
        given = json_module.loads(sys.stdin.read() if payload == "-" else payload)
    except ValueError as error:
        raise UsageError(f"the payload is not JSON ({error}): quote it, such as '{{\"invoice\": 7}}'") from None

    async def work() -> Added:
        async with opened_ledgers(database, app, lane or TASKS.name, create=True) as ledgers:
            [chosen] = ledgers.lanes
            return await chosen.add(kind, given, key=key, delay=delay, attempts=attempts, deadline=deadline)

    added = run(work())
    id_ = escape(str(added.id))
    if json:
        print_json({"id": id_json(added.id), "key": added.key, "new": added.new})
    elif added.new:
        say(f"added task [bold]{id_}[/]: `redrive tasks show {id_}` follows it")
    else:
        say(f"the key is known: it is task [bold]{id_}[/], nothing was added")


# --- redrive and cancel ---------------------------------------------------------------------------------------------

IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID|KEY]...", help="The tasks, by id or key.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every task that can be, where nothing else says which.")]
AtMostOption = Annotated[
    int | None, typer.Option("--at-most", help="Change no more than this many: the number that you were shown.", min=0)
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; required, and kept with each task.")]
ByOption = Annotated[str | None, typer.Option("--by", help="Who does it; by default the name you are logged in with.")]


@tasks.command("redrive")
def redrive(
    ids: IdsArgument = None,
    kind: KindOption = None,
    key: KeyOption = None,
    error: ErrorOption = None,
    cause: CauseOption = None,
    older_than: OlderOption = None,
    until: UntilOption = None,
    every: AllOption = False,  # noqa: FBT002
    at_most: AtMostOption = None,
    dry_run: DryOption = False,  # noqa: FBT002
    reason: ReasonOption = "",
    by: ByOption = None,
    yes: YesOption = False,  # noqa: FBT002
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Send dead tasks back to waiting, due now, with a fresh budget. Their history stays.

    Example: [cyan]redrive tasks redrive --kind send_invoice --error Timeout --reason "mail server is back"[/]
    """
    asked = read_filter(kind=kind, key=key, error=error, cause=cause, older_than=older_than, until=until)
    act = AskedAct(Act.REDRIVE, asked, ids, every, at_most, dry_run, reason, by, yes)
    act.run(database, app, lane, json=json)


@tasks.command("cancel")
def cancel(
    ids: IdsArgument = None,
    kind: KindOption = None,
    key: KeyOption = None,
    error: ErrorOption = None,
    older_than: OlderOption = None,
    until: UntilOption = None,
    every: AllOption = False,  # noqa: FBT002
    running: Annotated[  # noqa: FBT002
        bool, typer.Option("--running", help="Tasks that run, by id or key: their handlers are told to end.")
    ] = False,
    at_most: AtMostOption = None,
    dry_run: DryOption = False,  # noqa: FBT002
    reason: ReasonOption = "",
    by: ByOption = None,
    yes: YesOption = False,  # noqa: FBT002
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """End waiting tasks as cancelled; with [cyan]--running[/] those that run now.

    Example: [cyan]redrive tasks cancel 17 18 --reason "sent by hand"[/]
    """
    if running:
        if not ids or kind or key or error or older_than or until or every or dry_run or at_most is not None:
            raise UsageError(
                "--running takes tasks by id or key, and nothing else: redrive tasks cancel 17 --running --reason …"
            )
        cancel_running(ids, reason, by, database, app, lane, json=json)
        return
    asked = read_filter(kind=kind, key=key, error=error, older_than=older_than, until=until)
    act = AskedAct(Act.CANCEL, asked, ids, every, at_most, dry_run, reason, by, yes)
    act.run(database, app, lane, json=json)
