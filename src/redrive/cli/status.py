"""`redrive status` and `redrive top`: how things are, in the sentences of the first page."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from redrive.chores import WriteProof
from redrive.cli.opened import Ledgers, on_ledgers
from redrive.cli.options import AppOption, DatabaseOption, JsonOption, duration_option
from redrive.cli.output import PROBLEM, out, print_json
from redrive.cli.where import Where
from redrive.engine.worker_settings import worker_name
from redrive.lane import Lane
from redrive.operator.verdict import (
    ButtonAct,
    Rank,
    Sentence,
    Tone,
    Trouble,
    Verdict,
    gather,
    judge,
    plain,
    verdict_json,
)
from redrive.operator.verdict.words import share_words, span_said, took_words

KINDS_SHOWN = 15
COUNT_WITHIN = timedelta(seconds=2)
COLOURS = {
    Rank.STOPPED: "bold red",
    Rank.DYING: "bold red",
    Rank.ASKED: "bold red",
    Rank.HELD: "yellow",
    Rank.HEALS: "yellow",
    Rank.DEAD: "yellow",
    Rank.READY: "cyan",
}
TONES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARN: "yellow", Tone.BAD: "red"}
BARS = " ▁▂▃▄▅▆▇█"
EveryOption = Annotated[timedelta, duration_option("--every", "How often to look.")]
LooksOption = Annotated[
    int | None, typer.Option("--looks", min=1, help="Stop after this many refreshes; by default at Ctrl-C.")
]


def status(database: DatabaseOption = None, app: AppOption = None, json: JsonOption = False) -> None:
    """Say how things are: what is wrong, what will happen on its own, and what is safe to do.

    All ledgers of the database, those of its systems too. It makes one small write, to see that writes go through, and counts what nobody has counted lately. Times are in your zone.
    The exit code is 1 if anything is wrong.

    Example: [cyan]redrive status --json[/]
    """
    verdict = on_ledgers(look, Where(database, app, None, json))
    if json:
        print_json(verdict_json(verdict))
    else:
        console = out()
        for part in told(verdict):
            console.print(part, soft_wrap=True)
    if not verdict.is_well:
        raise typer.Exit(PROBLEM)


def top(
    database: DatabaseOption = None,
    app: AppOption = None,
    every: EveryOption = timedelta(seconds=2),
    looks: LooksOption = None,
) -> None:
    """Show how things are and what each kind does, live, until Ctrl+C.

    Example: [cyan]redrive top --every 5s[/]
    """

    async def watch(ledgers: Ledgers) -> None:
        with Live(console=out(), auto_refresh=False, screen=False) as live:
            left = looks
            while True:
                live.update(Group(*screen(await look(ledgers))), refresh=True)
                left = None if left is None else left - 1
                if left == 0:
                    return
                await asyncio.sleep(max(0.5, every.total_seconds()))

    with suppress(KeyboardInterrupt):
        on_ledgers(watch, Where(database, app))


async def look(ledgers: Ledgers) -> Verdict:
    """Look once at all ledgers, and prove a write."""
    store = ledgers.app.store
    proof = WriteProof(store, worker_name())
    with suppress(Exception):  # what it says of it is in the verdict
        await proof.prove()
    await _count(ledgers)
    return judge(await gather(store, ledgers.lanes, proof.once()))


async def _count(ledgers: Ledgers) -> None:
    """Where no service runs nobody counts, and what people have dealt with would still be told. A large table is told as it was last counted."""

    async def count(lane: Lane) -> None:
        with suppress(Exception):  # a role that only reads, or a store that is away, which the verdict says
            await (await lane.census()).take_if_due()

    with suppress(TimeoutError):
        async with asyncio.timeout(COUNT_WITHIN.total_seconds()):
            await asyncio.gather(*map(count, ledgers.lanes))


# --- what is printed ------------------------------------------------------------------------------------------------------


def told(verdict: Verdict) -> Iterator[Text]:
    """The verdict: title, troubles, quiet lines."""
    style = "green" if verdict.is_well else "bold" if not any(one.needs_you for one in verdict.troubles) else "bold red"
    yield Text(verdict.title, style=style)
    yield Text(_said(verdict.summary, verdict))
    for one in verdict.troubles:
        yield Text()
        yield from _trouble(one, verdict)
    if verdict.more:
        yield Text(f"and {verdict.more:,} more", style="dim")
    for line in verdict.quiet:
        yield Text()
        yield Text(_said(line, verdict), style="dim")


def _trouble(one: Trouble, verdict: Verdict) -> Iterator[Text]:
    yield Text(one.rank.words, style=COLOURS[one.rank])
    yield Text(f"  {_said(one.told, verdict)}")
    yield Text("  By itself: ", style="dim") + Text(_said(one.by_itself, verdict), style="not dim")
    yield Text("  Safe: ", style="dim") + Text(_said(one.safe, verdict), style="not dim")
    if command := _command(one):
        yield Text(f"  {command}", style="cyan")


def _command(one: Trouble) -> str | None:
    """What to type instead of the button."""
    button = one.button
    if button is None:
        return None
    if button.act is ButtonAct.PAUSE_KIND:
        return f"redrive gates pause --kind {button.kind} --lane {button.ledger} --reason WHY"
    return f"redrive operations start --cause {button.cause} --at-most 1 --lane {button.ledger} --reason WHY"


def screen(verdict: Verdict) -> Iterator[RenderableType]:
    """The verdict, the strip of figures and the kinds."""
    yield Text(f"{_local(verdict.at)}  {verdict.title}", style="green" if verdict.is_well else "bold")
    yield Text(_said(verdict.summary, verdict))
    for one in verdict.troubles:
        line = Text(f"{one.rank.words}: ", style=COLOURS[one.rank])
        yield line + Text(_said(one.told, verdict), style="not bold default")
    strip = Table.grid(padding=(0, 2))
    strip.add_row(*(Text(figure.name, style="dim") for figure in verdict.strip))
    strip.add_row(*(Text(figure.value, style=TONES[figure.tone]) for figure in verdict.strip))
    strip.add_row(*(Text(_said(figure.note, verdict), style="dim") for figure in verdict.strip))
    yield Padding(strip, (1, 0))
    yield _kinds(verdict) if verdict.kinds or not verdict.kinds_note else Text(verdict.kinds_note, style="dim")


def _kinds(verdict: Verdict) -> Table:
    table = Table("kind", "health", "last hour", box=None, pad_edge=False)
    for name in ("tries", "failed", "p50", "p95", "oldest due", "waiting", "parked", "dead"):
        table.add_column(name, justify="right")
    for one in verdict.kinds[:KINDS_SHOWN]:
        table.add_row(
            escape(one.kind), Text(one.health, style=COLOURS[one.rank] if one.rank else ""), _bars([point.tries for point in one.trend]),
            f"{one.tries:,}", share_words(one.failures, one.tries), _took(one.p50), _took(one.p95),
            "–" if one.oldest_due is None else span_said(one.oldest_due), f"{one.waiting:,}{'+' if one.waiting_more else ''}", f"{one.parked:,}", f"{one.dead:,}",
        )  # fmt: skip
    if (left := len(verdict.kinds) - KINDS_SHOWN) > 0:
        table.add_row(Text(f"{left:,} more kinds", style="dim"))
    return table


def _bars(points: list[int]) -> str:
    most = max(points, default=0)
    return "".join(BARS[-(-point * (len(BARS) - 1) // most)] if most else BARS[0] for point in points[-30:])


def _took(span: timedelta | None) -> str:
    return "–" if span is None else took_words(span)


def _said(sentence: Sentence, verdict: Verdict) -> str:
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return plain(sentence, now=verdict.at, zone=zone)


def _local(instant: datetime) -> str:
    return f"{instant.astimezone():%H:%M:%S}"
