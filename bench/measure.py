"""Rounds of measurements, each phase in a subprocess of its own, ended when it takes too long."""

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.job import Job, Work
from bench.servers import Servers
from bench.systems import System
from bench.venv import ROOT

ROUND_SECONDS = 5.0
ROUND_SECONDS_MIN = 3.0
ROUND_SECONDS_MAX = 15.0
TASKS_MIN = 100
TASKS_MAX = 3_000_000
REPEATS_MAX = 2
LOG_CHARACTERS = 3_000


class MeasurementError(Exception):
    """A subprocess failed, was not verified or took too long; the text is the end of what it said."""


@dataclass(frozen=True, slots=True)
class Sample:
    tasks: int
    seconds: float
    client_seconds: float
    """Processor time of the worker's processes."""
    server_seconds: float
    """The same of PostgreSQL, all of its processes."""
    wal_bytes: int | None
    """What PostgreSQL has written ahead."""

    @property
    def rate(self) -> float:
        return self.tasks / self.seconds


@dataclass(slots=True)
class Measurement:
    """All rounds of one system at one work."""

    system: System
    work: Work
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None
    expected_rate: float = 0.0

    def __post_init__(self) -> None:
        self.expected_rate = self.system.rates.of(self.work)

    @property
    def rates(self) -> list[float]:
        return [sample.rate for sample in self.samples]

    @property
    def rate(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rates)

    @property
    def client_us(self) -> float:
        """Microseconds of processor time of a task in the worker, the lowest of the rounds: others only ever add to it."""
        return min(1e6 * sample.client_seconds / sample.tasks for sample in self.samples)

    @property
    def server_us(self) -> float | None:
        """The same in PostgreSQL."""
        of_postgres = self.system.store == "postgres"
        return min(1e6 * sample.server_seconds / sample.tasks for sample in self.samples) if of_postgres else None

    @property
    def wal_bytes(self) -> float | None:
        """Bytes of WAL of a task, the lowest of the rounds: a checkpoint adds whole pages."""
        found = [sample.wal_bytes / sample.tasks for sample in self.samples if sample.wal_bytes is not None]
        return min(found) if found else None


class Runner:
    """Knows the servers, the interpreters and the limits."""

    def __init__(self, servers: Servers, peers_python: Path, *, scale: float, limit_seconds: float) -> None:
        self._servers = servers
        self._pythons = {"peers": peers_python, "project": Path(sys.executable)}
        self._scale = scale
        self._limit_seconds = limit_seconds
        self._numbers = itertools.count(1)

    def round(self, measurement: Measurement, announce: Callable[[int], None]) -> Sample:
        """One round of a few seconds. When the guess of how many tasks that takes was far off, it is repeated."""
        for repeats_left in reversed(range(REPEATS_MAX + 1)):
            wanted = round(measurement.expected_rate * ROUND_SECONDS * self._scale)
            tasks = min(max(wanted, TASKS_MIN), TASKS_MAX)
            announce(tasks)
            sample = self._sample(measurement.system, measurement.work, tasks)
            measurement.expected_rate = sample.rate
            long_enough = sample.seconds >= ROUND_SECONDS_MIN * self._scale or tasks == TASKS_MAX
            short_enough = sample.seconds <= ROUND_SECONDS_MAX * self._scale or tasks == TASKS_MIN
            if (long_enough and short_enough) or not repeats_left:
                break
        return sample

    def _sample(self, system: System, work: Work, tasks: int) -> Sample:
        name = f"{system.name}_{work}_{next(self._numbers)}".replace("-", "_")
        folder = self._servers.folder / name
        folder.mkdir()
        postgres = self._servers.postgres
        match system.store:
            case "postgres":
                assert postgres is not None
                url = postgres.create(name)
            case "rabbitmq":
                assert self._servers.rabbitmq_url is not None
                url = self._servers.rabbitmq_url
            case "sqlite":
                url = str(folder / "bench.db")
        server = postgres if system.store == "postgres" else None
        job = Job(
            name=name, module=system.module, store=system.store, url=url, work=work, phase="add", tasks=tasks,
            server_pid=None if server is None else server.pid,
        )  # fmt: skip
        written = 0 if server is None else server.wal_bytes()
        took = self._phase(system, job, folder)
        if work != "add":
            if server is not None:
                server.calm(name)
                written = server.wal_bytes()
            took = self._phase(system, replace(job, phase="work"), folder)
        wal_bytes = None
        if server is not None:
            wal_bytes = server.wal_bytes() - written
            server.drop(name)
        for path in folder.glob("bench.db*"):
            path.unlink()
        return Sample(tasks, wal_bytes=wal_bytes, **took)

    def _phase(self, system: System, job: Job, folder: Path) -> dict[str, float]:
        """Run one phase to its end. Whatever the subprocess started shares its session and ends with it."""
        job_path, result_path, log_path = (folder / f"{job.phase}.{suffix}" for suffix in ("json", "result", "log"))
        job.save(job_path)
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [self._pythons[system.interpreter], "-m", "bench.child", job_path, result_path],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(self._limit_seconds)
                reason = f"ended with code {process.returncode}"
            except subprocess.TimeoutExpired:
                reason = f"took longer than {self._limit_seconds:g} s"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0 or not result_path.exists():
            said = log_path.read_text(errors="replace")[-LOG_CHARACTERS:]
            raise MeasurementError(f"{job.name}, phase {job.phase}, {job.tasks:,} tasks: {reason}\n{said}")
        return dict(json.loads(result_path.read_text()))
