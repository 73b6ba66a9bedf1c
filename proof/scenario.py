"""A scenario tries one promise and comes back with figures. It fails if the promise does not hold."""

import os
import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One figure of a scenario, and what it must be."""

    tried: str
    figure: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A promise, and what tries it. `run` is told whether it should be short."""

    name: str
    promise: str
    run: Callable[[bool], Iterator[Found]]


SCENARIOS: list[Scenario] = []
NOT_TRIED: list[str] = []
"""What a scenario would try if this were another machine, in a sentence each."""


def scenario(promise: str) -> Callable[[Callable[[bool], Iterator[Found]]], Callable[[bool], Iterator[Found]]]:
    """Register a function as the scenario of this promise; its name is the function's."""

    def register(run: Callable[[bool], Iterator[Found]]) -> Callable[[bool], Iterator[Found]]:
        SCENARIOS.append(Scenario(name=run.__name__, promise=promise, run=run))
        return run

    return register


def share() -> float:
    """How much of the full sizes is tried, as PROOF_SHARE says: all where it says nothing."""
    return float(os.environ.get("PROOF_SHARE") or 1)


def sized(full: int) -> int:
    """That share of a full size. What a line says is what was tried."""
    return max(1, round(full * share()))


def chance() -> random.Random:
    """Chance that can be replayed: set PROOF_SEED to the number that is printed."""
    seed = int(os.environ.get("PROOF_SEED") or secrets.randbits(32))
    print(f"  PROOF_SEED={seed}", flush=True)
    return random.Random(seed)
