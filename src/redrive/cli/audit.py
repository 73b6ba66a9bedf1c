"""`redrive audit`: who did what, from where and why, and whether all of it is still there."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from redrive.app import Redrive
from redrive.cli.listing import say_more
from redrive.cli.opened import on_store, person
from redrive.cli.options import AfterOption, AppOption, DatabaseOption, JsonOption, duration_option
from redrive.cli.output import PROBLEM, complain, err, exactly, out, print_json, say
from redrive.operator.audit import AuditEntry
from redrive.operator.chain import ChainHead, ChainVerdict, read_head
from redrive.operator.json_views import audit_json
from redrive.ports import Page

audit = typer.Typer(
    help="See who did what, from where and why, and whether all of it is still there.", no_args_is_help=True
)

LimitOption = Annotated[int, typer.Option(help="How many to show.", min=1, max=1000)]


@audit.command("list")
def list_acts(
    ledger: Annotated[
        str | None, typer.Option(help="Only what was done to this: a ledger, or another name in the audit.")
    ] = None,
    limit: LimitOption = 50,
    after: AfterOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """List acts of people and systems, newest first: one row per act, however many tasks it changed.

    Example: [cyan]redrive audit list --ledger redrive_task[/]
    """
    found = on_store(lambda opened: opened.store.audit.page(ledger, cursor=after, limit=limit), database, app)
    if json:
        print_json({"acts": [audit_json(one) for one in found.items], "after": found.cursor})
        return
    if found.items:
        out().print(_table(found.items))
    else:
        say("nobody has acted yet")
    say_more(found.cursor)


@audit.command("show")
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The act's id, as `redrive audit list` shows it.")],
    limit: LimitOption = 100,
    after: AfterOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Show one act, and the ids of what it changed, page by page.

    Example: [cyan]redrive audit show 17[/]
    """

    async def read(opened: Redrive) -> tuple[AuditEntry | None, Page[str]]:
        log = opened.store.audit
        return await log.get(id), await log.things(id, cursor=after, limit=limit)

    entry, things = on_store(read, database, app)
    if entry is None:
        complain(f"there is no act {id!r} in the audit: `redrive audit list` shows all")
        raise typer.Exit(PROBLEM)
    if json:
        print_json(audit_json(entry) | {"things": things.items, "after": things.cursor})
        return
    console = out()
    console.print(f"[bold]{escape(entry.act)}[/] by {escape(entry.actor)} at {exactly(entry.at)}")
    told = {
        "why": entry.reason,
        "from": entry.origin,
        "asked for": ", ".join(f"{name} {value}" for name, value in entry.asked.items()),
        "chain": "" if entry.number is None else f"line {entry.number}",
        "written": "after the act: by older code, or by a system that writes no lines" if entry.folded else "",
    }
    for name, text in told.items():
        if text:
            console.print(f"  [dim]{name}[/] {escape(text)}")
    console.print(f"  changed {entry.amount:,} in {escape(entry.ledger)}")
    for thing in things.items:
        console.print(f"    {escape(thing)}", soft_wrap=True)
    say_more(things.cursor)


@audit.command("head")
def head(database: DatabaseOption = None, app: AppOption = None, json: JsonOption = False) -> None:
    """Link what is not linked yet, and print the head of the chain. Keep it where nobody who can write to the database can change it.

    Example: [cyan]redrive audit head[/]
    """

    async def link(opened: Redrive) -> ChainHead:
        await opened.store.chain.link()
        return await opened.store.chain.head()

    found = on_store(link, database, app)
    if json:
        print_json({"number": found.number, "hash": found.hash, "head": str(found)})
    else:
        out().print(str(found), markup=False, soft_wrap=True)


@audit.command("verify")
def verify(
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", help="A head that you kept elsewhere: without one, lines removed at the end go unnoticed."
        ),
    ] = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Read the whole audit, and say whether a line was changed or removed since it was linked, and which. Exit code 1 if so.

    Example: [cyan]redrive audit verify --head 412:9f86d081…[/]
    """
    if head is not None:
        read_head(head)  # before the store is opened: a head that is none needs no database

    async def read(opened: Redrive) -> ChainVerdict:
        with Progress(TextColumn("reading"), MofNCompleteColumn(), console=err(), transient=True) as bar:
            shown = bar.add_task("", total=None)
            return await opened.store.chain.verify(head=head, progress=lambda amount: bar.advance(shown, amount))

    found = on_store(read, database, app)
    if json:
        print_json(_verdict_json(found))
    else:
        _say_verdict(found)
    if not found.is_whole:
        raise typer.Exit(PROBLEM)


def _verdict_json(found: ChainVerdict) -> dict[str, Any]:
    return {
        "whole": found.is_whole,
        "lines": found.lines,
        "head": str(found.head),
        "begins_after": found.begins.number,
        "folded": found.folded,
        "unlinked": found.unlinked,
        "findings": [{"number": one.number, "sentence": one.sentence} for one in found.findings],
        "more": found.more,
    }


def _say_verdict(found: ChainVerdict) -> None:
    for one in found.findings:
        complain(one.sentence)
    if found.more:
        complain(f"and {found.more:,} more")
    if found.is_whole:
        say(f"[green]{found.lines:,} lines are as they were when they were linked[/], and none in between is missing")
    if found.begins.number:
        say(f"older lines were pruned: the chain begins after line {found.begins.number:,}")
    if found.folded:
        say(
            f"{found.folded:,} lines tell of what older code or another system wrote without a line: they hold since they were linked"
        )
    if found.unlinked:
        say(
            f"{found.unlinked:,} lines are not linked yet, and not protected until a service runs or `redrive audit head` is called"
        )
    say(f"head: {found.head}")


@audit.command("prune")
def prune(
    older_than: Annotated[timedelta, duration_option("--older-than", "Delete lines older than this, such as 90d.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the audit.")],
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Delete old lines. A line says so, and the chain can be verified as before; a head from before them cannot be compared any more.

    Example: [cyan]redrive audit prune --older-than 90d --reason "kept for a quarter"[/]
    """
    by = replace(person(), reason=reason)
    gone = on_store(lambda opened: opened.store.chain.prune(older_than, by=by), database, app)
    if json:
        print_json({"pruned": gone})
    else:
        say(f"{gone:,} lines were pruned")


def _table(entries: Sequence[AuditEntry]) -> Table:
    table = Table(box=None, header_style="bold", expand=True)
    for name in ("id", "when", "who", "what", "on"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in entries:
        things = one.task_id if one.task_id is not None else f"{one.amount:,}"
        on = f"{things} in {one.ledger}"
        table.add_row(
            str(one.id), exactly(one.at), escape(one.actor), escape(one.act), escape(on), escape(one.reason or "–")
        )
    return table
