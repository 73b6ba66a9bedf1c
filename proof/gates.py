"""Gates at full size: an outage, a million claims with a hundred kills, and changes that every process obeys within a second."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

from proof.ground import STORES, ground_on, tried_on
from proof.scenario import Found, chance, scenario
from redrive import Redrive
from redrive.core.gate_rules import read_rule
from redrive.lane import make_task
from redrive.ports import Actor
from tests.faults import evidence
from tests.faults.books import until
from tests.faults.gate_apps import KIND
from tests.faults.gate_proofs import APP, PROCESSES, held_at_most, outage
from tests.faults.processes import Ground, WorkerProcess

OBEYED_SECONDS_MAX = 1.0
ADA = Actor(name="ada", reason="a proof")
RUN_MILLISECONDS = 300
"""So long that a gate is full while one of its tasks is settled and the next claimed, on a slow disk, too: else nobody would see that it may hold more."""


@scenario("an outage costs no task its life, and nobody overruns a destination that is back")
def gates_outage(short: bool) -> Iterator[Found]:
    """Ten minutes, ten times as fast; four processes."""
    tasks = 500 if short else 20_000
    limits: dict[str, int] = {"rate": 40, "burst": 10, "most": 20, "speed": 10}
    tried = f"{tasks:,} tasks, ten (faster) minutes, {PROCESSES} processes"
    yield tried_on("postgres", tried, lambda ground: outage(ground, tasks, **limits))


@scenario("no gate ever holds more than its limit")
def gates_concurrency(short: bool) -> Iterator[Found]:
    """Every version of every gate's row is checked by the database, and counts are compared with the rows that are claimed.

    On a disk that is memory: the kills are of processes, so what is tried does not depend on it, and a lost task runs alone with a commit of its own.
    """
    claims, kills = (5_000, 10) if short else (1_000_000, 100)
    for store in STORES:
        tried = f"{claims:,} tasks, {kills} kill -9, 100 gates of five, no disk"
        yield tried_on(
            store,
            tried,
            lambda ground, store=store: held_at_most(  # type: ignore[misc]
                ground, store, chance(), claims=claims, kills=kills, gates=100, slots=150, lease=8
            ),
            in_memory=True,
        )


# --- who sees what, and when ----------------------------------------------------------------------------------------------


@scenario("what a person changes holds in every process within a second")
def gates_changes(short: bool) -> Iterator[Found]:
    """Each process serves a kind behind a gate of its own, so that each of them is seen to obey."""
    for store in STORES:
        with ground_on(store) as ground:
            for what, seconds in asyncio.run(_changes(ground, rounds=1 if short else 5)).items():
                yield Found(
                    tried=f"{store}: {what}, {PROCESSES} processes, {len(seconds)} times",
                    figure=f"the last process obeyed after {max(seconds) * 1000:.0f} ms",
                    holds=max(seconds) <= OBEYED_SECONDS_MAX,
                )


async def _changes(ground: Ground, rounds: int) -> dict[str, list[float]]:
    """What was changed, and how long it took each time until the last process obeyed."""
    kinds = [f"kind-{n}" for n in range(PROCESSES)]
    found: dict[str, list[float]] = defaultdict(list)
    watched = _Watched(ground, kinds)
    async with Redrive(ground.url) as app:
        app.gate("bank:*", concurrency=2)
        ledger: Any = await app.tasks.ledger()
        feeding = asyncio.create_task(_feed(app, kinds))
        with ExitStack() as stack:
            for kind in kinds:
                ground.environment |= {KIND: kind}
                stack.enter_context(WorkerProcess(ground, kind, lease=30, grace=0, app=APP))
            await until(watched.all_run, "every process runs something")
            paused = {"a gate": [f"bank:{kind}" for kind in kinds], "a kind": [f"kind:{kind}" for kind in kinds]}
            for _ in range(rounds):
                for most, obeyed, what in ((5, watched.allows, "raised"), (1, watched.forbids, "lowered")):
                    begun = await _timed(ledger.set_rule("bank:*", read_rule(concurrency=most), ADA))
                    found[f"a limit was {what}"].append(obeyed(begun, most))
                for what, names in (paused | {"the ledger": ["kind:*"]}).items():
                    begun = await _timed(*(ledger.pause_gate(name, ADA) for name in names))
                    found[f"{what} was paused"].append(watched.forbids(begun, 0))
                    begun = await _timed(*(ledger.resume_gate(name, ADA) for name in names))
                    found[f"{what} was resumed"].append(watched.allows(begun, 1))
        feeding.cancel()
    return found


async def _timed(*acts: Awaitable[bool]) -> float:
    """When it was done; and then as long as it takes to see what comes of it."""
    for act in acts:
        assert await act
    begun = time.time()
    await asyncio.sleep(3 * OBEYED_SECONDS_MAX)
    return begun


async def _feed(app: Redrive, kinds: Sequence[str]) -> None:
    """There is always something to do; and to add goes on, whatever is paused."""
    for number in count():
        for kind in kinds:
            tasks = [
                make_task(kind, RUN_MILLISECONDS, key=f"{kind}/{number}-{n}", gate=f"bank:{kind}") for n in range(10)
            ]
            await app.add_many(tasks)
        await asyncio.sleep(0.2)


class _Watched:
    """The runs of each kind, from the file in which handlers leave them with the time."""

    def __init__(self, ground: Ground, kinds: Sequence[str]) -> None:
        self._ground = ground
        self._kinds = kinds

    def all_run(self) -> bool:
        return len({line.pid for line in self._ground.starts()}) == len(self._kinds)

    def forbids(self, begun: float, most: int) -> float:
        """How long after that any process still started one too many."""
        late = [at - begun for runs in self._runs().values() for at, beside in runs if at > begun and beside > most]
        return max(late, default=0.0)

    def allows(self, begun: float, most: int) -> float:
        """How long after that the last process ran as many as it may."""
        reached = [
            min((at - begun for at, beside in runs if at > begun and beside >= most), default=float("inf"))
            for runs in self._runs().values()
        ]
        return max(reached)

    def _runs(self) -> dict[str, list[tuple[float, int]]]:
        """When each run began, and how many of its kind there were then, itself among them."""
        steps: dict[str, list[tuple[float, int]]] = {kind: [] for kind in self._kinds}
        for line in evidence.read(self._ground.evidence):
            steps[line.key.split("/")[0]].append((line.at, 1 if line.what == "start" else -1))
        found: dict[str, list[tuple[float, int]]] = {kind: [] for kind in self._kinds}
        for kind, mine in steps.items():
            running = 0
            for at, step in sorted(mine):
                running += step
                if step > 0:
                    found[kind].append((at, running))
        return found
