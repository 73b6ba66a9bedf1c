"""The simulator at full size. `python -m proof.simulation 4711` lives through one seed again, with what happened in it."""

import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator

from proof.scenario import Found, scenario, sized
from proof.simulator.broken import BROKEN
from proof.simulator.world import Ground, simulate

SEEDS, SHORT = 100_000, 100
PROCESSES = 2
PORTION, CHUNK = 1000, 10
"""After each portion it says how far it is; a process takes a chunk at once."""
CAUGHT_WITHIN = 300
"""In so many seeds each broken engine must be found out."""


@scenario("the engine is right in every order of events")
def simulator(short: bool) -> Iterator[Found]:
    """One seed drives clock, scheduling, faults of the ledger, crashes, clock jumps and people; a model looks after every commit."""
    first = int(os.environ.get("PROOF_SEED", "0"))
    amount = SHORT if short else sized(SEEDS)
    met: Counter[str] = Counter()
    attempts, commits, done, began, broken = 0, 0, 0, time.monotonic(), list[str]()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        while done < amount:
            portion = range(first + done, first + min(done + PORTION, amount))
            chunks = [portion[start : start + CHUNK] for start in range(0, len(portion), CHUNK)]
            for seeds, seen, tried, wrote, failed in pool.imap_unordered(_live, chunks):
                met, attempts, commits, done = met + seen, attempts + tried, commits + wrote, done + seeds
                for one in failed:
                    print(one, flush=True)
                broken += failed
            print(f"  {done:,} of {amount:,} seeds, {time.monotonic() - began:.0f} s, {len(broken)} broken", flush=True)
    went_through = ", ".join(f"{number:,} times {what}" for what, number in met.most_common())
    yield Found(
        tried=f"seeds {first:,} to {first + done - 1:,}: the real worker, settler, keeper, gates and operations on SQLite in memory",
        figure=f"{len(broken)} broken; {commits:,} commits looked at, {attempts:,} attempts; {went_through}",
        holds=not broken,
    )
    caught = {engine.__name__: _caught(engine) for engine in BROKEN}
    yield Found(
        tried=f"{len(BROKEN)} engines broken on purpose, up to {CAUGHT_WITHIN} seeds each",
        figure=", ".join(f"{name.replace('_', ' ')}: {at}" for name, at in caught.items()),
        holds=all(at != "not found" for at in caught.values()),
    )


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
