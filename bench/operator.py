"""What a person waits for: every screen, every chart and every page of an indexed filter, over large tables. `python -m bench.operator`.

Ten million tasks in PostgreSQL and a million in SQLite, most of them done, a tenth waiting, some dead, a few cancelled, one kind
and one state rare; a week of minutes beside them. The census runs as in a service. Each request goes through the whole web
application; p95 must stay below 100 ms, and a bound that does not hold fails the run.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import structlog
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import Connection, text

from bench.servers import servers
from bench.venv import BUILD
from redrive import Redrive
from redrive.core.histograms import RAN
from redrive.ledgers.rollup import COUNTED
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.migrate import migrate
from redrive.operator.sql.census import SqlCensus
from redrive.running import Service, tuned_runner
from redrive.settings import Settings
from redrive.web.api import overview
from redrive.web.app import make_web

POSTGRES_TASKS, SQLITE_TASKS = 10_000_000, 1_000_000
ROUNDS = 40
BOUND_MS = 100.0
KINDS = 20
RARE_KIND_EVERY, CANCELLED_EVERY = 100_000, 50_000
CAUSES = 26
FAILING = 5
PAGES_DEEP = 10
HEADERS = {"Host": "127.0.0.1"}

# In both databases: one row in ten waits (half of them retries), one in fifty is dead, one in many is cancelled, the rest is done.
_STATE = f"""CASE WHEN n % {CANCELLED_EVERY} = 7 THEN 'cancelled' WHEN n % 10 = 1 THEN 'waiting' WHEN n % 50 = 2 THEN 'dead'
             ELSE 'done' END"""
_KIND = f"CASE WHEN n % {RARE_KIND_EVERY} = 3 THEN 'rare' ELSE 'kind-' || (n % {KINDS}) END"
_ERROR = f"""CASE WHEN n % 50 = 2 THEN 'ConnectError: host ' || n || ' of pool {{' || chr_(CAST(97 + (n / 50) % {CAUSES} AS integer)) || '}} refused'
             WHEN n % 20 = 1 THEN 'TimeoutError: no answer within ' || (n % 90) || ' s' END"""

FILL = {
    "sqlite": f"""
        WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :last)
        INSERT INTO redrive_task (key, kind, payload, state, failures, due_at, created_at, updated_at, ended_at, last_error)
        SELECT 'task-' || n, {_KIND}, '{{"order": ' || n || '}}', {_STATE}, CASE WHEN n % 20 = 1 OR n % 50 = 2 THEN 2 ELSE 0 END,
               CASE WHEN n % 10 = 1 AND n % {CANCELLED_EVERY} <> 7 THEN :now + (n * 7919 % 86400) * 1000000 END,
               :now - (:total - n) * (604800000000 / :total), :now - (:total - n) * (604800000000 / :total),
               CASE WHEN n % 10 <> 1 OR n % {CANCELLED_EVERY} = 7 THEN :now - (:total - n) * (604800000000 / :total) END, {_ERROR}
          FROM numbers""".replace("chr_", "char"),
    "postgresql": f"""
        INSERT INTO redrive_task (key, kind, payload, state, failures, due_at, created_at, updated_at, ended_at, last_error)
        SELECT 'task-' || n, {_KIND}, '{{}}', {_STATE}, CASE WHEN n % 20 = 1 OR n % 50 = 2 THEN 2 ELSE 0 END,
               CASE WHEN n % 10 = 1 AND n % {CANCELLED_EVERY} <> 7 THEN at.now + (n * 7919 % 86400) * interval '1 s' END,
               at.time, at.time, CASE WHEN n % 10 <> 1 OR n % {CANCELLED_EVERY} = 7 THEN at.time END, {_ERROR}
          FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint) - 1) AS n,
               LATERAL (SELECT now() AS now, now() - (CAST(:total AS bigint) - n) * (interval '7 days' / CAST(:total AS bigint)) AS time)
                 AS at""".replace("chr_", "chr").replace("|| (n % 90) ||", "|| (n % 90)::text ||"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    measure: str
    store: str
    tasks: int
    p50_ms: float
    p95_ms: float
    bound_ms: float = BOUND_MS

    @property
    def holds(self) -> bool:
        return self.p95_ms <= self.bound_ms


async def fill(app: Redrive, total: int, console: Console, calm: Callable[[], None]) -> None:
    """The tasks, a week of minutes and samples, and a census over them."""
    ledger = await app.tasks.ledger()
    now = await app.database.read(ledger.present)
    micros = int(now.timestamp() * 1_000_000)
    began = time.monotonic()
    step = min(total, 200_000)
    for first in track(range(0, total, step), f"storing {total:,} tasks", console=console):
        span = {"first": first, "last": min(first + step, total), "total": total}

        def insert(connection: Connection, span: dict[str, int] = span) -> None:
            more = {"now": micros} if connection.dialect.name == "sqlite" else {}
            connection.execute(text(FILL[connection.dialect.name]), span | more)

        await app.database.write(insert)
    await app.database.write(_fill_minutes, now)
    await app.database.write(_fill_kinds, now)
    calm()
    console.print(f"{app.database.dialect.name}: {total:,} tasks stored in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    await SqlCensus(ledger).take()
    console.print(f"{app.database.dialect.name}: first census in {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    await SqlCensus(ledger).take()
    console.print(f"{app.database.dialect.name}: the next one in {time.monotonic() - began:.1f} s")
    calm()


def _fill_minutes(connection: Connection, now: object) -> None:
    """A week as the fold leaves it: an hour by minutes and workers, two days by minutes, the rest by hours."""
    assert hasattr(now, "replace")
    whole = now.replace(second=0, microsecond=0)
    rows, samples = [], []
    counted = dict.fromkeys((*COUNTED, "added"), 7)
    for age in range(7 * 24 * 60):
        minute = whole - timedelta(minutes=age)
        if age > 2 * 24 * 60 and minute.minute:
            continue
        workers = [f"worker-{at}" for at in range(20)] if age < 60 else [""]
        rows += [{"minute": minute, "ledger": "redrive_task", "worker": worker, **counted} for worker in workers]
        states = {"waiting": age, "claimed": 1, "done": age * 9, "dead": 3, "cancelled": 0}
        samples.append({"minute": minute, "ledger": "redrive_task", "oldest_due_seconds": 1.5, **states})
    for start in range(0, len(rows), 500):
        connection.execute(schema.minute.insert(), rows[start : start + 500])
    connection.execute(schema.sample.insert(), samples)


def _fill_kinds(connection: Connection, now: object) -> None:
    """Two days of what workers count: five minutes by workers, the rest folded; some kinds fail, since an hour."""
    assert hasattr(now, "replace")
    whole, rows = now.replace(second=0, microsecond=0), []
    for age in range(2 * 24 * 60):
        minute = whole - timedelta(minutes=age)
        for kind in range(KINDS):
            causes = ["", f"cause-{kind}"] if age < 60 and kind < FAILING else [""]
            for cause in causes:
                failed = minute if cause or len(causes) > 1 else None
                counted = dict.fromkeys(("begun", "tries", "failures", "done", "dead", *RAN), 7)
                rows += [
                    {
                        "ledger": "redrive_task", "kind": f"kind-{kind}", "cause": cause, "minute": minute, "version": "4f2a", "worker": worker,
                        "first_failure": failed, "last_failure": failed, "first_success": minute, "last_success": minute, **counted,
                    }
                    for worker in ([f"worker-{at}" for at in range(20)] if age < 6 else [""])
                ]  # fmt: skip
    for start in range(0, len(rows), 500):
        connection.execute(schema.kind_minute.insert(), rows[start : start + 500])
    since = whole - timedelta(minutes=59)
    failing = {
        "text": "x",
        "sample": "ValueError: x",
        "at": "shop/x.py:1 in x",
        "first_seen": since,
        "since": since,
        "last_seen": whole,
    }
    hour = since.replace(minute=0)
    connection.execute(
        schema.failing.insert(),
        [
            {"ledger": "redrive_task", "id": f"cause-{kind}", "kind": f"kind-{kind}", "since_hour": hour, **failing}
            for kind in range(FAILING)
        ],
    )


@contextlib.asynccontextmanager
async def client_of(app: Redrive) -> AsyncIterator[httpx.AsyncClient]:
    service = Service(app, Settings(_env_file=None, http_trust_loopback=True))  # type: ignore[call-arg]
    service.is_open = True  # the routes alone: no worker may change what is measured
    transport = httpx.ASGITransport(make_web(service), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
        yield client


REQUESTS = {
    "verdict: the whole": "/api/status",
    **{f"chart: {name} {span}": f"/api/{name}?range={span}" for name in ("overview", "series") for span in ("1h", "24h", "7d")},
    "chart: groups": "/api/groups",
    "page: all": "/api/tasks?newest_first=true",
    **{f"page: {state}": f"/api/tasks?state={state}&newest_first=true" for state in ("waiting", "claimed", "done", "dead", "cancelled")},
    **{f"page: {state}, one kind": f"/api/tasks?state={state}&kind=kind-2&newest_first=true" for state in ("done", "dead")},
    "page: waiting, one kind": "/api/tasks?state=waiting&kind=kind-11",
    "page: one kind": "/api/tasks?kind=kind-3&newest_first=true",
    "page: rare kind": "/api/tasks?kind=rare&newest_first=true",
    "page: done, rare kind": "/api/tasks?state=done&kind=rare",
    "page: done for 3 days": "/api/tasks?state=done&older_than=3d&newest_first=true",
    "page: dead for 6 days": "/api/tasks?state=dead&older_than=6d&newest_first=true",
    "page: by key": "/api/tasks?key=task-4711",
    "page: audit": "/api/audit",
    **{f"screen: {name}": path for name, path in (
        ("overview", "/"), ("tasks", "/tasks"), ("dead tasks", "/tasks?state=dead"), ("one task", "/tasks/redrive_task/4711"), ("causes", "/dead"),
        ("one kind", "/kinds/redrive_task/kind-2"), ("workers and gates", "/workers"), ("charts", "/charts?range=24h"),
    )},
}  # fmt: skip


async def measure(
    url: str, store: str, total: int, rounds: int, console: Console, calm: Callable[[], None]
) -> list[Measured]:
    overview.FRESH_SECONDS = 0.0  # every request asks the database
    async with Redrive(url) as app:
        await fill(app, total, console, calm)
        async with client_of(app) as client:
            groups = (await client.get("/api/groups")).json()
            asked = dict(REQUESTS)
            asked["page: one cause"] = f"/api/tasks?state=dead&cause={groups[0]['cause']}&newest_first=true"
            asked["screen: one cause"] = f"/causes/redrive_task/{groups[0]['cause']}"
            asked["task: one"] = "/api/tasks/redrive_task/4711"
            measured = []
            for name, path in asked.items():
                with console.status(f"{store}: {name}"):
                    measured.append(await _measure(client, name, path, store, total, rounds))
            return measured


async def _measure(client: httpx.AsyncClient, name: str, path: str, store: str, total: int, rounds: int) -> Measured:
    """Pages are walked: each round asks for the page behind the last one, and begins again after some."""
    times, cursor = [], None
    for number in range(rounds + 3):
        deep = cursor is not None and number % PAGES_DEEP
        address = f"{path}{'&' if '?' in path else '?'}cursor={cursor}" if deep else path
        began = time.perf_counter()
        answer = await client.get(address)
        took = (time.perf_counter() - began) * 1000
        if answer.status_code != 200:
            raise RuntimeError(f"{address} answered {answer.status_code}: {answer.text[:300]}")
        said = answer.json() if answer.headers["content-type"] == "application/json" else None
        cursor = said.get("cursor") if isinstance(said, dict) else None
        if number >= 3:
            times.append(took)
    p95 = statistics.quantiles(times, n=20)[18]
    return Measured(name, store, total, round(statistics.median(times), 1), round(p95, 1))


def show(measured: list[Measured], console: Console) -> None:
    table = Table(title="What a person waits for", title_justify="left")
    for heading in ("measure", "store", "tasks", "p50", "p95", "bound", "holds"):
        table.add_column(heading, justify="left" if heading in ("measure", "store") else "right")
    for one in measured:
        holds = "[green]yes[/]" if one.holds else "[red bold]no[/]"
        table.add_row(
            one.measure, one.store, f"{one.tasks:,}", f"{one.p50_ms} ms", f"{one.p95_ms} ms", f"{one.bound_ms:g} ms", holds
        )  # fmt: skip
    console.print(table)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.operator", description=__doc__)
    parser.add_argument("--postgres-tasks", type=int, default=POSTGRES_TASKS, help="0: not on PostgreSQL")
    parser.add_argument("--sqlite-tasks", type=int, default=SQLITE_TASKS, help="0: not on SQLite")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"requests per measurement (default {ROUNDS})")
    parser.add_argument("--folder", type=Path, help="a folder on a disk for all data (default: the temporary folder)")
    parser.add_argument("--output", type=Path, default=BUILD / "bench-operator.json")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    console = Console()
    measured: list[Measured] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        stores: list[tuple[str, int, str, Callable[[], None]]] = []
        if options.sqlite_tasks:
            url = f"sqlite:///{folder / 'operator.db'}"
            stores.append(("sqlite", options.sqlite_tasks, url, lambda: None))
        if options.postgres_tasks:
            running = stack.enter_context(servers(options.folder, postgres=True, rabbitmq=False))
            assert running.postgres is not None
            url = running.postgres.create("operator")
            stores.append(("postgres", options.postgres_tasks, url, partial(running.postgres.calm, "operator")))
        for store, total, url, calm in stores:
            with tuned_runner(answers=True) as runner:  # as the service runs
                runner.run(_migrate(url))
                measured += runner.run(measure(url, store, total, options.rounds, console, calm))
    show(measured, console)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([asdict(one) | {"holds": one.holds} for one in measured], indent=2) + "\n")
    console.print(f"saved to {options.output}", highlight=False)
    return 0 if all(one.holds for one in measured) else 1


async def _migrate(url: str) -> None:
    app = Redrive(url)
    await migrate(app.database)
    await app.close()
    await asyncio.sleep(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
