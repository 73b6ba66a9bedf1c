"""`redrive gates`: look at gates, change their limits, pause and resume them; also kinds and whole ledgers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

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
    complain,
    duration_option,
    exactly,
    list_ledgers,
    opened_ledgers,
    os_user,
    out,
    print_json,
    run,
    say,
    when,
)
from redrive.core.durations import format_duration
from redrive.core.gates import Breaker
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
NONE = "none"
"""What takes a limit away."""

gates = typer.Typer(help="Look at gates, change their limits, pause and resume them.", no_args_is_help=True)

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[GATE]", help="The gate; or say --kind, or --all for the whole ledger.")
]
KindOption = Annotated[
    str | None, typer.Option("--kind", help="Tasks of this kind, whether they have gates or not; mail.* is many.")
]
AllOption = Annotated[bool, typer.Option("--all", help="The whole ledger.")]
UnsetOption = Annotated[
    bool, typer.Option("--unset", help="Take the limits of this pattern away: a wider one holds, or none.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; required, shown beside the gate and kept.")]
ByOption = Annotated[str | None, typer.Option("--by", help="Who does it; by default the name you are logged in with.")]
VersionOption = Annotated[
    int | None, typer.Option("--version", help="Only if nobody has acted since this version, as `show` says it.", min=0)
]


# --- looking --------------------------------------------------------------------------------------------------------


@gates.command("list")
def list_gates(
    does: Annotated[
        str | None, typer.Option("--does", help="Only those that are paused, holding, returning or letting-through.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only gates whose names begin with this.")] = "",
    limit: Annotated[int, typer.Option(help="How many to show.", min=1, max=500)] = 50,
    after: Annotated[str | None, typer.Option(help="Continue there, as the last page said.")] = None,
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """List the gates of all ledgers, those that hold, return or are paused first.

    What a gate keeps back is parked: not charged, not dead, not forgotten.

    Example: [cyan]redrive gates list --does holding[/]
    """
    asked = None if does is None else read_does(does)

    async def page(lane: Lane, cursor: str | None, most: int) -> Page[GateView]:
        return await (await lane.gate_reader()).page(does=asked, prefix=prefix, cursor=cursor, limit=most)

    async def work() -> tuple[LedgersListed[GateView], list[tuple[str, RuleView]]]:
        async with opened_ledgers(database, app, lane) as ledgers:
            listed = await list_ledgers(ledgers, page, after=after, limit=limit)
            rules = [(lane.name, rule) for lane in listed.lanes for rule in await (await lane.gate_reader()).rules()]
            return listed, rules

    found, rules = run(work())
    views = [view for _, view in found.items]
    if json:
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
    if rules and not json:
        console = out()
        console.print("\n[bold]limits[/]")
        for ledger, rule in rules:
            where = "" if ledger == TASKS.name else f" [dim]in {escape(ledger)}[/]"
            said = escape(f"{limit_words(rule.rule)}, set by {rule.set_by}{_why(rule.reason)}")
            console.print(f"  [bold]{escape(rule.pattern)}[/]{where}: {said}")
    for name, reason in found.unseen.items():
        say(f"[yellow]not looked at: {escape(name)}[/]: {escape(reason)}")
    if found.after is not None and not json:
        say(f"[dim]there are more: --after {escape(found.after)}[/]")


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
def show(
    name: NameArgument = None,
    kind: KindOption = None,
    every: AllOption = False,  # noqa: FBT002
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show one gate: what it does, why and until when, its limits and who set them, and who acted on it.

    Example: [cyan]redrive gates show bank:DE[/]
    """
    meant = _meant(name, kind, every=every)

    async def work() -> tuple[GateView, list[Deed]] | None:
        async with opened_ledgers(database, app, lane) as ledgers:
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

    found = run(work())
    if found is None:
        complain(f"there is no gate {meant!r}: no task has named it yet; `redrive gates list` has those that there are")
        raise typer.Exit(PROBLEM)
    view, deeds = found
    if json:
        print_json(gate_json(view) | {"deeds": [deed_json(deed) for deed in deeds]})
    else:
        _show(out(), view, deeds)


def _show(console: Console, view: GateView, deeds: list[Deed]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
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
    for name, value in rows:
        if value is not None and not (view.is_of_kinds and name in ("at once", "failed", "limits")):
            grid.add_row(name, value)
    console.print(grid)
    if deeds:
        console.print("\n[bold]who acted on it[/]")
    for deed in deeds[-20:]:
        console.print(f"  {exactly(deed.at)} {deed.act} by {escape(deed.actor)}{escape(_why(deed.reason))}")


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""


# --- acting ---------------------------------------------------------------------------------------------------------


@gates.command("set")
def set_limits(
    name: Annotated[str, typer.Argument(metavar="GATE", help="The gate, or a pattern of gates such as 'bank:*'.")],
    concurrency: Annotated[str | None, typer.Option(help="How many run at once; none takes it away.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="How many start in any second, minute or hour: 20/s, 100/m, 1000/h; or none.")
    ] = None,
    burst: Annotated[str | None, typer.Option(help="How many of the rate at once; or none.")] = None,
    failures: Annotated[
        str | None, typer.Option(help="This many failures trip the breaker; none takes the breaker away.")
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="It trips if this share of at least that many tries failed.")
    ] = None,
    within: Annotated[timedelta | None, duration_option("--within", "In this span.")] = None,
    probe: Annotated[timedelta | None, duration_option("--probe", "How long between two probes.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Which share of first tries may be retried, such as 0.2; or none.")
    ] = None,
    unset: UnsetOption = False,  # noqa: FBT002
    reason: ReasonOption = "",
    by: ByOption = None,
    version: VersionOption = None,
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Change the limits of a gate, or of all that a pattern fits best. What is not named stays. It holds from the next claim on.

    Example: [cyan]redrive gates set 'bank:*' --concurrency 5 --rate 20/s --reason "agreed with the bank"[/]
    """
    given: dict[str, Any] = {
        "concurrency": _whole("--concurrency", concurrency),
        "rate": None if rate == NONE else rate,
        "burst": _whole("--burst", burst),
        "budget": _share("--budget", budget),
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
            limits["breaker"] = await _breaker(chosen, name, breaker)
        return await chosen.set_gate(name, **limits, **who)

    _Deed("limits of {} " + ("removed" if unset else "set"), name, reason, by, version).run(
        act, database, app, lane, json=json
    )


async def _breaker(lane: Lane, name: str, given: dict[str, Any]) -> Breaker | None:
    """The breaker with what was said of it; the rest as it holds now."""
    if given["failures"] == NONE:
        return None
    rule, _ = await (await lane.gate_reader()).rule_for(name)
    now: dict[str, Any] = {}
    if rule.failures is not None:
        now = {"failures": rule.failures, "share": rule.share, "within": rule.within, "probe": rule.probe}
    said = given | {"failures": _whole("--failures", given["failures"])}
    return Breaker(**now | {one: value for one, value in said.items() if value is not None})


@gates.command("pause")
def pause(
    name: NameArgument = None,
    kind: KindOption = None,
    every: AllOption = False,  # noqa: FBT002
    span: Annotated[timedelta | None, duration_option("--for", "It resumes by itself after this.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="INSTANT", help="It resumes by itself then: 2026-01-31T09:00:00Z.")
    ] = None,
    reason: ReasonOption = "",
    by: ByOption = None,
    version: VersionOption = None,
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Let nothing through: what runs ends, what waits waits, adding goes on. Deadlines still hold. In every process within a second.

    Example: [cyan]redrive gates pause bank:DE --for 1h --reason "the bank moves"[/], [cyan]redrive gates pause --kind mail --reason "wrong template"[/]
    """
    ends = None if until is None else read_instant("--until", until)

    async def act(chosen: Lane, who: dict[str, Any]) -> bool:
        return await chosen.pause_gate(meant, span=span, until=ends, **who)

    meant = _meant(name, kind, every=every)
    _Deed("{} paused", meant, reason, by, version).run(act, database, app, lane, json=json)


@gates.command("resume")
def resume(
    name: NameArgument = None,
    kind: KindOption = None,
    every: AllOption = False,  # noqa: FBT002
    reason: ReasonOption = "",
    by: ByOption = None,
    version: VersionOption = None,
    lane: LaneOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Resume what is paused. Whatever else keeps a gate shut, such as its breaker, still does.

    Example: [cyan]redrive gates resume bank:DE --reason "the bank is back"[/]
    """

    async def act(chosen: Lane, who: dict[str, Any]) -> bool:
        return await chosen.resume_gate(meant, **who)

    meant = _meant(name, kind, every=every)
    _Deed("{} resumed", meant, reason, by, version).run(act, database, app, lane, json=json)


@dataclass(frozen=True, slots=True)
class _Deed:
    """Something that is done to one gate of one ledger."""

    words: str
    name: str
    reason: str
    by: str | None
    version: int | None

    def run(
        self,
        act: Callable[[Lane, dict[str, Any]], Awaitable[bool]],
        database: str | None,
        app: str | None,
        lane: str | None,
        *,
        json: bool,
    ) -> None:
        """Do it, and say what it came to. Without a lane it is done in redrive's own ledger."""
        if not self.reason.strip():
            raise UsageError("say why: --reason is shown beside the gate and kept")
        who = {"actor": self.by or os_user(), "reason": self.reason.strip(), "version": self.version}

        async def work() -> tuple[bool, str, GateView | None]:
            async with opened_ledgers(database, app, lane) as ledgers:
                chosen = await _home(ledgers.lanes, self.name)
                changed = await act(chosen, who)
                return changed, chosen.name, await chosen.gate_state(self.name)

        changed, ledger, view = run(work())
        if json:
            print_json({"changed": changed, "ledger": ledger, "gate": None if view is None else gate_json(view)})
        elif changed:
            title = self.name if view is None else view.title
            say(f"{escape(self.words.format(title))} in {escape(ledger)}, by {escape(str(who['actor']))}")
        else:
            say(f"nothing changed: {escape(self.name)} in {escape(ledger)} was like that already")
        if not changed:
            raise typer.Exit(PROBLEM)


async def _home(lanes: list[Lane], name: str) -> Lane:
    """The lane that has the gate; where none or several have it, redrive's own, and where that has none, a lane must be named."""
    if len(lanes) == 1:
        return lanes[0]
    holders = []
    if not name.startswith(KIND):
        for lane in lanes:
            try:
                if await lane.gate_state(name) is not None:
                    holders.append(lane)
            except UsageError:
                continue
    own = [lane for lane in lanes if lane.name == TASKS.name]
    if len(holders) == 1:
        return holders[0]
    if holders or not own or name.startswith(KIND):
        there = ", ".join(lane.name for lane in holders or lanes)
        raise UsageError(f"say in which ledger with --lane: {there}")
    return own[0]


def _meant(name: str | None, kind: str | None, *, every: bool) -> str:
    if sum((name is not None, kind is not None, every)) != 1:
        raise UsageError("say which: a gate, --kind or --all")
    return EVERYTHING if every else f"{KIND}{kind}" if kind is not None else str(name)


def _whole(option: str, text: str | None) -> int | None:
    if text is None or text == NONE:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{option} is a whole number or none, not {text!r:.80}")
    return int(text)


def _share(option: str, text: str | None) -> float | None:
    if text is None or text == NONE:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} is a share such as 0.2 or none, not {text!r:.80}") from None
