"""`redrive operations`: bring dead tasks back step by step, with a brake; look at operations and steer them."""

import json as json_module
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from redrive.cli.listing import listed, say_rest
from redrive.cli.opened import Ledgers, on_ledgers, os_user
from redrive.cli.options import (
    AfterOption,
    ByOption,
    CauseOption,
    ErrorOption,
    KeyOption,
    KindOption,
    OlderOption,
)
from redrive.cli.output import PROBLEM, exactly, out, print_json, say, when
from redrive.cli.where import Where, with_ledgers
from redrive.core.operation import Fate, OperationState, share_words
from redrive.errors import UsageError
from redrive.lane import Lane
from redrive.operator.asked import read_filter
from redrive.operator.operation_views import (
    edit_json,
    failed_again_json,
    operation_json,
    plan_json,
    set_task_json,
    step_json,
)
from redrive.operator.operations import IDS_MAX, Operation, Plan, ramp_words
from redrive.ports import Filter
from redrive.settings import Settings, load

COLOURS = {
    OperationState.RUNNING: "cyan",
    OperationState.HALTED: "red",
    OperationState.PAUSED: "yellow",
    OperationState.UNAPPROVED: "yellow",
    OperationState.DONE: "green",
}
SHOWN_MAX = 20
FILE_BYTES_MAX = 1 << 20

operations = typer.Typer(help="Bring dead tasks back step by step, with a brake.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The operation.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; required, shown on its page and kept.")]
RateOption = Annotated[
    str | None, typer.Option("--rate", help="How many tasks per second, minute or hour: 20/s, 100/m.")
]
AllNowOption = Annotated[bool, typer.Option("--all-now", help="Everything at once: no steps, no rate, no brake.")]
HaltOption = Annotated[
    str | None, typer.Option("--halt", help="Stop automatically when more than this share fails again: 10%.")
]


@operations.command("start")
@with_ledgers
def start(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Dead tasks, by id or by key.")] = None,
    kind: KindOption = None,
    key: KeyOption = None,
    error: ErrorOption = None,
    cause: CauseOption = None,
    older_than: OlderOption = None,
    every: Annotated[bool, typer.Option("--all", help="All dead tasks.")] = False,
    steps: Annotated[str | None, typer.Option("--steps", help="How many tasks each step releases: 1,5,25,100.")] = None,
    rate: RateOption = None,
    halt: HaltOption = None,
    all_now: AllNowOption = False,
    at_most: Annotated[
        int | None,
        typer.Option("--at-most", help="At most this many; 1 tries a single task.", min=1, max=IDS_MAX),
    ] = None,
    patch: Annotated[
        str | None, typer.Option("--patch", help="A JSON Patch (RFC 6902) for each payload: JSON, or @FILE.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", help="A new payload for each task: JSON, or @FILE.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be taken.")] = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    *,
    where: Where,
) -> None:
    """Start bringing dead tasks back: one first, then 5, 25, 100, then the rest at the rate.

    It takes the tasks that match now, and none that die later. Any worker or service carries it on.

    Example: [cyan]redrive operations start --cause 9f86d081 --reason "bank is back" --rate 20/s --halt 10%[/]
    """
    asked = read_filter(kind=kind, key=key, error=error, cause=cause, older_than=older_than)
    if asked == Filter() and not (ids or every):
        raise UsageError("say which tasks: ids, --kind, --key, --error, --cause, --older-than, or --all")
    if ids and asked != Filter():
        raise UsageError("name tasks, or ask for them by a filter, not both")
    if not (dry_run or reason.strip()):
        raise UsageError("say why: --reason is kept with the operation and with each task")
    over = load(Settings).redrive_approvals
    how: dict[str, Any] = {"steps": steps, "rate": rate, "halt": halt, "all_now": all_now, "approval_over": over}
    how["at_most"] = at_most
    how |= {
        name: _given(f"--{name}", text) for name, text in (("patch", patch), ("payload", payload)) if text is not None
    }
    which: Any = ids or asked

    async def begin(ledgers: Ledgers) -> tuple[Plan, Operation | None]:
        chosen, plan = await _meant(ledgers.lanes, which, how)
        if dry_run or not plan.dead.amount:
            return plan, None
        return plan, await chosen.operations.start(which, actor=by or os_user(), reason=reason.strip(), **how)

    plan, started = on_ledgers(begin, where)
    if where.json:
        print_json(plan_json(plan) if started is None else operation_json(started, datetime.now(UTC)))
    else:
        _say_plan(plan)
        if started is not None:
            say(f"operation [bold]{started.id}[/] started: redrive operations show {started.id}")
    if not plan.dead.amount:
        raise typer.Exit(PROBLEM)


def _given(option: str, text: str) -> Any:
    if text.startswith("@"):
        try:
            with Path(text[1:]).open("rb") as file:
                text = file.read(FILE_BYTES_MAX + 1).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{option} {text}: {error}") from None
    try:
        return json_module.loads(text)
    except ValueError as error:
        raise UsageError(f"{option} is not JSON: {error}") from None


async def _meant(lanes: list[Lane], which: Any, how: dict[str, Any]) -> tuple[Lane, Plan]:
    """The one ledger that has such dead tasks, and what would be taken there."""
    plans: dict[Lane, Plan] = {}
    for lane in lanes:
        try:
            plans[lane] = await lane.operations.plan(which, **how)
        except UsageError:  # this ledger knows no such filter, edit or name; another may
            if len(lanes) == 1 or (lane is lanes[-1] and not plans):
                raise
    holders = [lane for lane, plan in plans.items() if plan.dead.amount]
    if len(holders) > 1:
        raise UsageError(
            f"an operation is of one ledger: say which with --lane: {', '.join(one.name for one in holders)}"
        )
    chosen = (holders or list(plans))[0]
    return chosen, plans[chosen]


def _say_plan(plan: Plan) -> None:
    dead = plan.dead
    say(f"[bold]{dead.amount:,}[/] dead tasks of {escape(plan.ledger)} match")
    if not dead.amount:
        return
    say(f"  kinds: {escape(', '.join(f'{kind} {amount:,}' for kind, amount in dead.kinds[:SHOWN_MAX]))}")
    say(f"  oldest and newest: died {exactly(dead.oldest)} and {exactly(dead.newest)}")
    for cause, text, amount in dead.causes[:SHOWN_MAX]:
        say(f"  {amount:,} died of {escape(cause)}: {escape(text)}")
    say(f"  released: {escape(ramp_words(plan.ramp))}")
    for kind, tries in plan.tries.items():
        at = ", ".join(when(one.at) for one in tries[:10])
        say(f"  tries of {escape(kind)}, if each fails: {at}")
    for one in plan.sampled:
        if one.why is not None:
            say(f"  [yellow]task {escape(str(one.task_id))} stays as it is[/]: {escape(one.why)}")
        for change in one.changes:
            say(
                f"  task {escape(str(one.task_id))} {escape(change.path)}: {escape(f'{change.before!r} → {change.after!r}')}"
            )
    if plan.needs_approval:
        say("  [yellow]another person must approve it[/]")


@operations.command("list")
@with_ledgers
def list_operations(
    state: Annotated[OperationState | None, typer.Option("--state", help="Only operations in this state.")] = None,
    limit: Annotated[int, typer.Option(help="How many to show.", min=1, max=500)] = 50,
    after: AfterOption = None,
    *,
    where: Where,
) -> None:
    """List operations, ledger by ledger and the newest first.

    Example: [cyan]redrive operations list --state halted[/]
    """

    found = listed(
        lambda lane, cursor, most: lane.operations.list(state=state, cursor=cursor, limit=most),
        where, after=after, limit=limit,
    )  # fmt: skip
    shown, now = [one for _, one in found.items], datetime.now(UTC)
    if where.json:
        operations = [operation_json(one, now) for one in shown]
        print_json({"operations": operations, "after": found.after, "unseen": found.unseen})
    elif shown:
        out().print(_table(shown, now))
    else:
        say("no operation matches")
    say_rest(found, where)


def _table(shown: list[Operation], now: datetime) -> Table:
    table = Table(box=None, header_style="bold", expand=True)
    for name in ("operation", "state", "done"):
        table.add_column(name, no_wrap=True)
    table.add_column("says", overflow="fold", ratio=1)
    table.add_column("started", no_wrap=True)
    for one in shown:
        colour = COLOURS.get(one.state, "white")
        done = f"{one.tally.done:,} of {one.tally.total:,}"
        started = f"{when(one.started_at, now=now)} by {one.started_by}"
        table.add_row(one.id, f"[{colour}]{one.state}[/]", done, escape(one.says(now)), escape(started))
    return table


@operations.command("show")
@with_ledgers
def show(
    id: IdArgument,
    *,
    where: Where,
) -> None:
    """Show one operation: its steps, its brake, what it does next and why it stopped.

    Example: [cyan]redrive operations show 7c2f91d0[/]
    """

    told = on_ledgers(lambda ledgers: _told(ledgers.lanes, id), where)
    if where.json:
        print_json(told)
    else:
        _show(told)


async def _told(lanes: list[Lane], id: str) -> dict[str, Any]:
    """All that is known of one operation."""
    chosen, operation = await _home(lanes, id)
    by = chosen.operations
    told = operation_json(operation, datetime.now(UTC), await by.pace(id))
    told["by_step"] = [step_json(step) for step in await by.steps(id)]
    told["failed_tasks"] = [failed_again_json(one) for one in await by.failed_again(id, limit=SHOWN_MAX)]
    told["skipped_because"] = dict(await by.skipped(operation))
    for fate in (Fate.SKIPPED, Fate.UNFIT):
        told[f"{fate}_tasks"] = [set_task_json(one) for one in (await by.tasks(id, fate=fate, limit=SHOWN_MAX)).items]
    told["edited"] = [edit_json(one) for one in await by.edits_of(id, limit=SHOWN_MAX)]
    return told


def _show(told: dict[str, Any]) -> None:
    tasks = told["tasks"]
    console = out()
    console.print(f"[bold]{told['id']}[/] {told['state']}: {escape(told['says'])}")
    console.print(f"  {escape(told['asked_words'])} of {escape(told['ledger'])}, frozen at {told['until']}")
    console.print(f"  {escape(told['ramp']['words'])}")
    started = f"  started by {told['started_by']} at {told['started_at']}: {told['reason']}"
    console.print(escape(started + (f"; approved by {told['approved_by']}" if told["approved_by"] else "")))
    console.print("  " + ", ".join(f"{amount:,} {name}" for name, amount in tasks.items() if amount or name == "total"))
    for why, amount in told["skipped_because"].items():
        console.print(f"  {amount:,} skipped: {escape(why)}")
    console.print(f"  brake: {share_words(told['brake']['share'])} of {told['brake']['released']:,} failed again")
    for step in told["by_step"]:
        fates = ", ".join(f"{amount:,} {fate}" for fate, amount in step["fates"].items() if amount)
        console.print(f"  step {step['number']}: {fates}")
    for line in told["next"]:
        when_through = f"by about {line['by']}" if line["by"] and not line["at_the_earliest"] else ""
        means = "; ".join(filter(None, (line["means"], when_through)))
        console.print(f"  next: {escape(line['does'])} [dim]{escape(means)}[/]")
    for one in told["failed_tasks"]:
        again = {True: "of the same cause", False: "of a new cause", None: "again"}[one["same"]]
        console.print(f"  failed: task {escape(one['task_id'])} {again}: {escape(one['error'])}")
    for fate in (Fate.SKIPPED, Fate.UNFIT):
        for one in told[f"{fate}_tasks"]:
            console.print(f"  {fate}: task {escape(one['task_id'])}{escape(': ' + one['why'] if one['why'] else '')}")


async def _home(lanes: list[Lane], id: str) -> tuple[Lane, Operation]:
    """The lane that an operation is of."""
    for lane in lanes:
        try:
            return lane, await lane.operations.get(id)
        except UsageError:
            continue
    raise UsageError(f"there is no operation {id!r:.80}")


def _steer(name: str, does: str, past: str, example: str) -> None:
    """A command that does one thing to one operation."""

    def command(
        id: IdArgument,
        reason: ReasonOption = "",
        by: ByOption = None,
        *,
        where: Where,
    ) -> None:
        _done(id, name.replace("-", "_"), past, reason, by, where)

    command.__doc__ = f'{does}\n\nExample: [cyan]redrive operations {name} 7c2f91d0 --reason "{example}"[/]'
    operations.command(name)(with_ledgers(command))


def _done(id: str, method: str, past: str, reason: str, by: str | None, where: Where, **how: Any) -> None:
    if not reason.strip():
        raise UsageError("say why: --reason is kept with the operation")

    async def steer(ledgers: Ledgers) -> Operation:
        chosen, _ = await _home(ledgers.lanes, id)
        act: Callable[..., Awaitable[Operation]] = getattr(chosen.operations, method)
        return await act(id, actor=by or os_user(), reason=reason.strip(), **how)

    operation = on_ledgers(steer, where)
    if where.json:
        print_json(operation_json(operation, datetime.now(UTC)))
    else:
        say(f"operation {escape(id)} {past}: {escape(operation.says(datetime.now(UTC)))}")


_steer("pause", "Release nothing more until somebody resumes it. What is out runs on.", "paused", "they call us")
_steer(
    "resume",
    "Let a paused or halted operation go on. What failed until now does not brake it again.",
    "resumed",
    "mended in 4f31",
)
_steer("halt", "Pull the brake: nothing more is released.", "halted", "wrong cause")
_steer("give-back", "End it: what was not released stays dead as it was.", "given back", "they do it by hand")
_steer(
    "approve",
    "Let it begin. Must be done by somebody other than the person who started it.",
    "approved",
    "looked at it with ada",
)


@operations.command("change")
@with_ledgers
def change(
    id: IdArgument,
    rate: RateOption = None,
    halt: HaltOption = None,
    reason: ReasonOption = "",
    by: ByOption = None,
    *,
    where: Where,
) -> None:
    """Change the rate, or the share of failures at which it stops; what is not given stays.

    Example: [cyan]redrive operations change 7c2f91d0 --rate 5/s --reason "their server is slow"[/]
    """
    _done(id, "change", "changed", reason, by, where, rate=rate, halt=halt)
