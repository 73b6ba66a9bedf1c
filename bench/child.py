"""The subprocess: one phase of one measurement, timed and verified. `python -m bench.child job.json result.json`."""

import importlib
import json
import sys
import time
from pathlib import Path

from bench import spent
from bench.job import Audit, Job, Tally, VerificationError


class Clock:
    """Time on the wall, and processor time of this process and of the server, since it was made."""

    def __init__(self, job: Job) -> None:
        self._server = job.server_pid
        self._began = spent.here(), spent.of_server(self._server)
        self._started_at = time.perf_counter()

    def read(self, ended_at: float | None = None) -> dict[str, float]:
        """Seconds of each."""
        seconds = (time.perf_counter() if ended_at is None else ended_at) - self._started_at
        here, server = self._began
        return {
            "seconds": seconds,
            "client_seconds": spent.here() - here,
            "server_seconds": spent.of_server(self._server) - server,
        }


def add(job: Job) -> dict[str, float]:
    """What it takes to store the tasks durably in a store that was made ready before."""
    system = importlib.import_module(job.module)
    system.prepare(job)
    clock = Clock(job)
    system.add(job)
    took = clock.read()
    verify(job, system.audit(job), Audit(left=job.tasks, succeeded=0, failed=0))
    return took


def work(job: Job) -> dict[str, float]:
    """What it takes from the start of the worker until the last task has succeeded; imports are not timed."""
    system = importlib.import_module(job.module)
    tally = Tally(job.tasks, fail_first=job.work == "fail_once")
    clock = Clock(job)
    system.work(job, tally)
    took = clock.read(tally.finished_at)
    tally.verify()
    failed = job.tasks if tally.fail_first else 0
    verify(job, system.audit(job), Audit(left=0, succeeded=job.tasks, failed=failed))
    return took


def verify(job: Job, audit: Audit, wanted: Audit) -> None:
    """Compare what the store says with what must be, as far as the store says anything."""
    for what in ("left", "succeeded", "failed"):
        found = getattr(audit, what)
        if found is not None and found != getattr(wanted, what):
            raise VerificationError(
                f"{job.name}: the store says {found:,} {what}, it must be {getattr(wanted, what):,}"
            )


def main() -> None:
    job = Job.load(Path(sys.argv[1]))
    took = add(job) if job.phase == "add" else work(job)
    Path(sys.argv[2]).write_text(json.dumps(took))


if __name__ == "__main__":
    main()
