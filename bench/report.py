"""What was measured, as a table for people and as JSON for the docs."""

import json
from pathlib import Path
from typing import TypedDict

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


def save(rows: list[Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n")
