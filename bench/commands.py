"""The command bus beside reliable-cmd, on the same server in the same run. `python -m bench.commands`.

Both send commands in batches and handle them in one process, with PGMQ under them and a backoff of zero: no-op commands, and
commands whose first try fails. Each round is verified: every command handled exactly once, and the store says the same. The run
fails unless redrive handles at least ten times as many no-op commands per second.
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.__main__ import measure, state, stop
from bench.job import WORKS
from bench.measure import Measurement, Runner
from bench.servers import servers
from bench.systems import Rates, System
from bench.venv import BUILD, peers_python

BOUND = 10.0
PEER = System("reliable-cmd", "postgres", "peer", "bench.systems.reliable_cmd", Rates(3_000, 300, 150))
OURS = System("redrive", "postgres", "ours", "bench.systems.redrive_commands", Rates(25_000, 10_000, 5_000), "project")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.commands", description="The command bus beside reliable-cmd."
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds per measurement, the median counts (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="length of a round; 1 aims at 5 s (default 1)")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="limit per process (default 180)")
    parser.add_argument("--folder", type=Path, help="a folder on a disk for all data (default: the temporary folder)")
    parser.add_argument("--peers", type=Path, help="an interpreter that has the peers (default: their own venv)")
    parser.add_argument("--output", type=Path, default=BUILD / "bench-commands.json", help="where the results go")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.scale <= 0 or options.limit <= 0:
        parser.error("--rounds, --scale and --limit must be above zero")
    return options


def show(measurements: list[Measurement], console: Console) -> float:
    """A table, and how many times as many no-op commands redrive handled."""
    table = Table(title="Commands per second, median of the rounds", title_justify="left")
    for heading in ("work", PEER.name, OURS.name, "×"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    ratios = {}
    for work in WORKS:
        peer, ours = (
            next(one for one in measurements if one.work == work and one.system is each) for each in (PEER, OURS)
        )
        ratios[work] = ours.rate / peer.rate
        table.add_row(work, f"{peer.rate:,.0f}", f"{ours.rate:,.0f}", f"{ratios[work]:.1f}")
    console.print(table)
    return ratios["run"]


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    console = Console()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with console.status("making the peers' venv ready"):
        python = options.peers or peers_python()
    measurements = [Measurement(system, work) for work in WORKS for system in (PEER, OURS)]
    try:
        with servers(options.folder, postgres=True, rabbitmq=False) as running:
            state(running.postgres, console)
            runner = Runner(running, python, scale=options.scale, limit_seconds=options.limit)
            measure(measurements, options.rounds, runner, console)
    except KeyboardInterrupt:
        console.print("[red]stopped before the end; nothing was saved[/]")
        return 130
    if any(each.failure for each in measurements):
        console.print("[red bold]not saved, because a measurement failed[/]")
        return 1
    ratio = show(measurements, console)
    results = [
        {
            "system": each.system.name,
            "work": each.work,
            "commands_per_second": round(each.rate, 1),
            "rounds": each.rates,
        }
        for each in measurements
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"saved to {options.output}", highlight=False)
    if ratio < BOUND:
        console.print(f"[red bold]redrive handled {ratio:.1f} times as many, which is less than {BOUND:g}[/]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
