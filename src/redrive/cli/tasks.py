"""`redrive tasks`: look at tasks, add them, bring dead ones back."""

import json as json_module
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from redrive.cli.common import (
    PROBLEM,
    AppOption,
    DatabaseOption,
    JsonOption,
    LaneOption,
    YesOption,
    choose_lane,
    complain,
    duration_option,
    err,
    exactly,
    opened_store,
    os_user,
    out,
    print_json,
    run,
    say,
    when,
)
from redrive.core.durations import ZERO, format_duration
from redrive.core.preview import Try
from redrive.core.states import Act, State
from redrive.core.task import Added, Attempt, Deed, Task
from redrive.errors import UsageError
from redrive.lane import Lane
from redrive.operator.acts import PAST, Acted
from redrive.operator.asked import read_filter
from redrive.operator.json_views import (
    attempt_json,
    deed_json,
    explained,
    id_json,
    instant_json,
    redacted,
    task_json,
    try_json,
)
from redrive.operator.names import find_named, read_names
from redrive.ports import Filter, Page

REFUSED_SHOWN_MAX = 20
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
    after: Annotated[str | None, typer.Option(help="Continue after this id, as the last page said.")] = None,
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """List tasks in the order of their ids.

    Example: [cyan]redrive tasks list --state dead --error Timeout --older-than 1h[/]
    """

    asked = read_filter(state=state, kind=kind, key=key, error=error, cause=cause, older_than=older_than, until=until)

    async def work() -> Page[Task]:
        async with opened_store(database, app) as store:
            return await choose_lane(store, lane).find(asked, cursor=after, limit=limit)

    page = run(work())
    if json:
        following = None if page.cursor is None else id_json(page.cursor)
        print_json({"tasks": [task_json(task) for task in page.items], "after": following})
        return
    if not page.items:
        say("no task matches")
        return
    now = datetime.now(UTC)
    table = Table(box=None, header_style="bold", expand=True)
    for name in ("id", "state", "kind", "key", "failures", "due"):
        table.add_column(name, no_wrap=True)
    table.add_column("last error", no_wrap=True, overflow="ellipsis", ratio=1)
    for task in page.items:
        table.add_row(
            str(task.id), _coloured(task.state), escape(_cut(task.kind, 32)), escape(_cut(task.key, 20)), _failures(task),
            when(task.due_at, now=now), escape((task.last_error or "").replace("\n", " ")),
        )  # fmt: skip
    out().print(table)
    if page.cursor is not None:
        say(f"[dim]there are more: --after {escape(str(page.cursor))}[/]")


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

    async def work() -> tuple[Task, list[Attempt], list[Deed], list[Try] | None] | None:
        async with opened_store(database, app) as store:
            chosen = choose_lane(store, lane)
            task = await find_named(await chosen.ledger(), id)
            if task is None:
                return None
            return task, await chosen.attempts(task.id), await chosen.deeds(task.id), chosen.to_come(task)

    found = run(work())
    if found is None:
        complain(f"there is no task with the id or key {id!r}")
        raise typer.Exit(PROBLEM)
    task, attempts, deeds, to_come = found
    if json:
        print_json(
            task_json(task, payload=True)
            | {
                "attempts": [attempt_json(one) for one in attempts],
                "deeds": [deed_json(deed) for deed in deeds],
                "to_come": None if to_come is None else [try_json(one) for one in to_come],
            }
        )
        return
    console = out()
    _show_row(console, task)
    _show_attempts(console, attempts)
    _show_deeds(console, deeds)
    _show_to_come(console, task, to_come)


def _show_row(console: Console, task: Task) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    rows: list[tuple[str, str | None]] = [
        ("id", str(task.id)),
        ("key", escape(task.key)),
        ("kind", escape(task.kind)),
        ("state", _coloured(task.state)),
        ("failures", _failures(task)),
        ("redrives", str(task.redrives) if task.redrives else None),
        ("due", f"{exactly(task.due_at)} ({when(task.due_at)})" if task.due_at else None),
        ("lease until", exactly(task.lease_until) if task.lease_until else None),
        ("deadline", exactly(task.deadline_at) if task.deadline_at else None),
        ("created", exactly(task.created_at) if task.created_at else None),
        ("ended", exactly(task.ended_at) if task.ended_at else None),
        ("last error", escape(task.last_error) if task.last_error else None),
        ("payload", escape(json_module.dumps(redacted(task.payload), ensure_ascii=False, indent=2))),
    ]
    for name, value in rows:
        if value is not None:
            grid.add_row(name, value)
    console.print(grid)


def _show_attempts(console: Console, attempts: list[Attempt]) -> None:
    console.print(f"\n[bold]{len(attempts) or 'no'} attempt{'' if len(attempts) == 1 else 's'}[/]")
    for one in attempts:
        took = "" if one.duration is None else f", took {format_duration(one.duration)}"
        started = one.started_at or one.ended_at
        console.print(
            f"  {one.number}. {exactly(started)} [{COLOURS[one.state]}]{one.outcome}[/] → {one.state}"
            f"[dim]{took}, by {escape(one.worker)}[/]"
        )
        if one.error:
            console.print(f"     {escape(one.error)}")
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
        async with opened_store(database, app, create=True) as store:
            chosen = choose_lane(store, lane)
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
ByOption = Annotated[str | None, typer.Option("--by", help="Who does it; without it the name you are logged in with.")]


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
    act = _Act(Act.REDRIVE, asked, ids, every, at_most, dry_run, reason, by, yes)
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
    """End waiting tasks as cancelled.

    Example: [cyan]redrive tasks cancel 17 18 --reason "sent by hand"[/]
    """
    asked = read_filter(kind=kind, key=key, error=error, older_than=older_than, until=until)
    act = _Act(Act.CANCEL, asked, ids, every, at_most, dry_run, reason, by, yes)
    act.run(database, app, lane, json=json)


@dataclass(frozen=True, slots=True)
class _Act:
    """An act as it was asked for: counted first, confirmed, then done on what was counted and nothing else."""

    act: Act
    asked: Filter
    names: list[str] | None
    every: bool
    at_most: int | None
    dry_run: bool
    reason: str
    by: str | None
    yes: bool

    def __post_init__(self) -> None:
        if self.asked == Filter(until=self.asked.until) and not (self.names or self.every):
            raise UsageError("say which tasks: ids, --kind, --key, --error, --cause, --older-than, or --all")
        if not (self.dry_run or self.reason.strip()):
            raise UsageError("say why: --reason is kept with each task")

    @property
    def actor(self) -> str:
        """Who does it."""
        return self.by if self.by is not None else os_user()

    def run(self, database: str | None, app: str | None, lane: str | None, *, json: bool) -> None:
        """Do it, and say what it came to."""

        async def work() -> Acted:
            async with opened_store(database, app) as opened:
                return await self._work(choose_lane(opened, lane))

        acted = run(work())
        if json:
            self._print_json(acted)
        else:
            self._say(acted)
        if not (acted.matched if self.dry_run else acted.changed):
            raise typer.Exit(PROBLEM)

    async def _work(self, lane: Lane) -> Acted:
        change = lane.redrive if self.act is Act.REDRIVE else lane.cancel
        asked = self.asked
        said: dict[str, Any] = {"actor": self.actor, "reason": self.reason.strip()}
        if self.names:
            ids, unknown = await read_names(await lane.ledger(), self.names)
            if unknown:  # a mistake in one name stops it all: nobody wants half of what was meant
                raise UsageError("; ".join(unknown.values()))
            asked = replace(asked, ids=ids)
        seen = await change(asked, dry_run=True, at_most=self.at_most, **said)
        if self.dry_run or not seen.matched:
            return seen
        if seen.matched > 1 and not self.yes and not _confirmed(self.act, seen.matched):
            return seen
        with _progress(self.act, seen.matched) as advance:
            return await change(asked, until=seen.until, at_most=seen.matched, progress=advance, **said)

    def _print_json(self, acted: Acted) -> None:
        changed = [id_json(id_) for id_ in acted.changed]
        refused = {str(id_): reason for id_, reason in acted.refused.items()}
        print_json(
            {
                "act": self.act.value,
                "matched": acted.matched,
                "changed": changed,
                "refused": refused,
                "until": instant_json(acted.until),
                "dry_run": self.dry_run,
            }
        )

    def _say(self, acted: Acted) -> None:
        for id_, reason in [*acted.refused.items()][:REFUSED_SHOWN_MAX]:
            say(f"task {escape(str(id_))} was left alone: {escape(reason)}")
        if self.dry_run:
            say(f"would {self.act} {acted.matched} task{'' if acted.matched == 1 else 's'}")
        elif acted.matched:
            say(f"{self.act}: {len(acted.changed)} of {acted.matched} changed, by {escape(self.actor)}")
        elif not acted.refused:
            before = "dead" if self.act is Act.REDRIVE else "waiting"
            say(f"no task matches: only {before} tasks can be {PAST[self.act]}")


def _confirmed(act: Act, amount: int) -> bool:
    return typer.confirm(f"{act} {amount} tasks?", err=True)


@contextmanager
def _progress(act: Act, amount: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while many tasks are changed."""
    columns = TextColumn(act.value), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err(), transient=True, disable=amount < 2) as bar:
        row = bar.add_task("", total=amount)
        yield lambda done: bar.advance(row, done)
