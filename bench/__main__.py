"""The command line: `python -m bench --only pgqueuer,raw-postgres --works run,fail_once --rounds 1 --scale 0.2`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench import report
from bench.job import WORKS, Work
from bench.measure import Measurement, MeasurementError, Runner
from bench.servers import PostgreSQL, servers
from bench.systems import SYSTEMS, System
from bench.venv import BUILD, peers_python

T = TypeVar("T")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure redrive, its peers and raw limits.")
    names = ", ".join(system.name for system in SYSTEMS)
    parser.add_argument("--only", metavar="NAMES", help=f"systems to measure, separated by commas: {names}")
    parser.add_argument("--works", metavar="WORKS", help=f"works to measure, separated by commas: {', '.join(WORKS)}")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per measurement, the median counts (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="length of a round; 1 aims at 5 s (default 1)")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="limit per process (default 180)")
    parser.add_argument("--folder", type=Path, help="a folder on a disk for all data (default: the temporary folder)")
    parser.add_argument("--output", type=Path, default=BUILD / "bench.json", help="results (default build/bench.json)")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.scale <= 0 or options.limit <= 0:
        parser.error("--rounds, --scale and --limit must be above zero")
    options.systems = chosen(parser, options.only, {system.name: system for system in SYSTEMS})
    options.works = chosen(parser, options.works, {work: work for work in WORKS})
    return options


def chosen(parser: argparse.ArgumentParser, names: str | None, known: dict[str, T]) -> list[T]:
    if names is None:
        return list(known.values())
    wanted = [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return [known[name] for name in wanted]


def measure(measurements: list[Measurement], rounds: int, runner: Runner, console: Console) -> None:
    """Go through all systems once per round, so that a noisy minute does not fall on one system alone."""
    current = TextColumn("{task.description}")
    with Progress(
        SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), current, console=console
    ) as progress:
        bar = progress.add_task("", total=len(measurements) * rounds)

        def announce(each: Measurement, number: int, tasks: int) -> None:
            progress.update(bar, description=f"{each.system.name} · {each.work} · round {number} · {tasks:,} tasks")

        for number in range(1, rounds + 1):
            for each in measurements:
                label = f"{each.system.name} · {each.work} · round {number}"
                if each.failure is None:
                    try:
                        sample = runner.round(each, partial(announce, each, number))
                    except MeasurementError as failure:
                        each.failure = str(failure)
                        console.print(f"[red bold]failed:[/] {label}", highlight=False)
                        console.print(each.failure, markup=False, highlight=False)
                    else:
                        each.samples.append(sample)
                        took = f"{sample.tasks:,} tasks in {sample.seconds:.1f} s"
                        console.print(f"{label}: [bold]{sample.rate:,.0f}/s[/] ({took})", highlight=False)
                progress.advance(bar)


def state(postgres: PostgreSQL | None, console: Console) -> None:
    """Say what the figures depend on: the server's settings, and whether somebody else is at work."""
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy > cores / 4:
        console.print(f"[yellow]the machine is busy (load {busy:.1f} on {cores} cores): figures will be noisy[/]")
    if postgres is not None:
        stated = ", ".join(f"{name} {value}" for name, value in postgres.settings().items())
        console.print(f"PostgreSQL: {stated}", highlight=False)


def stop(number: int, _frame: FrameType | None) -> None:
    """Ctrl-C and TERM end the same way: through every `finally`, so no server stays behind."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    console = Console()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with console.status("making the peers' venv ready"):
        python = peers_python()
    systems = cast("list[System]", options.systems)
    works = cast("list[Work]", options.works)
    measurements = [Measurement(system, work) for work in works for system in systems if work in system.works]
    stores = {system.store for system in systems}
    try:
        with servers(options.folder, postgres="postgres" in stores, rabbitmq="rabbitmq" in stores) as running:
            state(running.postgres, console)
            runner = Runner(running, python, scale=options.scale, limit_seconds=options.limit)
            measure(measurements, options.rounds, runner, console)
    except KeyboardInterrupt:
        console.print("[red]stopped before the end; nothing was saved[/]")
        return 130
    rows = report.results(measurements)
    report.show(rows, console)
    report.show_costs(rows, console)
    bounds = report.bounds(rows)
    report.show_bounds(bounds, console)
    if failed := [f"{each.system.name} · {each.work}" for each in measurements if each.failure]:
        console.print(f"[red bold]not saved, because these failed:[/] {', '.join(failed)}", highlight=False)
        return 1
    report.save(rows, options.output)
    console.print(f"saved to {options.output}", highlight=False)
    return 0 if all(bound.holds for bound in bounds) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
