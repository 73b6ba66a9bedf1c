"""Primaries that die under load, in a cluster with synchronous replication: is anything lost, and how long does it take?

Tasks are added all the time and worked off by two processes. A primary dies in one of three ways: its PostgreSQL is killed, its
machine is cut off from power, or its machine freezes, so that its connections stay open without a word, and comes back
when another has taken its place. At times a worker is frozen as well, for longer than its lease: what it settles then is late.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from sqlalchemy import Connection, func, select

from bench.cluster import Cluster, cluster
from proof.scenario import Found, scenario
from redrive import Redrive, State, seconds
from redrive.errors import LedgerAwayError
from redrive.lane import make_task
from redrive.ledgers.open import open_database
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.migrate import migrate
from tests.faults import evidence
from tests.faults.books import create_effects, effects, read_books
from tests.faults.processes import APP, events

TASKS_PER_SECOND = 200
ADDERS = 20
LEASE_SECONDS = 10
FIRST_CLAIM_SECONDS_MAX = 5.0
STEADY_SECONDS = 3.0
"""How long all is well between two kills."""
DRAIN_SECONDS_MAX = 300
WAYS = [
    *["postmaster"] * 2,
    "frozen",
    *["postmaster"] * 6,
    "machine",
    *["postmaster"] * 6,
    "frozen",
    *["postmaster"] * 2,
    "machine",
]
SHORT = ["postmaster", "frozen"]
AHEAD_SECONDS = 100
"""How long after a kill something is due, whoever can add."""
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Kill:
    """One primary that died, in seconds from then."""

    way: str
    promoted: float
    first_claim: float
    """From the promotion on."""


@dataclass(slots=True)
class Added:
    """What was acknowledged to those who added it."""

    keys: list[str] = field(default_factory=list)
    longest: float = 0.0


@scenario("a failover loses nothing and takes seconds")
def failover(short: bool) -> Iterator[Found]:
    """Twenty primaries die, mostly as processes."""
    with cluster() as nodes, tempfile.TemporaryDirectory(prefix="redrive-failover-") as folder:
        yield from asyncio.run(_fail_over(nodes, Path(folder), SHORT if short else WAYS))


async def _fail_over(nodes: Cluster, folder: Path, ways: list[str]) -> list[Found]:
    database = open_database(nodes.url)
    await migrate(database)
    await database.close()
    ground, over, added = folder / "evidence.jsonl", asyncio.Event(), Added()
    async with Redrive(nodes.url) as app:
        await create_effects(app)
        with ExitStack() as running:
            workers = [running.enter_context(_worker(nodes.url, folder, ground, name)) for name in ("one", "two")]
            adders = [asyncio.create_task(_add(app, number, added, over)) for number in range(ADDERS)]
            await _working(ground)
            kills = []
            for number, way in enumerate(ways):
                await asyncio.sleep(STEADY_SECONDS)
                late = asyncio.create_task(_freeze(workers[1])) if number % 5 == 1 else None
                await _add_ahead(app, number, added)
                kills.append(await _kill(nodes, app, way))
                print(
                    f"  {way}: promoted after {kills[-1].promoted:.1f} s, first claim {kills[-1].first_claim:.1f} s later"
                )
                if late is not None:
                    await late
            over.set()
            await asyncio.gather(*adders)
            drained = await _drained(app)
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            codes = [await asyncio.to_thread(worker.wait, 60) for worker in workers]
        books = await read_books(app, ground)
        pairs = [task.key for task in books.tasks.values() if task.kind == "pair"]
        once = await effects(app) == dict.fromkeys(pairs, 1)
    done = {task.key for task in books.tasks.values() if task.state == "done"}
    lost = set(added.keys) - done
    logs = {file.stem: file.read_text() for file in folder.glob("*.log")}
    refused = sum(len(events(log, "settle_lost")) for log in logs.values())
    faults = books.faults()
    for fault in faults[:10]:
        print("  ", fault)
    tried = f"{len(ways)} primary kills ({_amounts(ways)}), {TASKS_PER_SECOND} tasks/s"
    return [
        Found(
            tried=tried,
            figure=f"{len(added.keys):,} tasks acknowledged, {len(lost)} lost or not done; longest add {added.longest:.1f} s",
            holds=not lost and drained,
        ),
        Found(
            tried="late settlements after failovers, also of a worker that was frozen for longer than its lease",
            figure=f"{books.run_count:,} runs, {refused} late settlements refused, {len(faults)} accepted or unexplained; "
            f"{len(pairs):,} transactional handlers, their writes {'once each' if once else 'NOT once each'}",
            holds=not faults and once and codes == [0, 0],
        ),
        *(_figure(way, [one for one in kills if one.way == way]) for way in dict.fromkeys(ways)),
    ]


def _figure(way: str, kills: list[Kill]) -> Found:
    promoted, claims = [one.promoted for one in kills], [one.first_claim for one in kills]
    meaning = {
        "postmaster": "PostgreSQL of the primary killed",
        "machine": "the primary's machine without power",
        "frozen": "the primary's machine frozen, and back later",
    }
    return Found(
        tried=f"{meaning[way]}, {len(kills)} times",
        figure=f"promotion after {_span(promoted)}, first claim {_span(claims)} after it",
        holds=max(claims) <= FIRST_CLAIM_SECONDS_MAX,
    )


def _span(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} s (at most {max(values):.1f} s)"


def _amounts(ways: list[str]) -> str:
    return ", ".join(f"{ways.count(way)} {way}" for way in dict.fromkeys(ways))


async def _working(ground: Path) -> None:
    """Until both workers have begun: a process takes its time to start."""
    while len({line.pid for line in evidence.read(ground)}) < 2:
        await asyncio.sleep(0.2)


async def _kill(nodes: Cluster, app: Redrive, way: str) -> Kill:
    """Let the primary die, wait for the next one and for its first claim, and bring the old one back."""
    old = await asyncio.to_thread(nodes.primary)
    assert old is not None
    killed_at = time.time()
    back: Callable[[], None] = lambda: None  # noqa: E731 - Patroni starts it again by itself
    match way:
        case "postmaster":
            nodes.kill_postmaster(old)
        case "machine":
            nodes.kill_machine(old)
            back = lambda: nodes.start_node(old)  # noqa: E731
        case "frozen":
            back = nodes.freeze(old)
    while (await asyncio.to_thread(nodes.primary)) in (None, old):
        await asyncio.sleep(0.02)
    promoted_at = time.time()
    # Nobody is promoted in less time than this; what the old one was just doing is not counted.
    claimed_at = await _first_claim(app, since=killed_at + 0.5)
    await asyncio.to_thread(back)
    await asyncio.to_thread(nodes.wait_for_standbys)
    return Kill(way, promoted_at - killed_at, max(0.0, claimed_at - promoted_at))


async def _first_claim(app: Redrive, *, since: float) -> float:
    asked = select(func.min(func.extract("epoch", schema.attempt.c.started_at))).where(
        func.extract("epoch", schema.attempt.c.started_at) > since
    )

    def first(connection: Connection) -> float | None:
        found = connection.execute(asked).scalar_one()
        return None if found is None else float(found)

    while True:
        try:
            if (found := await app.database.scan(first)) is not None:
                return found
        except LedgerAwayError:
            pass
        await asyncio.sleep(0.1)


async def _add(app: Redrive, number: int, added: Added, over: asyncio.Event) -> None:
    """Add at an even pace, and catch up after an outage; each key until it is acknowledged."""
    pause, began = ADDERS / TASKS_PER_SECOND, time.monotonic()
    for turn in count():
        await asyncio.sleep(max(0.0, began + turn * pause - time.monotonic()))
        if over.is_set():
            return
        kind, key, asked_at = "pair" if turn % 10 == 0 else "work", f"{number}-{turn}", time.monotonic()
        while True:
            try:
                await app.add(kind, {"ms": 5}, key=key)
                break
            except LedgerAwayError:
                await asyncio.sleep(0.1)
        added.keys.append(key)
        added.longest = max(added.longest, time.monotonic() - asked_at)


async def _add_ahead(app: Redrive, number: int, added: Added) -> None:
    """Add what is due during the outage. Whoever adds has no worker, and may hear of a frozen primary a minute late: nothing would be there to claim."""
    keys = [f"ahead-{number}-{turn}" for turn in range(2 * AHEAD_SECONDS)]
    await app.add_many(make_task("work", {"ms": 5}, key=key, delay=seconds(turn / 2)) for turn, key in enumerate(keys))
    added.keys += keys


async def _freeze(worker: "subprocess.Popen[bytes]") -> None:
    """Stop a worker for longer than its lease: it wakes up with work that is not its own any more."""
    worker.send_signal(signal.SIGSTOP)
    await asyncio.sleep(LEASE_SECONDS + 5)
    worker.send_signal(signal.SIGCONT)


async def _drained(app: Redrive) -> bool:
    """Whether all that was added comes to its end."""
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            counts = await app.tasks.counts()
        except LedgerAwayError:
            continue
        if counts[State.WAITING] == counts[State.CLAIMED] == 0:
            return True
        await asyncio.sleep(0.2)
    return False


@contextmanager
def _worker(url: str, folder: Path, ground: Path, name: str) -> "Iterator[subprocess.Popen[bytes]]":
    environment = os.environ | {
        "DATABASE_URL": url, evidence.VARIABLE: str(ground), "LOG_LEVEL": "info", "LOG_FORMAT": "json", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "redrive", "worker", APP, "--lease", f"{LEASE_SECONDS}s", "--concurrency", "20"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
