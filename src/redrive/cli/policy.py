"""`redrive policy`: what another policy would have made of what was tried."""

import json as json_
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from redrive.cli.opened import Ledgers, on_ledgers
from redrive.cli.options import AppOption, DatabaseOption, JsonOption, duration_option
from redrive.cli.output import err, out, print_json, say
from redrive.cli.where import Where
from redrive.core.backtest import Side
from redrive.core.durations import format_duration, rounded
from redrive.core.policy import Policy
from redrive.core.table import TASKS
from redrive.errors import UsageError, needs_extra
from redrive.operator.backtests import TRIES_MAX, Tried
from redrive.operator.json_views import instant_json

FILE_BYTES_MAX = 64 * 1024
MINUTES_SHOWN_MAX = 20_000

policy = typer.Typer(help="Try a policy on past tries before you use it.", no_args_is_help=True)


@policy.callback()
def _group() -> None:
    """Try a policy on past tries before you use it."""


@policy.command("try")
def try_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The policy as TOML or JSON, in the form that /api/preview takes.")
    ],
    since: Annotated[timedelta, duration_option("--since", "How far back, such as 7d.")] = timedelta(days=7),
    kind: Annotated[str | None, typer.Option(help="Only tasks of this kind: a policy belongs to one kind.")] = None,
    lane: Annotated[str, typer.Option(metavar="TABLE", help="Which table's history.")] = TASKS.name,
    limit: Annotated[int, typer.Option(help="How many tries are read at most.", min=1)] = TRIES_MAX,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Replay the recorded tries under another policy: how many tries, deaths, waits, and load per minute, beside what happened.

    Nothing is changed. What cannot be known is said, and what was assumed instead.

    Example: [cyan]redrive policy try slower.toml --since 7d --kind mail.send[/]
    """
    chosen = read_policy_file(file)

    async def read(ledgers: Ledgers) -> Tried:
        [one] = ledgers.lanes
        with Progress(TextColumn("reading tries"), MofNCompleteColumn(), console=err(), transient=True) as bar:
            shown = bar.add_task("", total=None)
            return await one.try_policy(
                chosen, since=since, kind=kind, tries_max=limit, progress=lambda amount: bar.advance(shown, amount)
            )

    tried = on_ledgers(read, Where(database, app, lane, json))
    if json:
        print_json(tried_json(tried))
        return
    if not tried.test.tasks:
        say(f"nothing was tried in {escape(lane)} in the last {format_duration(since)}")
        return
    _show(tried)


def read_policy_file(file: Path) -> Policy:
    """The policy that a file describes; `UsageError` says what cannot be read."""
    with needs_extra("redrive policy try", "service"):
        from pydantic import ValidationError

        from redrive.web.api.previews import OF_A_PREVIEW, PolicyBody, policy_of
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"{file} is larger than {FILE_BYTES_MAX // 1024} KiB: that is not a policy")
        text = file.read_text("utf-8")
        said: Any = json_.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        form = "JSON" if file.suffix == ".json" else "TOML"
        raise UsageError(f"{file} is not {form}: {str(error).splitlines()[0]}") from None
    if isinstance(said, dict) and (more := said.keys() & (OF_A_PREVIEW - {"policy"})):
        raise UsageError(f"{file}: {', '.join(sorted(more))} belongs to a preview, not to a policy: leave it out")
    try:
        return policy_of(PolicyBody.model_validate(said))
    except ValidationError as error:
        [first, *_] = error.errors()
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{file}: {f'{place}: ' if place else ''}{first['msg']}") from None


def tried_json(tried: Tried) -> dict[str, Any]:
    """What trying a policy came to, as JSON."""
    test = tried.test
    minutes = sorted({*test.happened.load.minutes, *test.would.load.minutes})
    return {
        "policy": {"name": test.policy.name, "backoff": test.policy.backoff_words, "jitter": test.policy.jitter_words,
                   "attempts": test.policy.failures_max},
        "since": instant_json(tried.since),
        "tasks": test.tasks,
        "happened": _side_json(test.happened),
        "would": _side_json(test.would) | {"deaths_at_least": test.deaths_at_least},
        "tries_assumed": test.tries_assumed,
        "tries_not_made": test.tries_not_made,
        "tasks_assumed": test.tasks_assumed,
        "tasks_cut": test.tasks_cut,
        "tasks_open": test.tasks_open,
        "tasks_gone": tried.tasks_gone,
        "complete": tried.complete,
        "passed_over": tried.passed_over,
        "per_minute": [
            {"minute": instant_json(datetime.fromtimestamp(one * 60, UTC)),
             "happened": test.happened.load.minutes[one], "would": test.would.load.minutes[one]}
            for one in minutes[:MINUTES_SHOWN_MAX]
        ],
        "per_minute_complete": len(minutes) <= MINUTES_SHOWN_MAX,
        "cannot_be_known": tried.sentences(),
    }  # fmt: skip


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "tries": side.tries,
        "deaths": side.deaths,
        "waited_seconds": side.waited.total_seconds(),
        "per_minute_peak": side.load.peak,
        "per_minute_mean": round(side.load.mean, 3),
    }


def _show(tried: Tried) -> None:
    test, console = tried.test, out()
    chosen = test.policy
    console.print(
        f"[bold]{escape(chosen.name)}[/]: {chosen.backoff_words}, jitter {chosen.jitter_words}, {chosen.failures_max} tries in all; "
        f"{test.tasks:,} tasks",
        soft_wrap=True,
    )
    table = Table("", "happened", "would have", box=None, header_style="bold", padding=(0, 3, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    deaths = f"{test.would.deaths:,}"
    if test.deaths_at_least != test.would.deaths:
        deaths = f"{test.deaths_at_least:,} to {deaths}"
    rows = (
        ("tries", f"{test.happened.tries:,}", f"{test.would.tries:,}"),
        ("deaths", f"{test.happened.deaths:,}", deaths),
        ("waited in all", _span(test.happened.waited), _span(test.would.waited)),
        ("most per minute", f"{test.happened.load.peak:,}", f"{test.would.load.peak:,}"),
        ("mean per minute", f"{test.happened.load.mean:,.1f}", f"{test.would.load.mean:,.1f}"),
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print("\n[bold]What cannot be known[/]")
    for sentence in tried.sentences():
        console.print(f"- {escape(sentence)}", soft_wrap=True)


def _span(span: timedelta) -> str:
    return format_duration(rounded(span))
