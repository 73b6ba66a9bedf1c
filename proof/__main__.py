"""The command line: `python -m proof`, all scenarios; `python -m proof strangers`, some. `PROOF=short` is minutes instead of hours, `PROOF_SHARE=0.1` a tenth of each size where time is short and figures are wanted, `PROOF_SEED=N` the same chance again, `PROOF_STORES=sqlite` one database alone, `PROOF_PROCESSES=1` one process for the simulator, which goes on where it was ended."""

import fcntl
import importlib
import json
import os
import pkgutil
import platform
import re
import resource
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

import proof
from proof.ground import STORES
from proof.scenario import NOT_TRIED, SCENARIOS, Found, Scenario, share

for module in pkgutil.iter_modules(proof.__path__):  # they register their scenarios
    if module.name != "__main__":
        importlib.import_module(f"proof.{module.name}")

ROOT = Path(__file__).resolve().parent.parent
FILES = 8192
FULL = (
    "All of it at full size: 500 kills over 100,000 tasks for the engine and each system on each database, 100,000 seeds, 2,000 commits, 100 "
    "kills of PostgreSQL over 20,000 tasks, a million requests, 30 examples for schemathesis, 250,000 odd messages, 10,000 odd values on "
    "each database, 3,000 tasks at each step of an upgrade, 24 hours at 50 tasks a second, ten minutes of drift. A line that says less was "
    "run at a share of it, on two cores that others used as well."
)


def main(names: list[str]) -> int:
    """Run scenarios, print what they found as it comes, and write it down; 1 if a promise did not hold."""
    console = Console(highlight=False)
    known = {one.name: one for one in SCENARIOS}
    if unknown := [name for name in names if name not in known]:
        console.print(f"there is no scenario {', '.join(unknown)}: choose from {', '.join(known)}", markup=False)
        return 2
    short = os.environ.get("PROOF") == "short"
    _more_files()
    results: list[tuple[Scenario, list[Found]]] = []
    for one in [known[name] for name in names] or SCENARIOS:
        console.print(f"[bold]{one.name}[/]: {one.promise}")
        found: list[Found] = []
        for each in one.run(short):
            found.append(each)
            console.print(f"  {'[green]holds[/]' if each.holds else '[red]FAILS[/]'}  {each.tried}: {each.figure}")
        results.append((one, found))
        _write(results, short=short)
        if not short:
            _publish(one, found)
    return 0 if all(each.holds for _, found in results for each in found) else 1


def _write(results: list[tuple[Scenario, list[Found]]], *, short: bool) -> None:
    """Write down what this run has found so far."""
    told = [
        {"scenario": one.name, "promise": one.promise, "tried": each.tried, "figure": each.figure, "holds": each.holds}
        for one, found in results
        for each in found
    ]
    (_build() / "proof.json").write_text(json.dumps({"at": _today(), "short": short, "found": told}, indent=2) + "\n")


def _publish(ran: Scenario, found: Sequence[Found]) -> None:
    """Put what a scenario found into the docs, in which the others keep their lines. Several campaigns may run at once: one writes at a time."""
    rows = [
        f"| {ran.promise} | {each.tried} | {each.figure} | {'yes' if each.holds else '**no**'} | {_today()} |"
        for each in found
    ]
    docs = ROOT / "docs" / "proof.md"
    with (_build() / "proof.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = _lines(docs.read_text().splitlines(), rows, ran)
        docs.write_text(
            "# Proof\n\n"
            f"Found by the scenarios of `make proof`, some of them run alone and each at the size that its line says, with Python {platform.python_version()} and {os.cpu_count()} cores; the short form of it writes nothing here.\n\n"
            "| promise | how it was tried | what was found | holds | on |\n| --- | --- | --- | --- | --- |\n"
            + "\n".join(lines)
            + "\n\n## What could not be tried here\n\n"
            + "".join(f"- {one}\n" for one in [*NOT_TRIED, FULL, *_never(lines)])
        )


def _never(lines: Sequence[str]) -> list[str]:
    """What has no line."""
    names = [one.name for one in SCENARIOS if not any(line.startswith(f"| {one.promise} |") for line in lines)]
    return [f"Scenarios that have not come to their end at any size worth a line: {', '.join(names)}."] if names else []


def _build() -> Path:
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    return build


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _lines(published: Sequence[str], rows: Sequence[str], ran: Scenario) -> list[str]:
    """What stays of the lines that are published, and the new ones. A share of the full size puts none out of its place that tells of more."""
    left = tuple(f"| {one.promise} |" for one in SCENARIOS if one is not ran)
    left_stores = tuple(f"| {ran.promise} | {store}" for store in {"postgres", "sqlite"} - {*STORES})
    kept = [line for line in published if line.startswith(left + left_stores)]
    if share() == 1:
        return [*kept, *rows]
    new = {_words(row): row for row in rows}
    for line in published:
        if line.startswith(f"| {ran.promise} |") and line not in kept:
            row = new.get(_words(line))
            if row is None or any(one < other for one, other in zip(_numbers(row), _numbers(line), strict=True)):
                kept.append(line)
                if row is not None and "| yes |" in row:
                    del new[_words(line)]
    return [*kept, *new.values()]


NUMBER = re.compile(r"\d[\d,]*")


def _words(line: str) -> str:
    """The promise and how it was tried, whatever its size."""
    return NUMBER.sub("#", "|".join(line.split(" | ")[:2]))


def _numbers(line: str) -> list[int]:
    """How much was tried."""
    return [int(one.replace(",", "")) for one in NUMBER.findall(line.split(" | ")[1])]


def _more_files() -> None:
    """Attackers need files too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
