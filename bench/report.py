"""What was measured, as a table for people and as JSON for the docs."""

import json
from pathlib import Path
from typing import NamedTuple, TypedDict

from rich import box
from rich.console import Console
from rich.table import Table

from bench.job import WORKS, Work
from bench.measure import Measurement

CAPTION = (
    "add: store durably · run: work off stored tasks · fail_once: the first try raises, the second succeeds\n"
    "of raw: the hand-written loop on the same store · × peer: the best peer on any store"
)


class Result(TypedDict):
    work: Work
    system: str
    store: str
    tasks_per_second: float
    ratio_to_raw: float | None
    ratio_to_best_peer: float | None
    spread: list[float]
    how: str
    client_us: float
    server_us: float | None
    wal_bytes: float | None


class Bound(NamedTuple):
    """What must hold in one run."""

    measure: str
    value: float
    least: float

    @property
    def holds(self) -> bool:
        return self.value >= self.least


BOUNDS_OF_PEERS = (
    ("fail_once", "redrive-postgres", None, 12.0),
    ("run", "redrive-postgres", None, 2.2),
    ("fail_once", "redrive-sqlite", "huey", 18.0),
    ("add", "redrive-postgres", "pgqueuer", 1.0),
)
"""Work, who does it, beside whom (the best peer where nobody is named), and at least how many times as fast."""
RAW_LEAST = 0.8
"""So much of the hand-written loop, at both works on both databases."""


def results(measurements: list[Measurement]) -> list[Result]:
    """Medians, with the raw loop on the same store and the best peer on any store as yardsticks."""
    rows: list[Result] = []
    for each in measurements:
        if not each.samples:
            continue
        same_work = [other for other in measurements if other.work == each.work and other.samples]
        raw = [m.rate for m in same_work if m.system.role == "raw" and m.system.store == each.system.store]
        peers = [m.rate for m in same_work if m.system.role == "peer"]
        rows.append(
            Result(
                work=each.work,
                system=each.system.name,
                store=each.system.store,
                tasks_per_second=round(each.rate, 1),
                ratio_to_raw=round(each.rate / max(raw), 4) if raw else None,
                ratio_to_best_peer=round(each.rate / max(peers), 4) if peers else None,
                spread=[round(min(each.rates), 1), round(max(each.rates), 1)],
                how=each.system.how,
                client_us=round(each.client_us, 1),
                server_us=None if each.server_us is None else round(each.server_us, 1),
                wal_bytes=None if each.wal_bytes is None else round(each.wal_bytes),
            )
        )
    return rows


def show(rows: list[Result], console: Console) -> None:
    """One table, a section for each work, the fastest first."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # fits eighty columns
    table.title, table.title_justify, table.caption = "Tasks per second, median of the rounds", "left", CAPTION
    for heading in ("work", "system", "store"):
        table.add_column(heading, no_wrap=True)
    for heading in ("tasks/s", "spread", "of raw", "× peer"):
        table.add_column(heading, justify="right", no_wrap=True)
    for work in WORKS:
        of_work = sorted((row for row in rows if row["work"] == work), key=lambda row: -row["tasks_per_second"])
        for row in of_work:
            table.add_row(
                work,
                row["system"],
                row["store"],
                f"{row['tasks_per_second']:,.0f}",
                "–".join(f"{rate:,.0f}" for rate in row["spread"]),
                "–" if row["ratio_to_raw"] is None else f"{row['ratio_to_raw']:.0%}",
                "–" if row["ratio_to_best_peer"] is None else f"{row['ratio_to_best_peer']:.2f}",
            )
        table.add_section()
    console.print(table)


def show_costs(rows: list[Result], console: Console) -> None:
    """What a task costs whatever else the machine does."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.title, table.title_justify = "What a task costs, the lowest of the rounds", "left"
    table.caption = "µs of processor time: of the worker's processes, and of all of PostgreSQL's; bytes that PostgreSQL writes ahead"
    for heading in ("work", "system"):
        table.add_column(heading, no_wrap=True)
    for heading in ("worker", "server", "WAL"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how")
    for work in WORKS:
        for row in (row for row in rows if row["work"] == work):
            server, wal = row["server_us"], row["wal_bytes"]
            table.add_row(
                work,
                row["system"],
                f"{row['client_us']:,.1f}",
                "–" if server is None else f"{server:,.1f}",
                "–" if wal is None else f"{wal:,.0f}",
                row["how"],
            )
        table.add_section()
    console.print(table)


def bounds(rows: list[Result]) -> list[Bound]:
    """What must hold, as far as it was measured."""
    found = {(row["work"], row["system"]): row for row in rows}
    held = []
    for work, system, beside, least in BOUNDS_OF_PEERS:
        ours = found.get((work, system))
        other = None if beside is None else found.get((work, beside))
        if ours is None or (beside is not None and other is None):
            continue
        best = ours["ratio_to_best_peer"]
        ratio = best if other is None else ours["tasks_per_second"] / other["tasks_per_second"]
        if ratio is not None:
            held.append(Bound(f"{work}: {system} / {beside or 'best peer'}", round(ratio, 2), least))
    for store in ("postgres", "sqlite"):
        for work in ("run", "fail_once"):
            ours = found.get((work, f"redrive-{store}"))
            if ours is not None and ours["ratio_to_raw"] is not None:
                held.append(Bound(f"{work}: redrive-{store} / raw loop", round(ours["ratio_to_raw"], 2), RAW_LEAST))
    return held


def show_bounds(bounds: list[Bound], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.title, table.title_justify = "What must hold", "left"
    for heading in ("measure", "times", "at least", "holds"):
        table.add_column(heading)
    for bound in bounds:
        table.add_row(
            bound.measure, f"{bound.value}", f"{bound.least}", "[green]yes[/]" if bound.holds else "[red bold]no[/]"
        )
    console.print(table)


def save(rows: list[Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n")
