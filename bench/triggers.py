"""What triggers must hold under load, on both stores, each beside its bound. `python -m bench.triggers`.

One service process under test, as `redrive serve` starts it; the load comes from processes of its own. Stated with each
figure is the load that was run.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, func, select, text

from bench import spent
from bench.load import Measured, get, in_process, more_files, post
from bench.servers import free_ports, servers
from bench.serving import serving as start
from bench.venv import BUILD
from redrive import Redrive
from redrive.access.keys import digest
from redrive.access.sql.keys import SqlKeys
from redrive.ledgers.sql.migrate import migrate
from redrive.ledgers.sql.schema import key as keys_table
from redrive.systems.triggers.ids import new_id
from redrive.systems.triggers.sql import tables as t

USER = "bench"
LOOK_EVERY_SECONDS = 0.02
FIGURES = ["failing", "status", "ingest", "inbox"]


@dataclass(frozen=True, slots=True)
class Figure:
    measure: str
    store: str
    value: float
    unit: str
    bound: float | None

    @property
    def holds(self) -> bool:
        return self.bound is None or self.value <= self.bound


@contextmanager
def serving(url: str, **environment: str) -> Iterator[tuple[int, int]]:
    """`redrive serve` on a free port; with its pid."""
    [port] = free_ports(1)
    settings = {
        "DATABASE_URL": url, "LOG_FORMAT": "json", "DELIVERY_ALLOW_NETWORKS": "127.0.0.0/8",
        "RATE_LIMIT_PER_MINUTE": "10000000", "REDRIVE_SECRET_KEY": "A" * 43 + "=",
        # All clients have one address here.
        "HTTP_CONNECTIONS_MAX": "20000", "HTTP_CONNECTIONS_PER_ADDRESS": "20000", **environment,
    }  # fmt: skip
    command = [sys.executable, "-m", "redrive", "serve", "--systems", "triggers", "--port", str(port)]
    with start(command, port, settings, folder=Path.cwd()) as pid:
        yield port, pid


def bare(port: int) -> None:
    """A FastAPI endpoint with the same body and the same kind of answer, and nothing behind it."""
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse

    from redrive.systems.triggers.shapes import EventIn

    web = FastAPI()

    @web.post("/v1/events", status_code=201)
    async def take(event: EventIn) -> JSONResponse:
        return JSONResponse({"event_id": event.event_type, "status": "received"}, status_code=201)

    @web.get("/ready")
    async def ready() -> str:
        return "ready"

    uvicorn.run(web, host="127.0.0.1", port=port, log_level="warning", access_log=False)


@contextmanager
def serving_bare() -> Iterator[tuple[int, int]]:
    """The bare endpoint on a free port; with its pid."""
    [port] = free_ports(1)
    with start([sys.executable, "-m", "bench.triggers", "--bare", str(port)], port, {}, folder=Path.cwd()) as pid:
        yield port, pid


# --- preparing ----------------------------------------------------------------------------------------------------------


async def prepare(url: str, *, clients: int = 0, failed: int = 0) -> tuple[str, list[tuple[str, str]]]:
    """Tables, one key for all, and for each client a key and an event of its own; failed events of the one user."""
    app = Redrive(url)
    try:
        await migrate(app.database, ["triggers"])
        made = await SqlKeys(app.database).create(USER, ["admin"])
        pairs = [(f"rdk_bench-{number:032d}", new_id(datetime.now(UTC))) for number in range(clients)]
        await app.database.write(_store_clients, pairs)
        for start in range(0, failed, 50_000):
            await app.database.write(_store_failed, min(50_000, failed - start))
        if app.database.dialect.name == "postgresql":
            await app.database.statement(lambda connection: connection.execute(text("VACUUM ANALYZE")))
    finally:
        await app.close()
    return made.secret, pairs


def _store_clients(connection: Connection, pairs: list[tuple[str, str]]) -> None:
    now = datetime.now(UTC)
    if pairs:
        connection.execute(keys_table.insert(), [
            {"id": f"bench-{number}", "sha256": digest(key), "owner": f"user-{number}", "scopes": ["events:read"],
             "created_at": now} for number, (key, _) in enumerate(pairs)
        ])  # fmt: skip
        connection.execute(t.events.insert(), [
            _event(id_, f"user-{number}", "received", now) for number, (_, id_) in enumerate(pairs)
        ])  # fmt: skip


def _store_failed(connection: Connection, amount: int) -> None:
    now = datetime.now(UTC)
    connection.execute(t.events.insert(), [_event(new_id(now), USER, "failed", now) for _ in range(amount)])
    shard = connection.execute(select(func.count()).select_from(t.counts)).scalar_one()
    counted = {"user_id": USER, "status": "failed", "shard": shard, "amount": amount}
    connection.execute(t.counts.insert(), counted)


def _event(id_: str, user: str, status: str, now: datetime) -> dict[str, Any]:
    return {
        "id": id_, "user_id": user, "event_type": "order.created", "payload": '{"order": 7, "text": "' + "x" * 200 + '"}',
        "correlation_id": "bench", "status": status, "failed_at": now if status == "failed" else None,
        "retry_attempts": 3 if status == "failed" else 0, "created_at": now, "updated_at": now,
    }  # fmt: skip


# --- measuring ----------------------------------------------------------------------------------------------------------


def checked(measured: Measured) -> Measured:
    if measured.refused or measured.broken:
        raise RuntimeError(f"{measured.refused} refused and {measured.broken} broken: these figures would mean nothing")
    return measured


def status_figures(url: str, store: str, options: argparse.Namespace) -> list[Figure]:
    """Many clients, each with its own connection, key and event, each asking every five seconds; then as many as will go."""
    _, pairs = asyncio.run(prepare(url, clients=options.clients))
    requests = [get(f"/v1/events/{id_}/status", key) for key, id_ in pairs]
    with serving(url) as (port, _):
        rounds = max(2, round(options.seconds / 5))
        steady = checked(in_process("steady", port, requests, 5.0, rounds))
        most = checked(in_process("closed", port, requests, 64, options.seconds))
    load = f"{options.clients:,} clients on as many connections, each every 5 s ({steady.per_second:,.0f} requests/s)"
    return [
        Figure(f"status p95, {load}", store, round(steady.percentile(95) * 1000, 1), "ms", 50),
        Figure("status p99, the same", store, round(steady.percentile(99) * 1000, 1), "ms", None),
        Figure("status, the most of one process (64 connections)", store, round(most.per_second), "requests/s", None),
    ]


def ingest_figures(url: str, store: str, options: argparse.Namespace) -> list[Figure]:
    """Events posted at a steady rate, and as many as will go: in rounds that alternate with a bare endpoint, which stores nothing."""
    key, _ = asyncio.run(prepare(url))
    body = b'{"event_type": "order.created", "payload": {"order": 7, "text": "' + b"x" * 200 + b'"}}'
    requests = [post("/v1/events", key, body)] * options.ingest
    ours, bare = [], []
    with serving(url) as (port, pid), serving_bare() as (bare_port, bare_pid):
        steady = checked(in_process("steady", port, requests, 1.0, max(2, round(options.seconds))))
        for _ in range(options.rounds):
            bare.append(_most(bare_port, bare_pid, requests[:1], options.seconds / options.rounds))
            ours.append(_most(port, pid, requests[:1], options.seconds / options.rounds))
    (rate, cpu), (bare_rate, bare_cpu) = _medians(ours), _medians(bare)
    return [
        Figure(
            f"ingest p95 at {steady.per_second:,.0f} events/s", store, round(steady.percentile(95) * 1000, 1), "ms", 100
        ),
        Figure("ingest, the most of one process (64 connections)", store, round(rate), "events/s", None),
        Figure("ingest, processor time of the service", store, round(cpu), "µs/event", None),
        Figure("the most of a bare FastAPI endpoint", store, round(bare_rate), "requests/s", None),
        Figure("processor time of a bare FastAPI endpoint", store, round(bare_cpu), "µs/request", None),
    ]


def _most(port: int, pid: int, requests: list[bytes], seconds: float) -> tuple[float, float]:
    """As many as will go: how many a second, and how much processor time of the service each took in µs."""
    before = spent.of_process(pid)
    measured = checked(in_process("closed", port, requests, 64, seconds))
    return measured.per_second, (spent.of_process(pid) - before) / len(measured.seconds) * 1e6


def _medians(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    rates, cpu = zip(*rounds, strict=True)
    return statistics.median(rates), statistics.median(cpu)


def inbox_figures(url: str, store: str, failed: int) -> list[Figure]:
    """`inbox?status=failed` page by page."""
    key, _ = asyncio.run(prepare(url, failed=failed))
    times = []
    with (
        serving(url) as (port, _),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": key}) as client,
    ):
        cursor, seen = None, 0
        while True:
            asked = {"status": "failed", "limit": 100} | ({"cursor": cursor} if cursor else {})
            began = time.perf_counter()
            page = client.get("/v1/inbox", params=asked).json()
            times.append(time.perf_counter() - began)
            assert page["pagination"]["total_count"] == failed
            seen += len(page["events"])
            cursor = page["pagination"]["cursor"]
            if cursor is None:
                break
    assert seen == failed, f"{seen} of {failed} events were listed"
    p95 = statistics.quantiles(times, n=20)[18]
    return [
        Figure(
            f"inbox?status=failed p95, {failed:,} rows, all {len(times):,} pages", store, round(p95 * 1000, 1), "ms", 50
        )
    ]


def failing_figures(url: str, store: str, options: argparse.Namespace) -> list[Figure]:
    """Deliveries under way together that are refused at the same moment: from the answer to the next try in the store.

    Each goes to an endpoint of its own: of those to one endpoint ten are under way at once, and after ten failures it is held.
    """
    amount = options.failing
    return [asyncio.run(_failing(url, store, amount))]


async def _failing(url: str, store: str, amount: int) -> Figure:
    key, _ = await prepare(url)
    held: list[asyncio.StreamWriter] = []
    all_there = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            await reader.readexactly(length)
            held.append(writer)
            if len(held) >= amount:
                all_there.set()
            await reader.read()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0, backlog=2048)
    target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    with serving(url, WORKER_CONCURRENCY=str(amount + 100)) as (port, _):
        async with (
            Redrive(url) as app,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": key}, timeout=60) as client,
        ):
            keys = [(await SqlKeys(app.database).create(f"owner-{start}", ["admin"])).secret
                    for start in range(0, amount, 100)]  # fmt: skip
            for start, owner in zip(range(0, amount, 100), keys, strict=True):
                of = {"X-API-Key": owner}
                for number in range(min(100, amount - start)):
                    made = {"url": target, "event_types": [f"to.{number}"]}
                    (await client.post("/v1/endpoints", json=made, headers=of)).raise_for_status()
            for start, owner in zip(range(0, amount, 100), keys, strict=True):
                events = [{"event_type": f"to.{number}", "payload": 1} for number in range(min(100, amount - start))]
                posted = await client.post("/v1/events/batch", json={"events": events}, headers={"X-API-Key": owner})
                posted.raise_for_status()
            async with asyncio.timeout(14):
                await all_there.wait()
            failed_at = time.perf_counter()
            for writer in held:
                writer.write(b"HTTP/1.1 503 Not now\r\nContent-Length: 0\r\n\r\n")
            late = await _rescheduled(app, amount, failed_at)
    server.close()
    p95 = statistics.quantiles(late, n=20)[18]
    return Figure(
        f"{amount:,} deliveries to as many endpoints failing at once: p95 until rescheduled",
        store,
        round(p95, 3),
        "s",
        1,
    )


async def _rescheduled(app: Redrive, amount: int, failed_at: float) -> list[float]:
    """How long after the failure each next try was there to be seen by somebody else: the commit is part of it."""
    waiting = select(func.count()).where(t.events.c.retry_attempts == 1, t.events.c.next_retry_at.is_not(None))
    late: list[float] = []
    async with asyncio.timeout(30):
        while len(late) < amount:
            there: int = await app.database.read(lambda connection: connection.execute(waiting).scalar_one())
            late += [time.perf_counter() - failed_at] * (there - len(late))
            await asyncio.sleep(LOOK_EVERY_SECONDS)
    return late


def measure(options: argparse.Namespace, console: Console) -> list[Figure]:
    figures: list[Figure] = []

    def keep(found: list[Figure]) -> None:
        for figure in found:
            console.print(f"{figure.store}: {figure.measure}: {figure.value:,} {figure.unit}", highlight=False)
        figures.extend(found)

    with ExitStack() as stack:
        running = stack.enter_context(servers(options.folder, postgres="postgres" in options.stores, rabbitmq=False))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))

        def fresh(store: str, name: str) -> str:
            if store == "sqlite":
                return f"sqlite:///{folder / name}.db"
            assert running.postgres is not None
            return running.postgres.create(name)

        for store in options.stores:
            if "failing" in options.only:
                keep(failing_figures(fresh(store, "failing"), store, options))
            if "status" in options.only:
                keep(status_figures(fresh(store, "status"), store, options))
            if "ingest" in options.only:
                keep(ingest_figures(fresh(store, "ingest"), store, options))
            for failed in options.rows if "inbox" in options.only else ():
                keep(inbox_figures(fresh(store, f"inbox_{failed}"), store, failed))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    parser.add_argument("--clients", type=int, default=10_000, help="clients that ask for a status")
    parser.add_argument("--seconds", type=float, default=30, help="how long each load lasts")
    parser.add_argument("--ingest", type=int, default=500, help="events posted per second")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of as many events as will go")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES, help="what is measured")
    parser.add_argument("--bare", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--failing", type=int, default=1_000, help="deliveries that fail at once")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000], help="failed events in the inbox")
    parser.add_argument("--folder", type=Path, default=BUILD)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if options.bare:
        bare(options.bare)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    more_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console()
    figures = measure(options, console)
    table = Table("measure", "store", "value", "bound", title="triggers under load")
    for figure in figures:
        bound = "–" if figure.bound is None else f"{figure.bound:g} {figure.unit}"
        colour = "green" if figure.holds else "red"
        table.add_row(figure.measure, figure.store, f"[{colour}]{figure.value:,} {figure.unit}[/]", bound)
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    sys.exit(0 if all(figure.holds for figure in figures) else 1)


if __name__ == "__main__":
    main()
