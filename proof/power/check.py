"""Record a process on SQLite, cut the power at every point, and open what is left."""

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from proof.power.disk import Disk, Done, read
from proof.power.recorded import ACKNOWLEDGED
from redrive import Redrive, State, Task
from redrive.testing import VirtualClock

SOURCE = Path(__file__).with_name("record.c")
NAME = "power.db"
FRAME_HEADER_BYTES = 24
KEPT = ("none", "some", "all")
MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class Recording:
    """What the process did."""

    folder: str
    steps: list[Done]

    @property
    def commits(self) -> int:
        """A header of a frame in the write-ahead log that ends a transaction says how large the database is then."""
        return sum(
            one.what == "write" and one.path.endswith("-wal") and len(one.bytes_) == FRAME_HEADER_BYTES and any(one.bytes_[4:8])
            for one in self.steps
        )  # fmt: skip


@dataclass(slots=True)
class Checked:
    """What was found in the images."""

    points: int = 0
    images: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    first: str = ""
    acknowledged: int = 0
    continued: int = 0


def record(tasks: int, seed: int) -> Recording:
    """Run the process under the recorder."""
    if shutil.which("gcc") is None:
        raise SystemExit(
            "a power cut is recorded by a small library in C: install gcc (Debian: apt-get install gcc libc6-dev)"
        )
    with tempfile.TemporaryDirectory(prefix="redrive-power-") as place:
        library, folder, log = f"{place}/record.so", f"{place}/disk", Path(place, "log")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True)
        os.mkdir(folder)
        subprocess.run(
            [sys.executable, "-m", "proof.power.recorded", f"{folder}/{NAME}", str(tasks), str(seed)],
            check=True,
            env=os.environ | {"LD_PRELOAD": library, "RECORD_FOLDER": folder, "RECORD_TO": str(log)},
        )
        return Recording(folder, list(read(log)))


def check(
    recording: Recording,
    rng: random.Random,
    *,
    points_max: int | None = None,
    lies: bool = False,
    continued_max: int = 0,
) -> Checked:
    """Cut at every write and every sync from the first acknowledgement on, or at so many that are drawn."""
    disk, found = Disk(recording.folder, lies=lies), Checked()
    acknowledged: list[list[str]] = []
    changes = [
        number for number, one in enumerate(recording.steps)
        if one.what != "begin" and not one.path.endswith((ACKNOWLEDGED, "-shm"))
    ]  # fmt: skip
    begins = next(
        number for number, one in enumerate(recording.steps) if one.path.endswith(ACKNOWLEDGED) and one.bytes_
    )
    points = [number for number in changes if number > begins]
    if points_max is not None and points_max < len(points):
        points = rng.sample(points, points_max)
    cut_after, continued = set(points), set(rng.sample(points, min(continued_max, len(points))))
    with _place() as place:
        for number, one in enumerate(recording.steps):
            if one.path.endswith(ACKNOWLEDGED):
                acknowledged += [line.split() for line in one.bytes_.decode().splitlines()]
                continue
            disk.follow(one)
            if number not in cut_after:
                continue
            found.points += 1
            for kept in KEPT:
                if kept == "none" and one.what != "end" and not lies and points_max is None:
                    continue  # what is durable has not changed since the last sync
                found.images[kept] += 1
                _put(place, disk.after_cut(rng, kept))
                fault = _fault(place, acknowledged)
                if fault:
                    found.bad[kept] += 1
                    found.first = found.first or f"after step {number} ({one.what}), {kept}: {fault}"
                elif number in continued and kept == "some":
                    asyncio.run(_continue(place))
                    found.continued += 1
    found.acknowledged = len(acknowledged)
    return found


@contextmanager
def _place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="redrive-image-", dir=MEMORY if MEMORY.is_dir() else None) as place:
        yield Path(place)


def _put(place: Path, files: dict[str, bytes]) -> None:
    for old in place.iterdir():
        old.unlink()
    for name, content in files.items():
        if not name.endswith("-shm"):  # memory, and no more
            (place / name).write_bytes(content)


def _fault(place: Path, acknowledged: list[list[str]]) -> str:
    """What is wrong with an image; empty when it is whole and has all that was acknowledged."""
    try:
        with closing(sqlite3.connect(place / NAME)) as connection:
            said = connection.execute("PRAGMA integrity_check").fetchone()[0]
            if said != "ok":
                return f"broken: {said}"
            keys = {key for (key,) in connection.execute("SELECT key FROM redrive_task")}
            tries = connection.execute(
                "SELECT t.key, a.claim_id, a.outcome FROM redrive_attempt a JOIN redrive_task t ON t.id = CAST(a.task_id AS INTEGER)"
            ).fetchall()
            done = connection.execute("SELECT count(*) FROM redrive_task WHERE state = 'done'").fetchone()[0]
    except sqlite3.DatabaseError as error:
        return f"broken: {error}"
    claims = {(key, claim) for key, claim, _ in tries}
    lost = [
        line
        for line in acknowledged
        if (line[1] not in keys if line[0] == "added" else (line[1], line[2]) not in claims)
    ]
    if lost:
        return f"{len(lost)} of {len(acknowledged)} acknowledged lost, {' '.join(lost[0])} the first"
    if len(claims) != len(tries):
        return "one claim has two attempts"
    if done != (said := sum(outcome == "done" for _, _, outcome in tries)):
        return f"{done} tasks are done, {said} attempts say so"
    return ""


async def _continue(place: Path) -> None:
    """Work goes on with what the cut has left: every task comes to its end."""
    clock = VirtualClock(datetime.now(UTC))
    async with Redrive(f"sqlite:///{place / NAME}", clock=clock, durable=False) as app:

        @app.handler("work")
        async def work(_task: Task) -> None:
            pass

        for _ in range(5):
            clock.advance(timedelta(minutes=10))  # what was held is held no more, what was to come is due
            await app.work_off(app.tasks)
        counts = await app.tasks.counts()
        assert not counts[State.WAITING] + counts[State.CLAIMED] + counts[State.DEAD], (
            f"work did not go on after a cut: {counts}"
        )
