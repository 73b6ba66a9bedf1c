"""The inbox under load: `python -m bench.webhooks`.

- steady: webhooks at the rate of the promise, with handlers that take 2 to 5 seconds: no error, and a bound on the p99 of the
  answers. A bound that does not hold fails the run.
- burst: as many POSTs as the server takes, on SQLite and on PostgreSQL, with the work done elsewhere and in the same process,
  beside a FastAPI endpoint that reads the same body and stores nothing: the limit.

Every server is `redrive serve` in a process of its own, as it is deployed: logs at their default level, synchronous=FULL. The
senders are one process with raw connections that stay open; their latencies are measured from the first byte sent to the last
received.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from bench import spent
from bench.servers import free_ports, servers
from bench.serving import ask
from bench.serving import serving as start
from bench.venv import BUILD

ROOT = Path(__file__).parent.parent
P99_BOUND_MS = 500.0
BARE = "bare FastAPI, stores nothing"
PAYLOAD = {"order": 7, "customer": "ada@example.com", "items": [{"sku": "A-100", "amount": 2}], "total": "41.80"}


@dataclass(frozen=True, slots=True)
class Result:
    measure: str
    server: str
    sent: int
    seconds: float
    rate: float
    p50_ms: float
    p99_ms: float
    errors: dict[str, int] = field(default_factory=dict)
    completed: int | None = None
    cpu_us: float | None = None
    """Processor time of the service for each webhook of a burst."""


# --- what is served ---------------------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    """`bench.webhooks:slow`, `:quick` and `:none`: made when `redrive serve --app` asks for one of them."""
    if name not in ("slow", "quick", "none"):
        raise AttributeError(name)
    from redrive import Redrive, Task
    from redrive.systems.webhooks import Webhooks

    app = Redrive(os.environ["DATABASE_URL"])
    webhooks = Webhooks(app)
    if name == "slow":

        @webhooks.handler("*")
        async def slow(_task: Task) -> None:
            await asyncio.sleep(random.uniform(2, 5))

    if name == "quick":

        @webhooks.handler("*")
        async def quick(_task: Task) -> None:
            pass

    return app


def bare(port: int) -> None:
    """A FastAPI endpoint with the same body and the same kind of answer, and nothing behind it."""
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse

    from redrive.systems.webhooks.shapes import WebhookIn

    web = FastAPI()

    @web.post("/webhooks", status_code=202)
    async def take(given: WebhookIn) -> JSONResponse:
        return JSONResponse({"idempotency_key": given.idempotency_key, "status": "pending"}, status_code=202)

    @web.get("/ready")
    async def ready() -> str:
        return "ready"

    uvicorn.run(web, host="127.0.0.1", port=port, log_level="warning", access_log=False)


@contextlib.contextmanager
def serving(kind: str, url: str, folder: Path, **environment: str) -> Iterator[tuple[int, int]]:
    """A server in a process of its own; its port and its pid."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "bench.webhooks", "--bare", str(port)]
    if kind != "bare":
        command = [sys.executable, "-m", "redrive", "serve", "--app", f"bench.webhooks:{kind}", "--port", str(port)]
    settings = {"DATABASE_URL": url, "LOG_FORMAT": "json", "HTTP_TRUST_LOOPBACK": "true", **environment}
    with start(command, port, settings, folder=ROOT, log=folder / f"{kind}-{port}.log") as pid:
        yield port, pid


# --- who sends --------------------------------------------------------------------------------------------------------


class Sender(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._buffer = b""
        self._answered: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, request: bytes) -> "asyncio.Future[int]":
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        start = lower.index(b"content-length:") + 15
        length = int(lower[start : lower.find(b"\r\n", start) % (len(lower) + 1)])
        if len(body) >= length and self._answered is not None:
            self._buffer = body[length:]
            answered, self._answered = self._answered, None
            if not answered.done():
                answered.set_result(int(head[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionError("closed"))

    def close(self) -> None:
        self._transport.close()


def requests(port: int) -> Iterator[bytes]:
    """Webhooks without end, each with a key of its own; all have the same length."""
    mark = "~" * 20
    given = {"idempotency_key": mark, "event_type": "order.paid", "payload": PAYLOAD}
    body = json.dumps(given).encode()
    head = (
        f"POST /webhooks HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    before, after = (head + body).split(mark.encode())
    salt = random.randrange(10**8)
    number = 0
    while True:
        yield before + f"{salt:08}{number:012}".encode() + after
        number += 1


@dataclass(slots=True)
class Sent:
    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def count(self, began: float, status: int | None) -> None:
        self.latencies_ms.append((time.perf_counter() - began) * 1000)
        if status != 202:
            self.errors[str(status)] += 1


async def connect(port: int) -> Sender:
    _, sender = await asyncio.get_running_loop().create_connection(Sender, "127.0.0.1", port)
    return sender


async def send_burst(port: int, connections: int, seconds: float) -> tuple[Sent, float]:
    """Each connection sends its next webhook as soon as the last is answered."""
    each, sent = requests(port), Sent()
    senders = [await connect(port) for _ in range(connections)]
    warm = [await one.send(next(each)) for one in senders]
    assert set(warm) == {202}, Counter(warm)
    began = time.perf_counter()
    ends = began + seconds

    async def go_on(sender: Sender) -> None:
        while (start := time.perf_counter()) < ends:
            sent.count(start, await sender.send(next(each)))

    await asyncio.gather(*(go_on(sender) for sender in senders))
    took = time.perf_counter() - began
    for sender in senders:
        sender.close()
    return sent, took


async def send_steadily(port: int, per_minute: int, seconds: float) -> tuple[Sent, float]:
    """One webhook at each beat, whether the last is answered or not, as senders do who know nothing of each other."""
    each, sent = requests(port), Sent()
    idle: list[Sender] = []
    flying: set[asyncio.Task[None]] = set()

    async def one(start: float) -> None:
        status = None
        with contextlib.suppress(OSError):
            sender = idle.pop() if idle else await connect(port)
            status = await sender.send(next(each))
            idle.append(sender)
        sent.count(start, status)

    began = time.perf_counter()
    for number in range(int(per_minute * seconds / 60)):
        at = began + number * 60 / per_minute
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        # From when it should have gone out: a sender that is late itself must not hide that.
        task = asyncio.create_task(one(at))
        flying.add(task)
        task.add_done_callback(flying.discard)
    await asyncio.gather(*flying)
    took = time.perf_counter() - began
    for sender in idle:
        sender.close()
    return sent, took


def _in_process(kind: str, *given: Any) -> tuple[Sent, float]:
    return uvloop.run(send_burst(*given) if kind == "burst" else send_steadily(*given))


def send(kind: str, *given: Any) -> tuple[Sent, float]:
    """The same in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_in_process, (kind, *given))


def result(measure: str, server: str, sent: Sent, took: float, completed: int | None = None) -> Result:
    cuts = statistics.quantiles(sent.latencies_ms, n=100)
    good = len(sent.latencies_ms) - sum(sent.errors.values())
    return Result(
        measure, server, len(sent.latencies_ms), round(took, 2), round(good / took, 1),
        round(cuts[49], 2), round(cuts[98], 2), dict(sent.errors), completed,
    )  # fmt: skip


# --- measuring --------------------------------------------------------------------------------------------------------


def counted(port: int, state: str) -> int:
    """How many webhooks are in a state, as the service's own metrics say; they are fresh for some seconds."""
    text = ask(port, "/metrics").decode()
    found = re.search(rf'redrive_tasks\{{ledger="events",state="{state}"\}} ([\d.e+]+)', text)
    return int(float(found[1])) if found else 0


def completed_by(port: int, amount: int, patience_seconds: float) -> int:
    ends = time.monotonic() + patience_seconds
    while (done := counted(port, "done")) < amount and time.monotonic() < ends:
        time.sleep(1)
    return done


def steady(url: str, store: str, folder: Path, options: argparse.Namespace) -> Result:
    with serving("slow", url, folder) as (port, _):
        sent, took = send("steady", port, options.per_minute, options.minutes * 60)
        amount = len(sent.latencies_ms) - sum(sent.errors.values())
        return result("steady", store, sent, took, completed_by(port, amount, 60))


def burst(kind: str, url: str, server: str, folder: Path, options: argparse.Namespace) -> Result:
    with serving(kind, url, folder, QUEUE_MAXSIZE="100000") as (port, pid):
        before = spent.of_process(pid)
        sent, took = send("burst", port, options.connections, options.seconds)
        cpu_us = (spent.of_process(pid) - before) / len(sent.latencies_ms) * 1e6
        found = result("burst", server, sent, took, counted(port, "done") if kind == "quick" else None)
        return replace(found, cpu_us=round(cpu_us, 1))


def measure(folder: Path, create: Any, options: argparse.Namespace, console: Console) -> list[Result]:
    results: list[Result] = []

    def note(one: Result) -> None:
        results.append(one)
        errors = f", errors {one.errors}" if one.errors else ""
        console.print(
            f"{one.measure} · {one.server}: {one.rate:,.0f}/s, p50 {one.p50_ms} ms, p99 {one.p99_ms} ms, "
            f"{one.cpu_us} µs of processor time each{errors}",
            highlight=False,
        )

    def url(store: str) -> str:
        return create() if store == "PostgreSQL" else f"sqlite:///{folder / f'bench-{time.monotonic_ns()}.db'}"

    if "burst" in options.only:
        for _ in range(options.rounds):
            note(burst("bare", "", BARE, folder, options))
            for store in options.stores:
                note(burst("none", url(store), f"{store}, work done elsewhere", folder, options))
                note(burst("quick", url(store), f"{store}, work done in the same process", folder, options))
    if "steady" in options.only:
        for store in options.stores:
            note(steady(url(store), f"{store}, handlers of 2 to 5 s", folder, options))
    return results


def show(results: Sequence[Result], console: Console) -> None:
    bare = [one for one in results if one.measure == "burst" and one.server == BARE]
    limit = statistics.median(one.rate for one in bare) if bare else None
    least_us = statistics.median(one.cpu_us or 0.0 for one in bare) if bare else None
    table = Table(
        "measure", "server", "accepted/s", "of bare", "CPU µs", "of bare", "p50 ms", "p99 ms", "sent", "errors",
        "completed",
    )  # fmt: skip
    for one in results:
        errors = ", ".join(f"{status}: {amount}" for status, amount in one.errors.items()) or "none"
        table.add_row(
            one.measure, one.server, f"{one.rate:,.0f}",
            f"{one.rate / limit:.0%}" if limit and one.measure == "burst" else "",
            "" if one.cpu_us is None else f"{one.cpu_us:,.0f}",
            f"{least_us / one.cpu_us:.0%}" if least_us and one.cpu_us else "", f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", f"{one.sent:,}",
            errors, "" if one.completed is None else f"{one.completed:,}",
        )  # fmt: skip
    console.print(table)


def medians(results: Sequence[Result], console: Console) -> None:
    """Each server of the burst beside the bare endpoint: what processor time says hardly swings with what else runs on the machine."""
    rounds: dict[str, list[Result]] = {}
    for one in results:
        if one.measure == "burst":
            rounds.setdefault(one.server, []).append(one)
    if BARE not in rounds:
        return
    found = {
        server: (statistics.median(one.rate for one in some), statistics.median(one.cpu_us or 0.0 for one in some))
        for server, some in rounds.items()
    }
    table = Table(
        "server", "accepted/s", "of bare", "CPU µs", "of bare", title=f"medians of {len(rounds[BARE])} rounds"
    )
    for server, (rate, cpu_us) in found.items():
        share = f"{found[BARE][1] / cpu_us:.0%}" if cpu_us else ""
        table.add_row(server, f"{rate:,.0f}", f"{rate / found[BARE][0]:.0%}", f"{cpu_us:,.0f}", share)
    console.print(table)


def broken(results: Sequence[Result]) -> list[str]:
    """What was promised and does not hold."""
    faults = []
    for one in results:
        if one.errors:
            faults.append(f"{one.measure} · {one.server}: errors {one.errors}")
        if one.measure == "steady" and one.p99_ms > P99_BOUND_MS:
            faults.append(f"{one.measure} · {one.server}: p99 {one.p99_ms} ms, more than {P99_BOUND_MS:.0f} ms")
        if one.measure == "steady" and one.completed != one.sent:
            faults.append(f"{one.measure} · {one.server}: {one.completed} of {one.sent} completed")
    return faults


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.webhooks", description="Measure the inbox under load.")
    parser.add_argument("--only", default="burst,steady", help="burst, steady or both (default both)")
    parser.add_argument("--stores", default="SQLite,PostgreSQL", help="SQLite, PostgreSQL or both (default both)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the burst (default 3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a burst (default 5)")
    parser.add_argument("--connections", type=int, default=128, help="senders of the burst at once (default 128)")
    parser.add_argument("--per-minute", type=int, default=1000, help="rate of the steady load (default 1000)")
    parser.add_argument("--minutes", type=float, default=3.0, help="length of the steady load (default 3)")
    parser.add_argument("--folder", type=Path, help="a folder on a disk for all data (default: the temporary folder)")
    parser.add_argument("--output", type=Path, default=BUILD / "webhooks.json", help="results")
    parser.add_argument("--bare", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.only, options.stores = options.only.split(","), options.stores.split(",")
    return options


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    if options.bare:
        bare(options.bare)
        return 0
    console = Console()
    with servers(options.folder, postgres="PostgreSQL" in options.stores, rabbitmq=False) as running:

        def create() -> str:
            from redrive.ledgers.open import open_database
            from redrive.ledgers.sql.migrate import migrate

            async def make(url: str) -> None:
                database = open_database(url)
                await migrate(database, ["webhooks"])
                await database.close()

            assert running.postgres is not None
            made = running.postgres.create(f"webhooks_{time.monotonic_ns()}")
            asyncio.run(make(made))
            return made

        results = measure(running.folder, create, options, console)
    show(results, console)
    medians(results, console)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([asdict(one) for one in results], indent=2))
    faults = broken(results)
    for fault in faults:
        console.print(f"[red bold]{fault}[/]", highlight=False)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
