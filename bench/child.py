"""The subprocess: one phase of one measurement, timed and verified. `python -m bench.child job.json result.json`."""

import importlib
import json
import sys
import time
from pathlib import Path

from bench.job import Audit, Job, Tally, VerificationError


def add(job: Job) -> float:
    """Seconds to store the tasks durably in a store that was made ready before."""
    system = importlib.import_module(job.module)
    system.prepare(job)
    started_at = time.perf_counter()
    system.add(job)
    seconds = time.perf_counter() - started_at
    verify(job, system.audit(job), Audit(left=job.tasks, succeeded=0, failed=0))
    return seconds


def work(job: Job) -> float:
    """Seconds from the start of the worker until the last task has succeeded; imports are not timed."""
    system = importlib.import_module(job.module)
    tally = Tally(job.tasks, fail_first=job.work == "fail_once")
    started_at = time.perf_counter()
    system.work(job, tally)
    ended_at = time.perf_counter() if tally.finished_at is None else tally.finished_at
    seconds = ended_at - started_at
    tally.verify()
    failed = job.tasks if tally.fail_first else 0
    verify(job, system.audit(job), Audit(left=0, succeeded=job.tasks, failed=failed))
    return seconds


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
    seconds = add(job) if job.phase == "add" else work(job)
    Path(sys.argv[2]).write_text(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
