"""`redrive gates`: look at gates, change their limits, pause and resume them; also kinds and whole ledgers."""

from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from redrive.cli.gate_acts import NONE, GateDeed, changed_breaker, read_share, read_whole
from redrive.cli.listing import LedgersListed, list_ledgers, say_rest
from redrive.cli.opened import Ledgers, on_ledgers
from redrive.cli.options import (
    AfterOption,
    ByOption,
    duration_option,
)
from redrive.cli.output import PROBLEM, complain, exactly, out, print_deeds, print_json, print_rows, say, when
from redrive.cli.where import Where, with_ledgers
from redrive.core.durations import format_duration
from redrive.core.pauses import EVERYTHING, KIND
from redrive.core.table import TASKS
from redrive.core.task import Deed
from redrive.errors import UsageError
from redrive.lane import Lane
from redrive.operator.asked import read_instant
from redrive.operator.gates import GateDoes, GateView, RuleView, limit_words, percent, rate_words, read_does
from redrive.operator.json_views import deed_json, gate_json, rule_json
from redrive.ports import Page

COLOURS = {
    GateDoes.HOLDING: "red",
    GateDoes.RETURNING: "yellow",
    GateDoes.PAUSED: "cyan",
    GateDoes.LETTING_THROUGH: "green",
}
gates = typer.Typer(help="Look at gates, change their limits, pause and resume them.", no_args_is_help=True)

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[GATE]", help="The gate; or use --kind, or --all for the whole ledger.")
]
KindOption = Annotated[
    str | None, typer.Option("--kind", help="Tasks of this kind, with or without gates; mail.* matches several kinds.")
]
AllOption = Annotated[bool, typer.Option("--all", help="The whole ledger.")]
UnsetOption = Annotated[
    bool, typer.Option("--unset", help="Remove the limits of this pattern: a wider pattern then applies, or none.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; required, shown beside the gate and kept.")]
VersionOption = Annotated[
    int | None,
    typer.Option("--version", help="Only if nobody has changed it since this version, which `show` prints.", min=0),
]


# --- looking --------------------------------------------------------------------------------------------------------


@gates.command("list")
@with_ledgers
def list_gates(
    does: Annotated[
        str | None, typer.Option("--does", help="Only those that are paused, holding, returning or letting-through.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only gates whose names begin with this.")] = "",
    limit: Annotated[int, typer.Option(help="How many to show.", min=1, max=500)] = 50,
    after: AfterOption = None,
    *,
    where: Where,
) -> None:
    """List the gates of all ledgers; those that hold tasks back, return or are paused come first.

    What a gate keeps back is parked: not charged, not dead, not forgotten.

    Example: [cyan]redrive gates list --does holding[/]
    """
    asked = None if does is None else read_does(does)

    async def page(lane: Lane, cursor: str | None, most: int) -> Page[GateView]:
        return await (await lane.gate_reader()).page(does=asked, prefix=prefix, cursor=cursor, limit=most)

    async def look(ledgers: Ledgers) -> tuple[LedgersListed[GateView], list[tuple[str, RuleView]]]:
        listed = await list_ledgers(ledgers, page, after=after, limit=limit)
        rules = [(lane.name, rule) for lane in listed.lanes for rule in await (await lane.gate_reader()).rules()]
        return listed, rules

    found, rules = on_ledgers(look, where)
    views = [view for _, view in found.items]
    if where.json:
        print_json(
            {
                "gates": [gate_json(view) for view in views],
                "rules": [{"ledger": ledger} | rule_json(rule) for ledger, rule in rules],
                "after": found.after,
                "unseen": found.unseen,
            }
        )
    elif views:
        out().print(_table(views))
    else:
        say("no gate matches")
    if rules and not where.json:
        console = out()
        console.print("\n[bold]limits[/]")
        for ledger, rule in rules:
            home = "" if ledger == TASKS.name else f" [dim]in {escape(ledger)}[/]"
            said = escape(f"{limit_words(rule.rule)}, set by {rule.set_by}{_why(rule.reason)}")
            console.print(f"  [bold]{escape(rule.pattern)}[/]{home}: {said}")
    say_rest(found, where)


def _table(views: list[GateView]) -> Table:
    ledgers = any(view.ledger != TASKS.name for view in views)
    table = Table(box=None, header_style="bold", expand=True)
    for name in (*(["ledger"] if ledgers else []), "gate", "does"):
        table.add_column(name, no_wrap=True)
    for name in ("at once", "rate", "failed", "parked"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("why", overflow="fold", ratio=1)
    for view in views:
        limits = view.limits
        table.add_row(
            *([escape(view.ledger)] if ledgers else []),
            escape(view.title), _coloured(view.does),
            "–" if view.is_of_kinds else f"{view.held} of {limits.concurrency}" if limits.concurrency else str(view.held),
            "–" if limits.rate is None else rate_words(limits), _failed(view), view.parked_words, escape(view.why),
        )  # fmt: skip
    return table


def _coloured(does: GateDoes) -> str:
    return f"[{COLOURS[does]}]{does}[/]"


def _failed(view: GateView) -> str:
    return "–" if view.is_of_kinds else f"{view.failures:.0f} of {view.tries:.0f}"


@gates.command("show")
@with_ledgers
def show(
    name: NameArgument = None,
    kind: KindOption = None,
    every: AllOption = False,
    *,
    where: Where,
) -> None:
    """Show one gate: what it does, why and until when, its limits and who set them, and who acted on it.

    Example: [cyan]redrive gates show bank:DE[/]
    """
    meant = _meant(name, kind, every=every)

    async def look(ledgers: Ledgers) -> tuple[GateView, list[Deed]] | None:
        for one in ledgers.lanes:
            try:
                view = await one.gate_state(meant)
            except UsageError:
                if len(ledgers.lanes) == 1:
                    raise
                continue
            if view is not None:
                return view, await one.deeds(f"gate:{meant}")
        return None

    found = on_ledgers(look, where)
    if found is None:
        complain(f"there is no gate {meant!r}: no task has named it yet; `redrive gates list` shows those that exist")
        raise typer.Exit(PROBLEM)
    view, deeds = found
    if where.json:
        print_json(gate_json(view) | {"deeds": [deed_json(deed) for deed in deeds]})
    else:
        _show(view)
        print_deeds(deeds[-20:])


def _show(view: GateView) -> None:
    limits, rule = view.limits, view.rule
    within = format_duration(limits.within)
    breaker = None
    if limits.failures is not None:
        share = f", {percent(limits.share)} of them" if limits.share is not None else ""
        breaker = f"{limits.failures:,} failures within {within}{share}; a probe every {format_duration(limits.probe)}"
    rows: list[tuple[str, str | None]] = [
        ("ledger", escape(view.ledger)),
        ("gate", escape(view.title)),
        ("does", _coloured(view.does)),
        ("why", escape(view.why) or None),
        ("since", f"{exactly(view.since)} ({when(view.since, now=view.at)})" if view.since else None),
        ("until", f"{exactly(view.until)} ({when(view.until, now=view.at)})" if view.until else None),
        ("parked", view.parked_words),
        ("at once", f"{view.held} of {limits.concurrency or 'any number'}"),
        ("failed", f"{_failed(view)} in the last {within}"),
        ("rate", None if limits.rate is None else rate_words(limits)),
        ("breaker", breaker),
        ("budget", None if limits.budget is None else f"retries up to {percent(limits.budget)} of first tries"),
        ("limits", None if rule is None else escape(f"{rule.pattern}, set by {rule.set_by} at {exactly(rule.set_at)}{_why(rule.reason)}")),
        ("kinds", escape(", ".join(view.kinds)) or None),
        ("version", str(view.version)),
    ]  # fmt: skip
    hidden = ("at once", "failed", "limits") if view.is_of_kinds else ()
    print_rows(row for row in rows if row[0] not in hidden)


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""


# --- acting ---------------------------------------------------------------------------------------------------------


@gates.command("set")
@with_ledgers
def set_limits(
    name: Annotated[str, typer.Argument(metavar="GATE", help="The gate, or a pattern of gates such as 'bank:*'.")],
    concurrency: Annotated[str | None, typer.Option(help="How many may run at once; none removes the limit.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="How many may start in any second, minute or hour: 20/s, 100/m, 1000/h; or none.")
    ] = None,
    burst: Annotated[str | None, typer.Option(help="How many of those may start at once; or none.")] = None,
    failures: Annotated[
        str | None, typer.Option(help="How many failures trip the breaker; none removes the breaker.")
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="It trips if at least this share of tries failed, out of at least that many.")
    ] = None,
    within: Annotated[timedelta | None, duration_option("--within", "The span in which failures are counted.")] = None,
    probe: Annotated[timedelta | None, duration_option("--probe", "How long to wait between two probes.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="How many retries are allowed, as a share of first tries, such as 0.2; or none.")
    ] = None,
    unset: UnsetOption = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    version: VersionOption = None,
    *,
    where: Where,
) -> None:
    """Change the limits of a gate, or of all gates that a pattern fits best. Limits that are not named stay. They apply from the next claim on.

    Example: [cyan]redrive gates set 'bank:*' --concurrency 5 --rate 20/s --reason "agreed with the bank"[/]
    """
    given: dict[str, Any] = {
        "concurrency": read_whole("--concurrency", concurrency),
        "rate": None if rate == NONE else rate,
        "burst": read_whole("--burst", burst),
        "budget": read_share("--budget", budget),
    }
    named = {"concurrency": concurrency, "rate": rate, "burst": burst, "budget": budget}
    limits = {limit: value for limit, value in given.items() if named[limit] is not None}
    breaker = {"failures": failures, "share": share, "within": within, "probe": probe}
    if unset == bool(limits or any(one is not None for one in breaker.values())):
        raise UsageError("say which limits: --concurrency, --rate, --burst, --failures, --budget; or --unset")

    async def act(chosen: Lane, who: dict[str, Any]) -> bool:
        if unset:
            return await chosen.unset_gate(name, **who)
        if any(one is not None for one in breaker.values()):
            limits["breaker"] = await changed_breaker(chosen, name, breaker)
        return await chosen.set_gate(name, **limits, **who)

    GateDeed("limits of {} " + ("removed" if unset else "set"), name, reason, by, version).run(act, where)


@gates.command("pause")
@with_ledgers
def pause(
    name: NameArgument = None,
    kind: KindOption = None,
    every: AllOption = False,
    span: Annotated[timedelta | None, duration_option("--for", "Resume automatically after this.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="INSTANT", help="Resume automatically then: 2026-01-31T09:00:00Z.")
    ] = None,
    reason: ReasonOption = "",
    by: ByOption = None,
    version: VersionOption = None,
    *,
    where: Where,
) -> None:
    """Let nothing through, in every process within a second. Running tasks finish, waiting ones wait, and tasks can still be added. Deadlines still apply.

    Example: [cyan]redrive gates pause bank:DE --for 1h --reason "the bank moves"[/], [cyan]redrive gates pause --kind mail --reason "wrong template"[/]
    """
    ends = None if until is None else read_instant("--until", until)

    async def act(chosen: Lane, who: dict[str, Any]) -> bool:
        return await chosen.pause_gate(meant, span=span, until=ends, **who)

    meant = _meant(name, kind, every=every)
    GateDeed("{} paused", meant, reason, by, version).run(act, where)


@gates.command("resume")
@with_ledgers
def resume(
    name: NameArgument = None,
    kind: KindOption = None,
    every: AllOption = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    version: VersionOption = None,
    *,
    where: Where,
) -> None:
    """Resume what is paused. Anything else that keeps a gate shut, such as its breaker, still does.

    Example: [cyan]redrive gates resume bank:DE --reason "the bank is back"[/]
    """

    async def act(chosen: Lane, who: dict[str, Any]) -> bool:
        return await chosen.resume_gate(meant, **who)

    meant = _meant(name, kind, every=every)
    GateDeed("{} resumed", meant, reason, by, version).run(act, where)


def _meant(name: str | None, kind: str | None, *, every: bool) -> str:
    if sum((name is not None, kind is not None, every)) != 1:
        raise UsageError("say which: a gate, --kind or --all")
    return EVERYTHING if every else f"{KIND}{kind}" if kind is not None else str(name)
