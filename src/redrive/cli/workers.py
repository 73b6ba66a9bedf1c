"""`redrive workers`: who works, who is lost and what it held."""

from collections.abc import Sequence
from datetime import datetime

from rich.markup import escape
from rich.table import Table

from redrive.app import Redrive
from redrive.cli.opened import on_store
from redrive.cli.options import AppOption, DatabaseOption, JsonOption
from redrive.cli.output import out, print_json, say, when
from redrive.operator.json_views import worker_json
from redrive.operator.roster import WorkerSeen, drift_words
from redrive.operator.words import format_duration

COLOURS = {"lost": "red", "working": "green", "stopped": "dim"}


def workers(database: DatabaseOption = None, app: AppOption = None, json: JsonOption = False) -> None:
    """List the processes that run handlers: which version, last sign of life, what each holds and does, how far its clock is off.

    A lost one ought to be there and has given no sign for 35 seconds; what it held comes back when its leases end.

    Example: [cyan]redrive workers --json[/]
    """

    async def look(opened: Redrive) -> tuple[datetime, Sequence[WorkerSeen]]:
        return await opened.store.present(), await opened.store.roster.seen()

    now, found = on_store(look, database, app)
    told = [worker_json(one, now) for one in found]
    if json:
        print_json(told)
    elif found:
        table = Table("worker", "state", "version", "last seen", "holds", box=None, pad_edge=False)
        for name in ("tries/min", "oldest held", "drift"):
            table.add_column(name, justify="right")
        for one, said in zip(found, told, strict=True):
            kinds = ", ".join(f"{amount} {kind}" for of in one.holds.values() for kind, amount in of.items())
            state = f"[{COLOURS[said['state']]}]{said['state']}[/]"
            table.add_row(
                escape(one.name), state, escape(one.version or "–"), when(one.seen_at), escape(kinds or "nothing"),
                "–" if one.tries_a_minute is None else f"{one.tries_a_minute:,}",
                "–" if one.held_for is None else format_duration(one.held_for), drift_words(one.drift_ms),
            )  # fmt: skip
        out().print(table)
    else:
        say("no worker has been seen in the last week: start one with redrive worker MODULE:APP")
