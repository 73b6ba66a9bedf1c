"""The simulator at full size. `python -m proof.simulation 4711` lives through one seed again, with what happened in it."""

import gc
import hashlib
import json
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from proof.scenario import Found, scenario, sized
from proof.simulator.broken import BROKEN
from proof.simulator.world import Ground, simulate

SEEDS, SHORT = 100_000, 100
PROCESSES = int(os.environ.get("PROOF_PROCESSES", "2"))
PORTION, CHUNK = 1000, 10
"""After each portion it says how far it is; a process takes a chunk at once."""
ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "simulated.json"
CODE = ("src/redrive", "proof/simulator")
CAUGHT_WITHIN = 300
"""In so many seeds each broken engine must be found out."""


@dataclass
class Lived:
    """The seeds from 0 on that were lived through with one and the same code, in however many runs."""

    code: str
    seeds: int = 0
    commits: int = 0
    attempts: int = 0
    met: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    days: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, code: str) -> "Lived":
        """What was written down, unless other code has lived through it: then none of it counts."""
        if path.exists() and (said := json.loads(path.read_text()))["code"] == code:
            return cls(**said | {"met": Counter(said["met"])})
        return cls(code)

    def write(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(vars(self)))
        beside.replace(path)  # a run that is ended in the middle of it leaves the file whole


@scenario("the engine is right in every order of events")
def simulator(short: bool) -> Iterator[Found]:
    """One seed drives clock, scheduling, faults of the ledger, crashes, clock jumps and people; a model looks after every commit.

    What was lived through is in `build/simulated.json` after each portion, and the next run with the same code goes on from there.
    """
    amount = SHORT if short else sized(SEEDS)
    first = int(os.environ.get("PROOF_SEED", "0"))
    kept = not short and not first
    lived = Lived.read(KEPT, code_now()) if kept else Lived("")
    began, already = time.monotonic(), lived.seeds
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        while lived.seeds < amount:
            portion = range(first + lived.seeds, first + min(lived.seeds + PORTION, amount))
            chunks = [portion[start : start + CHUNK] for start in range(0, len(portion), CHUNK)]
            for seeds, met, attempts, commits, broken in pool.imap_unordered(_live, chunks):
                lived.met.update(met)
                lived.seeds += seeds
                lived.attempts += attempts
                lived.commits += commits
                lived.broken += broken
                for one in broken:
                    print(one, flush=True)
            if (day := datetime.now(UTC).date().isoformat()) not in lived.days:
                lived.days.append(day)
            if kept:
                lived.write(KEPT)
            took = time.monotonic() - began
            print(f"  {lived.seeds:,} of {amount:,} seeds, {took:.0f} s, {len(lived.broken)} broken", flush=True)
    went_through = ", ".join(f"{number:,} times {what}" for what, number in lived.met.most_common())
    pieces = f" (on {', '.join(lived.days)}, the same code)" if already else ""
    yield Found(
        tried=f"seeds {first:,} to {first + lived.seeds - 1:,}: the real worker, settler, keeper, gates and operations on SQLite in memory",
        figure=f"{len(lived.broken)} broken{pieces}; {lived.commits:,} commits looked at, {lived.attempts:,} attempts; {went_through}",
        holds=not lived.broken,
    )
    caught = {engine.__name__: _caught(engine) for engine in BROKEN}
    yield Found(
        tried=f"{len(BROKEN)} engines broken on purpose, up to {CAUGHT_WITHIN} seeds each",
        figure=", ".join(f"{name.replace('_', ' ')}: {at}" for name, at in caught.items()),
        holds=all(at != "not found" for at in caught.values()),
    )


def code_now() -> str:
    """All that a world is made of, in a hash: redrive and the simulator, whatever of it the worlds come to."""
    told = hashlib.sha256()
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            told.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return told.hexdigest()


_ground: Ground | None = None


def _live(seeds: range) -> tuple[int, Counter[str], int, int, list[str]]:
    """Live through some seeds: what they met, and the ones that broke a promise."""
    global _ground
    logging.disable()  # engines say what goes wrong, which is all the time
    if _ground is None:
        _ground = Ground()
        gc.freeze()  # what is there stays: only what worlds make is looked through, and not at every turn
        gc.set_threshold(100_000)
    met: Counter[str] = Counter()
    attempts, commits, failed = 0, 0, list[str]()
    for seed in seeds:
        try:
            world = simulate(_ground, seed)
        except Exception as error:
            failed.append(f"seed {seed}: {error!r:.300}; again: python -m proof.simulation {seed}")
            _ground = Ground()
            continue
        met += world.model.met
        attempts += world.model.outcomes.total()
        commits += world.commits
    return len(seeds), met, attempts, commits, failed


def _caught(engine: object) -> str:
    """In which seed a broken engine was found out."""
    ground = Ground()
    with engine():  # type: ignore[operator]
        for seed in range(CAUGHT_WITHIN):
            try:
                simulate(ground, seed)
            except AssertionError as error:
                return f"found in seed {seed} ({error})"
    return "not found"


def main(seeds: list[int]) -> int:
    """Live through seeds again; 1 if one of them breaks a promise."""
    ground, broken = Ground(), 0
    for seed in seeds:
        try:
            world = simulate(ground, seed)
        except Exception:
            broken += 1
            traceback.print_exc()
        else:
            print(f"seed {seed} holds: {dict(world.model.met)}")
            print("  " + ", ".join(world.acts))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main([int(one) for one in sys.argv[1:]]))
