"""The systems that are measured. To add one, write a module with the four functions below and a line in `SYSTEMS`.

    prepare(job)        make the store ready (schema, queue); not timed
    add(job)            store tasks numbered 0 … job.tasks-1; return when all are durable
    work(job, tally)    run one worker whose handler is `tally.attempt(number, first_try=…)` and stop it when
                        `tally.wait()` or `await tally.completed()` returns; that call stops the clock, and if
                        it is never called, the return of `work` does
    audit(job)          what the store says is left, has succeeded and has failed; it is compared with what must be

The handler raises when its first try is meant to fail: the system's own retry mechanism brings the task back, with a
delay as near to zero as it allows. `prepare` and `add` run in one subprocess, `work` in another; both call `audit`.
A module may import whatever its interpreter has: `interpreter="peers"` is the venv made from requirements.txt,
`interpreter="project"` the one that started the bench.
"""

from dataclasses import dataclass
from typing import Literal

from bench.job import WORKS, Store, Work


@dataclass(frozen=True, slots=True)
class Rates:
    """Tasks per second to expect: the first guess of how many tasks make a round of a few seconds."""

    add: float
    run: float
    fail_once: float

    def of(self, work: Work) -> float:
        return float(getattr(self, work))


@dataclass(frozen=True, slots=True)
class System:
    name: str
    store: Store
    role: Literal["peer", "raw", "ours"]
    module: str
    rates: Rates
    interpreter: Literal["peers", "project"] = "peers"
    how: str = ""
    """How many tasks it takes at a time, and how many run at once."""
    works: tuple[Work, ...] = WORKS


SYSTEMS = (
    System("celery", "rabbitmq", "peer", "bench.systems.celery", Rates(2_500, 2_500, 250), how="two processes, prefetch of 200"),
    System("dramatiq", "rabbitmq", "peer", "bench.systems.dramatiq", Rates(4_500, 5_000, 650), how="eight threads"),
    System("pgqueuer", "postgres", "peer", "bench.systems.pgqueuer", Rates(50_000, 19_000, 1_400), how="batches of 500"),
    System("procrastinate", "postgres", "peer", "bench.systems.procrastinate", Rates(13_000, 750, 380), how="concurrency 4"),
    System("huey", "sqlite", "peer", "bench.systems.huey", Rates(5_000, 4_000, 1_100), how="one worker"),
    System("raw-postgres", "postgres", "raw", "bench.systems.raw_postgres", Rates(150_000, 35_000, 18_000), "project", "batches of 1,000, two streams"),
    System("redrive-postgres", "postgres", "ours", "bench.systems.redrive", Rates(50_000, 30_000, 15_000), "project", "concurrency 3,000, batches up to 1,000"),
    System("redrive-postgres-100", "postgres", "ours", "bench.systems.redrive_default", Rates(50_000, 15_000, 8_000), "project", "concurrency 100, as it comes", ("run", "fail_once")),
    System("raw-sqlite", "sqlite", "raw", "bench.systems.raw_sqlite", Rates(150_000, 45_000, 22_000), "project", "batches of 1,000"),
    System("redrive-sqlite", "sqlite", "ours", "bench.systems.redrive", Rates(50_000, 35_000, 17_000), "project", "concurrency 3,000, batches up to 1,000"),
    System("redrive-sqlite-100", "sqlite", "ours", "bench.systems.redrive_default", Rates(50_000, 20_000, 10_000), "project", "concurrency 100, as it comes", ("run", "fail_once")),
)  # fmt: skip
