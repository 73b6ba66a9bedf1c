"""Delayed retries on RabbitMQ: the relay beside the usual way without a scheduler. `python -m bench.relay`.

Every message is to come back two, four or eight seconds after it failed. Drift is how much later than that its consumer has it,
measured by the consumer, broker and all. Each way gets the same messages from the same producer on the same broker:

- relay: `redrive relay run` in a process of its own, on PostgreSQL with fsync, logs at their default level;
- TTL queues: one queue for each wait, `x-message-ttl` and a dead-letter exchange that leads back; a wait that no queue was
  declared for is not possible;
- TTL per message: one queue for all waits, `expiration` on each message; what waits longer blocks what is behind it.

First a steady rate, then rates that grow until the p99 of the drift passes its bound. Producer and consumer share one process, and
go past the driver as the relay does, so that for each way it is the broker and the relay that are measured.
Then bursts through the relay, clean and with one message of a hundred spoilt. The relay's own bounds fail the run if they do
not hold.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aio_pika
import uvloop
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from rich.console import Console
from rich.table import Table
from yarl import URL

from bench import spent
from bench.servers import Servers, servers
from bench.venv import BUILD
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.relay.relay_pb2 import RetryMessage
from redrive.systems.relay.wire import ConfirmingChannel, Incoming, Published, Wire

WAITS_SECONDS = (2.0, 4.0, 8.0)
P99_BOUND_SECONDS = 1.0
TICK_SECONDS = 0.02
DRAIN_SECONDS_MAX = 30.0
START_SECONDS_MAX = 30.0
GROWTH = 1.5
FINEST = 1.05
"""Rates that are nearer to each other than this are not told apart."""
BURST = 5000
BURSTS = 3
POISON_EVERY = 100
KEPT_BOUND = 0.9
PAYLOAD = bytes(512)
PERSISTENT = 2
WORK = "bench.work"
RETRY = "bench.retry"
WAYS = ("relay", "TTL queues", "TTL per message")


@dataclass(frozen=True, slots=True)
class Result:
    way: str
    rate: int
    seconds: float
    sent: int
    sent_per_second: float
    missing: int
    drift_p50_ms: float
    drift_p99_ms: float
    drift_max_ms: float
    cpu_us: dict[str, int]
    """What a message cost in processor time, by who spent it."""

    @property
    def holds(self) -> bool:
        """Whether it kept up: all came, on time, and the producer was not held back."""
        return (
            not self.missing
            and self.drift_p99_ms <= P99_BOUND_SECONDS * 1000
            and self.sent_per_second > 0.9 * self.rate
        )


class Parts:
    """Who shares the cores."""

    def __init__(self, at: Servers, relay: int | None = None) -> None:
        self._at = at
        self._relay = relay

    def spent(self) -> dict[str, float]:
        """Seconds of processor time until now."""
        assert self._at.postgres is not None
        assert self._at.rabbitmq is not None
        relay = {} if self._relay is None else {
            "relay": spent.of_process(self._relay),
            "postgres": spent.of_server(self._at.postgres.pid),
        }  # fmt: skip
        return relay | {"rabbitmq": spent.of_session(self._at.rabbitmq.pid), "load": spent.here()}


class Bench:
    """One way of waiting: where messages are sent, and what the consumer sees of them."""

    def __init__(self, way: str, wire: Wire, connection: aio_pika.Connection, parts: Parts) -> None:
        self.way = way
        self._parts = parts
        self._wire = wire
        self._connection = connection
        self._drifts: list[float] = []
        self._serial = 0
        self._run = 0

    async def prepare(self) -> None:
        """Empty queues, and a consumer that writes down the drift of what comes."""
        self._channel = self._connection.channel(publisher_confirms=True)
        await self._channel.initialize()
        raw = await self._channel.get_underlay_channel()
        self._outgoing = ConfirmingChannel(self._wire, raw, DRAIN_SECONDS_MAX)
        self._wire.watchers[raw.number] = self._outgoing
        for queue in (WORK, *(self._wait_queue(wait) for wait in WAITS_SECONDS)):
            await self._channel.queue_delete(queue)
        await self._channel.declare_queue(WORK, durable=True)
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": WORK}
        for wait in WAITS_SECONDS if self.way == "TTL queues" else ():
            ttl = {"x-message-ttl": int(wait * 1000)}
            await self._channel.declare_queue(self._wait_queue(wait), durable=True, arguments=back | ttl)
        if self.way == "TTL per message":
            await self._channel.declare_queue(self._wait_queue(WAITS_SECONDS[0]), durable=True, arguments=back)
        consuming = self._connection.channel(publisher_confirms=False)
        await consuming.initialize()
        raw = await consuming.get_underlay_channel()
        self._wire.watchers[raw.number] = Incoming(raw, self._take)
        await raw.basic_consume(WORK, self._unwatched, no_ack=True)

    async def _unwatched(self, _message: DeliveredMessage) -> None:
        raise AssertionError("the wire takes what is delivered")

    def _wait_queue(self, wait: float) -> str:
        return f"{RETRY}.wait.{wait if self.way == 'TTL queues' else 'all'}"

    def _take(self, message: DeliveredMessage) -> None:
        headers: Any = message.header.properties.headers
        if headers["run"] == self._run:
            self._drifts.append(time.time() - float(headers["due"]))

    async def run(self, rate: int, seconds: float) -> Result:
        """Send at the rate for so long, and wait until all has come back."""
        self._drifts = []
        drifts = self._drifts  # what of an earlier run comes after its end is not this one's
        self._run += 1
        before = self._parts.spent()
        began = time.monotonic()
        sending: list[asyncio.Future[Published | None]] = []
        while (elapsed := time.monotonic() - began) < seconds:
            behind = int(rate * (elapsed + TICK_SECONDS)) - len(sending)
            sending += [self._send() for _ in range(behind)]
            await asyncio.sleep(TICK_SECONDS)
        await confirmed(sending)
        took = time.monotonic() - began
        ends = time.monotonic() + DRAIN_SECONDS_MAX
        while len(drifts) < len(sending) and time.monotonic() < ends:
            await asyncio.sleep(0.05)
        missing = len(sending) - len(drifts)
        drifts = sorted(drifts) or [DRAIN_SECONDS_MAX]
        return Result(
            way=self.way,
            rate=rate,
            seconds=seconds,
            sent=len(sending),
            sent_per_second=round(len(sending) / took, 1),
            missing=missing,
            drift_p50_ms=round(statistics.median(drifts) * 1000, 1),
            drift_p99_ms=round(drifts[int(len(drifts) * 0.99)] * 1000, 1),
            drift_max_ms=round(drifts[-1] * 1000, 1),
            cpu_us=self._each(before, len(sending)),
        )

    def _each(self, before: dict[str, float], amount: int) -> dict[str, int]:
        """What one of so many messages has cost since then, in microseconds of processor time."""
        return {part: round((now - before[part]) / amount * 1e6) for part, now in self._parts.spent().items()}

    async def burst(self, amount: int, *, spoilt: bool) -> tuple[float, dict[str, int]]:
        """So many messages at once, due as soon as the relay allows; how many per second came back, and what each cost."""
        self._drifts = []
        drifts = self._drifts
        self._run += 1
        before = self._parts.spent()
        began = time.monotonic()
        sending: list[asyncio.Future[Published | None]] = []
        for n in range(amount):
            sending.append(self._send(hinted=False))
            if spoilt and n % POISON_EVERY == 0:
                sending.append(self._outgoing.send(Basic.Properties(delivery_mode=PERSISTENT), b"\xff" * 40, RETRY))
        await confirmed(sending)
        while len(drifts) < amount and time.monotonic() < began + DRAIN_SECONDS_MAX:
            await asyncio.sleep(0.01)
        rate = len(drifts) / (time.monotonic() - began)
        return rate, self._each(before, amount)

    def _send(self, *, hinted: bool = True) -> "asyncio.Future[Published | None]":
        self._serial += 1
        wait = WAITS_SECONDS[self._serial % len(WAITS_SECONDS)]
        due = time.time() + wait
        properties = Basic.Properties(headers={"due": str(due), "run": self._run}, delivery_mode=PERSISTENT)
        body, queue = PAYLOAD, self._wait_queue(wait)
        if self.way == "relay":
            queue = RETRY
            body = RetryMessage(
                message_id=f"{os.getpid()}-{id(self)}-{self._serial}",
                original_payload=PAYLOAD,
                original_queue=WORK,
                next_retry_at_ms=int(due * 1000) if hinted else 0,
            ).SerializeToString()
        elif self.way == "TTL per message":
            properties.expiration = str(int(wait * 1000))
        return self._outgoing.send(properties, body, queue)


async def confirmed(sending: "list[asyncio.Future[Published | None]]") -> None:
    """Wait until the broker has all of them."""
    said = set(await asyncio.gather(*sending))
    if said != {Published.CONFIRMED}:
        raise SystemExit(f"the broker said {said}")


@asynccontextmanager
async def connected(way: str, url: str, parts: Parts) -> AsyncIterator[Bench]:
    """A bench on a connection of its own."""
    wire = Wire()
    connection = wire.connection(URL(url))
    await connection.connect()
    async with connection:
        bench = Bench(way, wire, connection, parts)
        await bench.prepare()
        yield bench


@contextmanager
def relay_process(at: Servers, log: Path) -> Iterator[int]:
    """The relay, as it is deployed; its pid. Its own waits are short: the bench asks for each instant itself."""
    assert at.postgres is not None
    url = at.postgres.create("relay")

    async def prepare() -> None:
        database = open_database(url)
        await migrate(database, ["relay"])
        await database.close()

    uvloop.run(prepare())
    environment = os.environ | {
        "DATABASE_URL": url,
        "RABBITMQ_URL": at.rabbitmq_url or "",
        "RETRY_QUEUE": RETRY,
        "MANUAL_REVIEW_QUEUE": "bench.review",
        "BASE_DELAY_MS": "1",
        "MAX_DELAY_MS": "1",
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "redrive", "relay", "run", "--port", "0"],
            env=environment, cwd=at.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        ends = time.monotonic() + START_SECONDS_MAX
        while log.read_text().count("broker_connected") < 2:
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"the relay did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if process.poll() is None:
            process.kill()
            process.wait()


async def measure(
    way: str, url: str, parts: Parts, options: argparse.Namespace, console: Console
) -> tuple[Result, list[Result]]:
    async with connected(way, url, parts) as bench:
        await bench.run(options.rate, min(3.0, options.seconds))  # warm
        console.print(f"{way}: {options.rate}/s for {options.seconds:g} s", highlight=False)
        steady = await bench.run(options.rate, options.seconds)
        ramp: list[Result] = []
        kept, growth = float(options.rate), GROWTH
        if not options.step_seconds or not steady.holds:
            return steady, ramp
        while growth > FINEST:
            rate = int(kept * growth)
            console.print(f"{way}: {rate}/s for {options.step_seconds:g} s", highlight=False)
            ramp.append(await bench.run(rate, options.step_seconds))
            if ramp[-1].holds:
                kept = rate
            if not ramp[-1].holds or growth < GROWTH:  # between the last that held and the first that did not
                growth **= 0.5
        return steady, ramp


async def measure_bursts(url: str, parts: Parts, amount: int, console: Console) -> dict[str, Any]:
    """The best of a few bursts each: messages per second, clean and spoilt, and what is kept; what a clean one costs."""
    async with connected("relay", url, parts) as bench:
        found: dict[bool, list[tuple[float, dict[str, int]]]] = {False: [], True: []}
        for at in range(BURSTS):
            for spoilt in (False, True):
                console.print(f"relay: burst {at + 1} of {amount:,}{', spoilt' if spoilt else ''}", highlight=False)
                found[spoilt].append(await bench.burst(amount, spoilt=spoilt))
        clean, spoilt_rate = (max(rate for rate, _ in found[spoilt]) for spoilt in (False, True))
        return {
            "clean_per_second": round(clean),
            "spoilt_per_second": round(spoilt_rate),
            "kept": round(spoilt_rate / clean, 3),
            "cpu_us": min((cost for _, cost in found[False]), key=lambda cost: cost["relay"]),
        }


def told(cpu_us: dict[str, int]) -> str:
    """What a message cost, part by part."""
    return ", ".join(f"{part} {us}" for part, us in cpu_us.items())


def show(found: dict[str, tuple[Result, list[Result]]], console: Console) -> None:
    table = Table(title="Delayed retries on RabbitMQ: 2, 4 and 8 s", title_justify="left")
    for heading in (
        "way",
        "rate",
        "drift p50",
        "drift p99",
        "drift max",
        "lost",
        "highest rate that kept up",
        "µs of processor time for each then",
    ):
        table.add_column(heading)
    for way, (steady, ramp) in found.items():
        kept = max((result for result in (steady, *ramp) if result.holds), key=lambda result: result.rate, default=None)
        table.add_row(
            way, f"{steady.rate}/s", f"{steady.drift_p50_ms} ms", f"{steady.drift_p99_ms} ms", f"{steady.drift_max_ms} ms",
            str(steady.missing), f"{kept.sent_per_second:.0f}/s" if kept else "–", told(kept.cpu_us) if kept else "–",
        )  # fmt: skip
    console.print(table)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the steady rate is kept (default 60)")
    parser.add_argument("--rate", type=int, default=200, help="messages per second (default 200)")
    parser.add_argument("--step-seconds", type=float, default=10.0, help="of each growing rate; 0: none (default 10)")
    parser.add_argument("--burst", type=int, default=BURST, help=f"messages of a burst (default {BURST:,})")
    parser.add_argument("--folder", type=Path, help="a folder on a disk for all data (default: the temporary folder)")
    parser.add_argument("--output", type=Path, default=BUILD / "bench-relay.json")
    options = parser.parse_args(argv)
    # Ended from outside, it still ends the servers that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console()
    found: dict[str, tuple[Result, list[Result]]] = {}
    with servers(options.folder, postgres=True, rabbitmq=True) as at:
        assert at.rabbitmq_url is not None
        assert at.postgres is not None
        settings = at.postgres.settings()
        with relay_process(at, at.folder / "relay.log") as relay:
            parts = Parts(at, relay)
            found["relay"] = uvloop.run(measure("relay", at.rabbitmq_url, parts, options, console))
            bursts = uvloop.run(measure_bursts(at.rabbitmq_url, parts, options.burst, console))
        for way in WAYS[1:]:
            found[way] = uvloop.run(measure(way, at.rabbitmq_url, Parts(at), options, console))
    show(found, console)
    console.print(
        f"bursts of {options.burst:,} through the relay: {bursts['clean_per_second']}/s clean, "
        f"{bursts['spoilt_per_second']}/s with 1 % poison ({bursts['kept']:.0%}); µs of processor time for each: {told(bursts['cpu_us'])}",
        highlight=False,
    )
    saved = {
        "waits_seconds": WAITS_SECONDS,
        "postgres": settings,
        "bursts": bursts,
        "ways": {
            way: {"steady": asdict(steady), "ramp": [asdict(one) | {"holds": one.holds} for one in ramp]}
            for way, (steady, ramp) in found.items()
        },
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(saved, indent=2) + "\n")
    console.print(f"saved to {options.output}", highlight=False)
    steady, _ = found["relay"]
    return 0 if steady.holds and bursts["kept"] >= KEPT_BOUND else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
