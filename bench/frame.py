"""The frame of the programs that measure limits: their options, a fresh database, and how a run ends."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.servers import Servers
from bench.venv import BUILD
from redrive import Redrive
from redrive.ledgers.sql.migrate import migrate

FLAT_BOUND = 1.3
"""What does not grow may take so many times as long: the rest is noise."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What was measured, and its bound."""

    measure: str
    store: str
    value: float
    unit: str
    bound: float

    @property
    def holds(self) -> bool:
        return self.value <= self.bound


def parser(name: str, said: str | None) -> argparse.ArgumentParser:
    """What every program takes."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=said)
    made.add_argument("--folder", type=Path, help="a folder on a disk for all data (default: the temporary folder)")
    made.add_argument("--output", type=Path, default=BUILD / f"bench-{name}.json")
    return made


def fresh(running: Servers, store: str, name: str, *, ready: bool = True) -> str:
    """The URL of a new database, with the tables in it if it is to be `ready`."""
    url = f"sqlite:///{running.folder}/{name}.db"
    if store == "postgres":
        assert running.postgres is not None
        url = running.postgres.create(name)
    if ready:
        uvloop.run(prepare(url))
    return url


async def prepare(url: str) -> None:
    """Make the tables."""
    app = Redrive(url)
    await migrate(app.database)
    await app.close()


def show(limits: Sequence[Limit], console: Console) -> None:
    """All of them, and which hold."""
    table = Table(title="Limits", title_justify="left")
    for heading in ("measure", "store", "value", "bound", "holds"):
        table.add_column(heading)
    for limit in limits:
        holds = "[green]yes[/]" if limit.holds else "[red bold]no[/]"
        table.add_row(limit.measure, limit.store, f"{limit.value} {limit.unit}", f"{limit.bound} {limit.unit}", holds)
    console.print(table)


def conclude(limits: Sequence[Limit], output: Path, console: Console) -> int:
    """Show and save them; how the program ends."""
    show(limits, console)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps([asdict(limit) | {"holds": limit.holds} for limit in limits], indent=2) + "\n")
    console.print(f"saved to {output}", highlight=False)
    return 0 if all(limit.holds for limit in limits) else 1
