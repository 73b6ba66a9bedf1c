"""`redrive effects`: tasks whose effects may or may not have happened, and the answers of people."""

from typing import Annotated

import typer
from rich.markup import escape

from redrive.cli.listing import listed, say_rest
from redrive.cli.opened import Ledgers, on_ledgers, os_user
from redrive.cli.options import AfterOption, ByOption
from redrive.cli.output import PROBLEM, out, print_json, say
from redrive.cli.task_acts import by_lane
from redrive.cli.tasks import ReasonOption
from redrive.cli.where import Where, with_ledgers
from redrive.core.task import TaskId
from redrive.operator.effects import read_answer, unknown_json
from redrive.operator.json_views import id_json

effects = typer.Typer(help="Say whether an effect happened when nothing could find out.", no_args_is_help=True)


@effects.command("list")
@with_ledgers
def list_effects(
    probing: Annotated[
        bool,
        typer.Option("--probing", help="Those whose probe is still being asked, instead of those that need a person."),
    ] = False,
    limit: Annotated[int, typer.Option(help="How many to show.", min=1, max=500)] = 50,
    after: AfterOption = None,
    *,
    where: Where,
) -> None:
    """List the tasks that ended inside their effects without an answer, with all that is known of each.

    Example: [cyan]redrive effects list[/]
    """
    found = listed(
        lambda lane, cursor, most: lane.unknown_effects(needs_person=not probing, cursor=cursor, limit=most),
        where, after=after, limit=limit,
    )  # fmt: skip
    if where.json:
        print_json(
            {"effects": [unknown_json(one) for _, one in found.items], "after": found.after, "unseen": found.unseen}
        )
    elif not found.items:
        say(
            "no probe is being asked" if probing else "nothing to answer: every effect is known to have happened or not"
        )
    else:
        console = out()
        for ledger, one in found.items:
            named = escape(f"{one.task.kind} {one.task.key}")
            console.print(f"[bold]{escape(str(one.task.id))}[/] {named} [dim]{escape(ledger)}[/]")
            console.print(f"  the try: {escape(one.mark.error or 'its worker was lost')}")
            console.print(f"  {escape(one.says())}")
    say_rest(found, where)


@effects.command("answer")
@with_ledgers
def answer(
    ids: Annotated[list[str], typer.Argument(metavar="ID|KEY...", help="The tasks, by id or key.")],
    said: Annotated[
        str, typer.Option("--answer", help="happened (done), not-happened (retried) or close (cancelled).")
    ],
    reason: ReasonOption = "",
    by: ByOption = None,
    *,
    where: Where,
) -> None:
    """Say whether the effects of tasks happened. Until then nothing runs them.

    Example: [cyan]redrive effects answer payment-7 --answer happened --reason "it is in the bank's books"[/]
    """
    meant, actor = read_answer(said), by if by is not None else os_user()

    async def answer(ledgers: Ledgers) -> tuple[list[tuple[str, TaskId]], dict[str, str]]:
        changed: list[tuple[str, TaskId]] = []
        refused: dict[str, str] = {}
        for one, names in (await by_lane(ledgers.lanes, ids)).items():
            acted = await one.answer(names, meant, actor=actor, reason=reason.strip())
            changed += [(one.name, id_) for id_ in acted.changed]
            refused |= {str(id_): why for id_, why in acted.refused.items()}
        return changed, refused

    changed, refused = on_ledgers(answer, where)
    if where.json:
        answered = [{"ledger": ledger, "id": id_json(id_)} for ledger, id_ in changed]
        print_json({"answer": said, "changed": answered, "refused": refused})
    else:
        for id_, why in refused.items():
            say(f"task {escape(id_)} was left alone: {escape(why)}")
        say(f"{said}: {len(changed)} answered, by {escape(actor)}")
    if not changed:
        raise typer.Exit(PROBLEM)
