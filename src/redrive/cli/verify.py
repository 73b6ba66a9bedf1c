"""`redrive verify`: kill and stop real workers on a staging database of yours, and say which promises hold there."""

import asyncio
import random
import secrets
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from redrive.cli.app_path import load_app
from redrive.cli.options import JsonOption
from redrive.cli.output import PROBLEM, out, print_json, say
from redrive.cli.verifying import Promise, Verification


def verify(
    app: Annotated[str, typer.Option("--app", metavar="MODULE:APP", help="Your application; its database is used.")],
    kills: Annotated[int, typer.Option(help="How many workers are killed (kill -9).", min=0, max=10_000)] = 10,
    stalls: Annotated[int, typer.Option(help="How many are stopped past their lease.", min=0, max=1_000)] = 3,
    seed: Annotated[
        int | None, typer.Option(help="Seed for the random choice of which worker is hit, and when.")
    ] = None,
    beside_others: Annotated[
        bool, typer.Option("--beside-others", help="Also on a database in which other tasks wait or run.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Try the promises on a staging database: real workers are killed and stopped while they run tasks of their own.

    No handler of yours runs and no other task is touched; what was added is deleted at the end. Exit code 1 if a promise does not
    hold.

    Example: [cyan]redrive verify --app shop.tasks:app[/]
    """
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    say(f"seed {seed}: kills: {kills}, stalls: {stalls}, about {2 * kills + 6 * stalls} s")
    verdicts = asyncio.run(_verify(app, kills, stalls, seed, beside_others=beside_others))
    if json:
        print_json({"seed": seed, "promises": [asdict(one) for one in verdicts]})
    else:
        out().print(_table(verdicts))
    if not all(one.holds for one in verdicts):
        raise typer.Exit(PROBLEM)


async def _verify(path: str, kills: int, stalls: int, seed: int, *, beside_others: bool) -> list[Promise]:
    async with load_app(path) as opened:
        return await Verification(path, opened, kills, stalls, random.Random(seed), say).run(
            beside_others=beside_others
        )


def _table(verdicts: list[Promise]) -> Table:
    table = Table("promise", "what was found", "holds")
    for one in verdicts:
        table.add_row(one.promise, one.figure, "[green]yes[/]" if one.holds else "[red]no[/]")
    return table
