"""The command bus beside reliable-cmd, on the same server in the same run. `python -m bench.commands`.

Both send commands in batches and handle them in one process, with PGMQ under them and a backoff of zero: no-op commands, and
commands whose first try fails. Each round is verified: every command handled exactly once, and the store says the same.

How many commands the peer handles at once is a setting of its users, and more is not better: each takes several transactions on
a connection of its own. So it is measured with few, some and many (`bench/systems/reliable_cmd*.py`), and for each work the best
counts. Ours has one setting. The run fails unless redrive handles at least ten times as many commands per second as the peer at
its best, no-op commands and those that fail once alike; the smaller of the two ratios counts.
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
RATES = Rates(3_000, 300, 150)
PEERS = (
    System("reliable-cmd", "postgres", "peer", "bench.systems.reliable_cmd", RATES),
    System("reliable-cmd-few", "postgres", "peer", "bench.systems.reliable_cmd_few", RATES),
    System("reliable-cmd-many", "postgres", "peer", "bench.systems.reliable_cmd_many", RATES),
)
OURS = System("redrive", "postgres", "ours", "bench.systems.redrive_commands", Rates(30_000, 15_000, 7_000), "project")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.commands", description="The command bus beside reliable-cmd."
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds per measurement, the median counts (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="length of a round; 1 aims at 5 s (default 1)")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="limit per process (default 180)")
    parser.add_argument("--folder", type=Path, help="a folder on a disk for all data (default: the temporary folder)")
    parser.add_argument("--peers", type=Path, help="an interpreter that has the peers (default: their own venv)")
    parser.add_argument("--output", type=Path, default=BUILD / "bench-commands.json", help="where the results go")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.scale <= 0 or options.limit <= 0:
        parser.error("--rounds, --scale and --limit must be above zero")
    return options


def planned() -> list[Measurement]:
    """What is measured. Sending does not depend on how many are handled at once, so the peer does it once."""
    return [Measurement(system, work) for work in WORKS for system in (*(PEERS if work != "add" else PEERS[:1]), OURS)]


def show(measurements: list[Measurement], console: Console) -> float:
    """A table, and how many times as many commands redrive handled: the smaller ratio of the works."""
    table = Table(title="Commands per second, median of the rounds", title_justify="left")
    peers = (peer.name.removeprefix("reliable-cmd-") for peer in PEERS)
    for heading in ("work", *peers, OURS.name, "× the best"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    ratios = {}
    for work in WORKS:
        rates = {one.system: one.rate for one in measurements if one.work == work}
        ratios[work] = rates[OURS] / max(rates[peer] for peer in PEERS if peer in rates)
        shown = [f"{rates[peer]:,.0f}" if peer in rates else "" for peer in PEERS]
        table.add_row(work, *shown, f"{rates[OURS]:,.0f}", f"{ratios[work]:.1f}")
    console.print(table)
    return min(ratio for work, ratio in ratios.items() if work != "add")


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    console = Console()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with console.status("making the peers' venv ready"):
        python = options.peers or peers_python()
    measurements = planned()
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
    told = f"redrive handled at least {ratio:.1f} times as many commands, with and without a failed try"
    if ratio < BOUND:
        console.print(f"[red bold]{told}; it must be {BOUND:g}[/]")
        return 1
    console.print(f"{told}; the bound is {BOUND:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
