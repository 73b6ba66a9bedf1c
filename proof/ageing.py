"""A day at fifty tasks a second, as fast as it goes: does a process that has worked for long cost more than one that has just begun?

`python -m proof.ageing URL HOURS RATE` is the process that ages: it adds and works off under a clock that is moved, and says once in each
virtual hour what it takes.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
from sqlalchemy import Connection, text

from proof.ground import STORES, ground_on
from proof.scenario import Found, scenario, share
from redrive import Context, Fixed, Policy, Redrive, State, Task, TransientError, jitter, minutes
from redrive.app import WorkerSettings
from redrive.lane import make_task
from redrive.testing import VirtualClock
from tests.forks import ROOT

STEP_SECONDS = 20
KEPT = timedelta(minutes=30)
"""How long ended tasks are kept; so the tables are as large after an hour as they will be."""
BOUNDS = {"memory_mib": 1.25, "files": 1.1, "connections": 1.1, "tables_mib": 1.5, "claim_ms": 2.0}
"""How much more each may be at the end than after the first hours. Of claims the quickest of an hour counts: others tell of the machine."""
MORE = {"files": 1, "connections": 1}
"""A pool that has opened one more has not grown."""
CLOCKS = {"postgresql": time.perf_counter, "sqlite": time.process_time}
"""SQLite's work is this process's own, and its processor time says nothing about who else is busy; that of PostgreSQL is not seen here."""
SIZES = {
    "postgresql": "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relkind = 'r' AND c.relname LIKE 'redrive_%'",
    "sqlite": "SELECT (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)"
    " - (SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size)",
}
"""What is used: a file of SQLite never gets smaller. Counters by the minute are in it, which grow for two days and are folded into hours then."""
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


@scenario("a process does not age: after a day it costs what it cost after the first hours")
def ageing(short: bool) -> Iterator[Found]:
    """Memory, files, connections, tables and claims of one process that adds and works; one task in ten fails once and comes back."""
    hours, rate = (6, 0.5) if short else (24, 50 * share())
    for store in STORES[1:] if short else STORES:
        with ground_on(store, in_memory=True) as ground:
            command = [sys.executable, "-W", "ignore", "-m", "proof.ageing", ground.url, str(hours), str(rate)]
            said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        told = [json.loads(line) for line in said.splitlines()]
        third = max(1, len(told) // 3)
        first, last = _middle(told[1 : third + 1]), _middle(told[-third:])
        ratios = {name: last[name] / first[name] for name in BOUNDS if first[name]}
        figures = ", ".join(f"{name} {first[name]:.1f} → {last[name]:.1f} (× {ratios[name]:.2f})" for name in ratios)
        yield Found(
            tried=f"{store}: {hours} virtual hours at {rate:g}/s, {told[-1]['ran']:,} runs, hours 2 to {third + 1} beside the last {third}",
            figure=figures.replace("_", " "),
            holds=len(told) == hours
            and all(last[name] <= first[name] * BOUNDS[name] + MORE.get(name, 0) for name in ratios),
        )


def _middle(told: list[dict[str, Any]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in told) for name in BOUNDS}


# --- the process that ages -------------------------------------------------------------------------------------------------


class _Aged:
    """Counts runs, and how long claims take."""

    def __init__(self, app: Redrive, url: str) -> None:
        self._app = app
        self._url = url
        self.ran = self.begun = 0
        self.claims: list[float] = []

    async def handle(self, _task: Task, context: Context) -> None:
        self.ran += 1
        self.begun += context.attempt == 1
        if context.attempt == 1 and self.ran % 10 == 0:
            raise TransientError("not yet")

    def time_claims(self, ledger: Any) -> None:
        """Claims of all sorts, as the worker makes them."""
        claim, clock = ledger.claim, CLOCKS[self._app.database.dialect.name]

        async def timed(*given: Any, **named: Any) -> Any:
            begun = clock()
            claims = await claim(*given, **named)
            if claims:
                self.claims.append((clock() - begun) * 1000)
            return claims

        ledger.claim = timed

    async def take(self, hour: int) -> dict[str, Any]:
        """What is taken now."""
        database, me = self._app.database, psutil.Process()
        name = database.dialect.name

        def look(connection: Connection) -> tuple[float, int]:
            size = connection.execute(text(SIZES[name])).scalar_one()
            return float(size) / 2**20, int(
                connection.execute(text(SESSIONS)).scalar_one()
            ) if name == "postgresql" else 0

        if name == "postgresql":  # which would have done so by itself a thousand times in a real day
            async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
                await connection.execute("VACUUM")
        size, sessions = await database.read(look)
        claims, self.claims = self.claims, []
        return {
            "hour": hour, "ran": self.ran, "memory_mib": me.memory_info().rss / 2**20, "files": me.num_fds(),
            "connections": sessions, "tables_mib": size, "claim_ms": min(claims, default=0),
        }  # fmt: skip


async def _age(url: str, hours: int, rate: float) -> None:
    clock = VirtualClock(datetime.now(UTC))
    async with Redrive(url, clock=clock, durable=False) as app:
        aged = _Aged(app, url)
        app.handler("work", policy=Policy(Fixed(minutes(1)), attempts=3, jitter=jitter.none))(aged.handle)
        ledger: Any = await app.tasks.ledger()
        aged.time_claims(ledger)
        kept = {State.DONE: KEPT}
        workers = app.workers(
            WorkerSettings(retention=kept, prune_every=timedelta(seconds=1), poll=timedelta(seconds=0.1))
        )
        running = asyncio.create_task(workers.run())
        amount, number = int(rate * STEP_SECONDS), 0
        for hour in range(1, hours + 1):
            for _ in range(3600 // STEP_SECONDS):
                await app.add_many(make_task("work", {"n": n}, key=f"t{n}") for n in range(number, number + amount))
                number += amount
                while aged.begun < number:  # retries come on top, a minute later
                    await asyncio.sleep(0.002)
                clock.advance(timedelta(seconds=STEP_SECONDS))
            print(json.dumps(await aged.take(hour)), flush=True)
        workers.stop()
        await running


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent)
    asyncio.run(_age(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
