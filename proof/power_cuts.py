"""Power cuts: on SQLite every disk that one could leave behind, on PostgreSQL the nearest that can be had without a power switch."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from proof.power.check import KEPT, check, record
from proof.power.recorded import CHECKPOINT_PAGES
from proof.scenario import NOT_TRIED, Found, chance, scenario, sized
from tests.faults.own_postgres import own_postgres
from tests.faults.postmaster_proofs import killed
from tests.faults.processes import Ground

NOT_TRIED += [
    "A real power cut. On SQLite every disk that one could leave behind is built from what a process wrote and synced; on PostgreSQL all of "
    "its processes are killed at once, which leaves the page cache of the operating system in place.",
    "Power cuts with more than one process on one SQLite file: one is recorded.",
]
TASKS_PER_COMMIT = 0.8
"""Adding, claiming and settling are grouped, so fewer tasks than commits are needed; more than enough."""


@scenario("nothing acknowledged is lost in a power cut")
def power_cuts(short: bool) -> Iterator[Found]:
    """Every write and every sync of one process is a point at which the power goes: what is not synced is there, gone, or torn at 512 bytes and out of order."""
    rng, commits, points_max = chance(), 40 if short else sized(2000), 60 if short else None
    recording = record(int(commits * TASKS_PER_COMMIT), rng.getrandbits(32))
    found = check(recording, rng, points_max=points_max, continued_max=3 if short else 100)
    images, bad = found.images.total(), found.bad.total()
    at = f"{found.points:,} of its points" if short else f"each of its {found.points:,} writes and syncs"
    yield Found(
        tried=f"sqlite: {recording.commits:,} commits recorded, a checkpoint each {CHECKPOINT_PAGES} pages, cut at {at}",
        figure=f"{images:,} images, {bad} broken or without something acknowledged ({found.acknowledged:,} acknowledgements); "
        f"{found.continued} of them worked off to the end{'; ' + found.first if bad else ''}",
        holds=not bad and recording.commits >= commits // 2,
    )
    lying = check(recording, rng, points_max=points_max or 1000, lies=True)
    lost = {kept: f"{lying.bad[kept]:,} of {lying.images[kept]:,}" for kept in KEPT}
    yield Found(
        tried="sqlite: the same with syncs that do nothing, so that the check is known to bite",
        figure=f"broken: {lost['none']} with what is durable alone, {lost['some']} with some of the rest, {lost['all']} with all of it",
        holds=lying.bad["none"] == lying.images["none"] and lying.bad["some"] > 0 == lying.bad["all"],
    )


@scenario("nothing acknowledged is lost when PostgreSQL is killed with all of its processes (which is not a power cut)")
def postmaster_kills(short: bool) -> Iterator[Found]:
    """SIGKILL to the postmaster and every backend at random moments, with fsync on, while tasks are added and worked off."""
    tasks, kills = (400, 3) if short else (sized(20_000), sized(100))
    with own_postgres() as server, tempfile.TemporaryDirectory(prefix="redrive-proof-") as folder:
        tried = f"postgres: {tasks:,} tasks, {kills} times SIGKILL to all of PostgreSQL, fsync on"
        try:
            ground = Ground(server.url, Path(folder))
            figure = asyncio.run(killed(server, ground, chance(), tasks=tasks, kills=kills))
            yield Found(tried=tried, figure=figure, holds=True)
        except AssertionError as error:
            yield Found(tried=tried, figure=str(error), holds=False)
