"""The same with a hundred slots, as a worker comes: batches are a hundred tasks and less."""

from bench.job import Job, Tally
from bench.systems import redrive
from bench.systems.redrive import add, audit, prepare
from redrive.app import WorkerSettings

__all__ = ["add", "audit", "prepare", "work"]


def work(job: Job, tally: Tally) -> None:
    redrive.work(job, tally, WorkerSettings())
