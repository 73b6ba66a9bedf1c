"""`redrive preview`: when a task would be tried again, by any policy, to the microsecond."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from redrive.cli.app_path import load_app
from redrive.cli.options import AppOption, JsonOption, as_duration, duration_option
from redrive.cli.output import exactly, out, print_json
from redrive.core import jitter as jitters
from redrive.core.backoff import Backoff, Exponential, Fixed, Schedule
from redrive.core.durations import format_duration, parse_duration
from redrive.core.jitter import Jitter
from redrive.core.policy import Policy
from redrive.core.preview import Try
from redrive.core.preview import preview as tries_of
from redrive.errors import UsageError
from redrive.operator.json_views import preview_json
from redrive.wiring import PUBLISHED, PublishedPolicy

DRAWN_CELLS = 48
TABLE_CELLS = 62
"""What the columns before the drawing need; times are never cut."""
ROWS_DRAWN_MAX = 100


def preview(
    policy: Annotated[PublishedPolicy | None, typer.Option(help="The policy of one of the five systems.")] = None,
    first: Annotated[
        timedelta | None, duration_option("--first", "Exponential: the wait after the first failure.")
    ] = None,
    cap: Annotated[timedelta | None, duration_option("--cap", "Exponential: the longest wait.")] = None,
    factor: Annotated[
        float | None, typer.Option(help="Exponential: each wait is this many times the last one.")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="The waits one by one: 10s,1m,5m.", metavar="SPANS")] = None,
    fixed: Annotated[timedelta | None, duration_option("--fixed", "The same wait each time.")] = None,
    retries: Annotated[int | None, typer.Option(help="How many tries after the first.")] = None,
    attempts: Annotated[int | None, typer.Option(help="How many tries in all.")] = None,
    jitter: Annotated[
        str | None, typer.Option(help="none, full, equal, decorrelated, percent:10, plus_minus:10 or additive:30s.")
    ] = None,
    key: Annotated[str, typer.Option(help="The task's key: the draws of the jitter depend on it.")] = "example",
    name: Annotated[str | None, typer.Option(help="The policy's name, on which they depend too.")] = None,
    start: Annotated[str | None, typer.Option(help="When the first try is, in ISO 8601; by default now.")] = None,
    app: AppOption = None,
    kind: Annotated[str | None, typer.Option(help="With --app: the policy of this kind's handler.")] = None,
    json: JsonOption = False,
) -> None:
    """Show when a task that always fails would be tried: these very times will happen, on any machine.

    Examples: [cyan]redrive preview --policy flags[/] · [cyan]redrive preview --first 2s --cap 5m --retries 8 --jitter full[/]
    """
    by_options = [first, cap, factor, schedule, fixed, retries, attempts, jitter, name]
    if policy is not None or app is not None or kind is not None:
        if any(given is not None for given in by_options) or (policy is not None and (app or kind)):
            raise UsageError("give one of --policy, --app with --kind, or the options of a policy")
        chosen = PUBLISHED[policy] if policy is not None else _policy_of(app, kind)
    else:
        chosen = Policy(
            _backoff(first, cap, factor, schedule, fixed),
            retries=retries, attempts=attempts, jitter=_jitter(jitter), name=name or "default",
        )  # fmt: skip
    begins = _instant(start)
    tries = tries_of(chosen, key, begins)
    if json:
        print_json(preview_json(chosen, key, begins, tries))
    else:
        _draw(chosen, key, tries)


def _backoff(
    first: timedelta | None, cap: timedelta | None, factor: float | None, schedule: str | None, fixed: timedelta | None
) -> Backoff:
    exponential = first is not None or cap is not None or factor is not None
    if exponential + (schedule is not None) + (fixed is not None) > 1:
        raise UsageError("choose one backoff: --first/--cap/--factor, --schedule or --fixed")
    if schedule is not None:
        return Schedule([parse_duration(wait) for wait in schedule.split(",")])
    if fixed is not None:
        return Fixed(fixed)
    default = Exponential()
    begins = default.first if first is None else first
    return Exponential(
        begins, max(default.cap, begins) if cap is None else cap, factor=default.factor if factor is None else factor
    )


def _jitter(text: str | None) -> Jitter:
    kind, _, amount = (text or "equal").partition(":")
    match kind:
        case "none" | "full" | "equal" | "decorrelated" if not amount:
            chosen: Jitter = getattr(jitters, kind)
            return chosen
        case "percent" | "plus_minus":
            try:
                spread: Jitter = getattr(jitters, kind)(float(amount))
            except ValueError:
                raise UsageError(f"{text!r}: {kind} takes a number from 0 to 100, such as {kind}:10") from None
            return spread
        case "additive":
            return jitters.additive(as_duration(amount))
        case _:
            raise UsageError(
                f"unknown jitter {text!r}: use none, full, equal, decorrelated, percent:10, plus_minus:10 or additive:30s"
            )


def _policy_of(app: str | None, kind: str | None) -> Policy:
    if app is None or kind is None:
        raise UsageError("--app and --kind go together: the application, and the kind whose policy is meant")
    loaded = load_app(app)
    for lane in loaded.lanes.values():
        handler = lane.handlers.find(kind)
        if handler is not None:
            return handler.policy
    known = ", ".join(handler.kind for lane in loaded.lanes.values() for handler in lane.handlers) or "none"
    raise UsageError(f"{app} has no handler for {kind!r}; it has {known}")


def _instant(text: str | None) -> datetime:
    if text is None:
        return datetime.now(UTC)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--start {text!r} is not an instant: write ISO 8601, such as 2026-01-31T09:00:00Z") from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _draw(policy: Policy, key: str, tries: list[Try]) -> None:
    console = out()
    console.print(
        f"[bold]{escape(policy.name)}[/]: {policy.backoff_words}, jitter {policy.jitter_words}, "
        f"{policy.failures_max} tries in all; key {escape(repr(key))}",
        soft_wrap=True,
    )
    start, whole = tries[0].at, tries[-1].at - tries[0].at
    table = Table("try", "at (UTC)", "wait", "since start", "", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    cells = min(DRAWN_CELLS, max(10, console.width - TABLE_CELLS))
    previous = 0
    for one in tries[:ROWS_DRAWN_MAX]:
        since = one.at - start
        cell = round((cells - 1) * (since / whole)) if whole else 0
        bar = " " * previous + "[cyan]" + "─" * max(0, cell - previous) + "[/][bold cyan]●[/]"
        wait = format_duration(one.delay) if one.number > 1 else "–"
        table.add_row(str(one.number), exactly(one.at), wait, format_duration(since), bar)
        previous = cell
    console.print(table)
    if len(tries) > ROWS_DRAWN_MAX:
        console.print(f"[dim]… and {len(tries) - ROWS_DRAWN_MAX} more; --json shows them[/]")
    console.print(f"if every try fails it is dead after {format_duration(whole)}")
