"""What an event costs on DynamoDB and SQS, and a thousand failures at once. `python -m bench.aws`.

Calls are counted over the wire, on MiniStack. Request units are worked out from the items as they were before and after each call, by
the rules that AWS publishes: emulators do not tell them. So the figures are calls and units, not the speed of an emulator.
"""

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.venv import BUILD
from redrive.core.backoff import Fixed
from redrive.core.decide import decide
from redrive.core.durations import ZERO, seconds
from redrive.core.gate_rules import Breaker, read_rule
from redrive.core.outcome import Done, Failed, Outcome
from redrive.core.policy import Policy
from redrive.core.task import Claim
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import TransientError
from redrive.events import AttemptEnded, Event
from redrive.items import Head, Part
from redrive.ledgers.aws.attributes import Item
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.clock import machine_now
from redrive.ledgers.aws.expressions import put_new, query
from redrive.ledgers.aws.heads import head_key, part_number
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.open import AwsClients, open_clients
from redrive.ledgers.aws.queue import SqsQueue
from redrive.ledgers.aws.table import INDEXES, definition
from redrive.ports import Actor
from redrive.systems.triggers.aws.follow import EventFollower, standing_facts
from redrive.systems.triggers.ledger import TRIGGER_DELIVERIES
from redrive.systems.triggers.status import Standing
from tests.ledgers.aws.servers import AWS, aws_server

WRITE_BYTES, READ_BYTES = 1024, 4096
DOLLARS = {"write units": 0.625, "read units": 0.125, "SQS": 0.40}
"""Per million, US East, on demand."""
MODEL = {
    "delivered at once": (26, 5, 1.2),
    "3 endpoints": (32, 7, 1.2),
    "four failures, dead": (65, 14, 5),
}
"""What was planned before anything was built: write units, read units, SQS requests."""
USER = "ada"
LEASE = seconds(60)
POLICY = Policy(Fixed(seconds(1)), retries=3, name="bench")
TOGETHER = 10
PAYLOAD = "x" * 900
P95_BOUND_SECONDS = 5.0


# --- units --------------------------------------------------------------------------------------------------------------


def size_of(item: Item) -> int:
    """The size of an item as DynamoDB bills it."""
    return sum(len(name.encode()) + _value_size(value) for name, value in item.items())


def _value_size(attribute: dict[str, Any]) -> int:
    [(kind, value)] = attribute.items()
    match kind:
        case "S":
            return len(value.encode())
        case "N":
            return math.ceil(len(value.lstrip("-").replace(".", "")) / 2) + 1
        case "M":
            return 3 + sum(1 + len(name.encode()) + _value_size(inner) for name, inner in value.items())
        case "L":
            return 3 + sum(1 + _value_size(inner) for inner in value)
        case _:
            return 1


def write_units(before: Item | None, after: Item | None, *, in_transaction: bool) -> int:
    """What a change of one item costs: the larger of both, doubled in a transaction, and each entry of an index that changed."""
    own = max(1, math.ceil(max(size_of(before or {}), size_of(after or {})) / WRITE_BYTES))
    return own * (2 if in_transaction else 1) + sum(_index_units(name, before, after) for name in INDEXES)


def _index_units(name: str, before: Item | None, after: Item | None) -> int:
    old, new = _entry(name, before), _entry(name, after)
    if old == new:
        return 0
    keys = ("pk", "sk", INDEXES[name].partition, INDEXES[name].sort)
    if old and new and all(old[key] == new[key] for key in keys):
        return max(1, math.ceil(max(size_of(old), size_of(new)) / WRITE_BYTES))
    return sum(max(1, math.ceil(size_of(one) / WRITE_BYTES)) for one in (old, new) if one)


def _entry(name: str, item: Item | None) -> Item | None:
    index = INDEXES[name]
    if item is None or index.partition not in item or index.sort not in item:
        return None
    if index.projection["ProjectionType"] == "ALL":
        return item
    kept = {"pk", "sk", index.partition, index.sort, *index.projection.get("NonKeyAttributes", ())}
    return {attribute: value for attribute, value in item.items() if attribute in kept}


def read_units(size: int, *, strong: bool) -> float:
    """What reading so many bytes costs."""
    return max(1, math.ceil(size / READ_BYTES)) * (1.0 if strong else 0.5)


@dataclass
class Meter:
    """Counts what passes through both clients."""

    calls: Counter[str] = field(default_factory=Counter)
    read: float = 0.0
    written: float = 0.0

    def spent(self) -> "Spent":
        """What was counted since the last time."""
        sqs = sum(amount for call, amount in self.calls.items() if "message" in call)
        spent = Spent(dict(self.calls), self.calls.total() - sqs, sqs, self.read, self.written)
        self.calls, self.read, self.written = Counter(), 0.0, 0.0
        return spent


@dataclass(frozen=True)
class Spent:
    calls: dict[str, int]
    dynamodb: float
    sqs: float
    read: float
    written: float

    def each(self, amount: int) -> "Spent":
        calls = {call: number / amount for call, number in self.calls.items()}
        return Spent(calls, self.dynamodb / amount, self.sqs / amount, self.read / amount, self.written / amount)

    def __add__(self, other: "Spent") -> "Spent":
        calls = Counter(self.calls)
        calls.update(other.calls)
        both = (
            self.dynamodb + other.dynamodb,
            self.sqs + other.sqs,
            self.read + other.read,
            self.written + other.written,
        )
        return Spent(dict(calls), *both)

    @property
    def dollars(self) -> float:
        return self.written * DOLLARS["write units"] + self.read * DOLLARS["read units"] + self.sqs * DOLLARS["SQS"]


class MeteredClient:
    """Passes calls on, and works out what they cost. Looking at items before and after is not counted."""

    def __init__(self, client: Any, meter: Meter, *, units: bool = True) -> None:
        self._client = client
        self._meter = meter
        self._units = units

    def __getattr__(self, call: str) -> Any:
        async def asked(**request: Any) -> Any:
            self._meter.calls[call] += 1
            if not self._units:
                return await getattr(self._client, call)(**request)
            touched = _touched(call, request)
            before = await self._items(touched)
            answer = await getattr(self._client, call)(**request)
            after = await self._items(touched)
            in_transaction = call == "transact_write_items"
            for old, new in zip(before, after, strict=True):
                self._meter.written += write_units(old, new, in_transaction=in_transaction)
            self._meter.read += _read(call, request, answer)
            return answer

        return asked

    async def _items(self, touched: Sequence[tuple[str, Item]]) -> list[Item | None]:
        asked = [self._client.get_item(TableName=table, Key=key, ConsistentRead=True) for table, key in touched]
        return [answer.get("Item") for answer in await asyncio.gather(*asked)]


def _touched(call: str, request: dict[str, Any]) -> list[tuple[str, Item]]:
    match call:
        case "transact_write_items":
            actions = [action for one in request["TransactItems"] for action in one.values()]
        case "update_item" | "put_item" | "delete_item":
            actions = [request]
        case _:
            return []
    keys = [action.get("Key") or {name: action["Item"][name] for name in ("pk", "sk")} for action in actions]
    return [(action["TableName"], key) for action, key in zip(actions, keys, strict=True)]


def _read(call: str, request: dict[str, Any], answer: dict[str, Any]) -> float:
    match call:
        case "get_item":
            return read_units(size_of(answer.get("Item", {})), strong=True)
        case "batch_get_item":
            items = [item for some in answer["Responses"].values() for item in some]
            return sum(read_units(size_of(item), strong=True) for item in items)
        case "query":
            return read_units(sum(map(size_of, answer["Items"])), strong="IndexName" not in request)
        case _:
            return 0.0


# --- what events go through ---------------------------------------------------------------------------------------------


class Bench:
    """A table and a queue, and events with all that belongs to them."""

    def __init__(self, clients: AwsClients, table: str, queue_url: str, *, units: bool = True) -> None:
        self.meter = Meter()
        self.dynamo = Dynamo(MeteredClient(clients.dynamodb, self.meter, units=units), table)
        queue = SqsQueue(MeteredClient(clients.sqs, self.meter, units=False), queue_url)
        self.ledger = DynamoLedger(self.dynamo, queue, TRIGGER_DELIVERIES, follower=EventFollower())
        self._serial = 0

    async def prepare(self) -> None:
        """A key, and endpoints, for what is read around a delivery; each has the gate that endpoints have, whose breaker never trips."""
        limits = read_rule(concurrency=10, breaker=Breaker(failures=1_000_000))
        await self.ledger.set_rule("*", limits, Actor(name="code"), by_code=True)
        keys = {
            "key_id": "k" * 26,
            "holder": USER,
            "scopes": "events:write",
            "created_at": "2030-01-01T00:00:00.000000Z",
        }
        await self.dynamo.write([put_new(("K#" + "a" * 64, "K"), keys)])
        for number in range(3):
            endpoint = {
                "url": f"https://example.com/hooks/{number}",
                "secret": "s" * 150,
                "enabled": 1,
                "since": "2030-01-01",
            }
            await self.dynamo.write([put_new((f"U#{USER}", f"P#ep-{number:02}"), endpoint)])
        self.meter.spent()

    async def ingest(self, endpoints: int, *, with_key: bool = False, alone: bool = False) -> str:
        """One event: the key is looked up, the endpoints are read, and the event is stored and sent. With `alone` nobody else has its endpoints."""
        await self.dynamo.get(("K#" + "a" * 64, "K"))
        await self.dynamo.query(query(("pk", f"U#{USER}"), ("sk", "begins_with", "P#")))
        self._serial += 1
        now = machine_now()
        id_ = f"{self._serial:08}-{'e' * 18}"
        parts = {
            part_number(n): Part(
                f"ep-{n:02}-{self._serial if alone else 0:020}", due_at=now - seconds(1), updated_at=now
            )
            for n in range(endpoints)
        }
        facts = {
            key: value for key, value in standing_facts(Standing("received"), id_, now).items() if value is not None
        }
        facts |= {"event_type": "order.created", "correlation_id": "c" * 32, "payload_bytes": len(PAYLOAD)}
        beside = [put_new((f"E#{id_}", "P"), {"payload": PAYLOAD})]
        if with_key:
            beside.append(put_new((f"I#{USER}#{'a' * 64}{self._serial}", "I"), {"event_id": id_}))
        await self.ledger.take(Head(id_, USER, now, parts, facts), beside=beside, counts={"received": 1})
        return id_

    async def status(self, id_: str) -> None:
        """One look at an event's status."""
        await self.dynamo.get(head_key(id_))

    async def round(self, amount: int, outcome: Outcome) -> None:
        """Claim so many deliveries, read what a delivery needs, and settle them together."""
        claims: list[Claim] = []
        while len(claims) < amount:
            some = await self.ledger.claim(amount - len(claims), LEASE)
            claims += some
            if not some:
                await asyncio.sleep(0.2)
        ids = {claim.task.payload["event_id"] for claim in claims}
        await self.dynamo.get_many([*((f"E#{id_}", "P") for id_ in ids), (f"U#{USER}", "P#ep-00")])
        await self.ledger.settle([decide(claim, outcome, POLICY) for claim in claims], worker="bench")


FAILED = Failed(TransientError("503 Service Unavailable: the other side is not there, try again later"))


async def life(
    bench: Bench, events: int, endpoints: int, outcomes: Sequence[Outcome], *, with_key: bool = False
) -> Spent:
    """So many events that go through these outcomes; what each of them took."""
    for _ in range(events):
        await bench.ingest(endpoints, with_key=with_key)
    for outcome in outcomes:
        await bench.round(events * endpoints, outcome)
    return bench.meter.spent().each(events)


async def ingest_alone(bench: Bench) -> Spent:
    await bench.ingest(1)
    spent = bench.meter.spent()
    await bench.round(1, Done())
    bench.meter.spent()
    return spent


async def status_alone(bench: Bench) -> Spent:
    id_ = await bench.ingest(1)
    bench.meter.spent()
    await bench.status(id_)
    spent = bench.meter.spent()
    await bench.round(1, Done())
    bench.meter.spent()
    return spent


async def settle_alone(bench: Bench, outcome: Outcome) -> Spent:
    await bench.ingest(1)
    [claim] = await bench.ledger.claim(1, LEASE)
    bench.meter.spent()
    await bench.ledger.settle([decide(claim, outcome, POLICY)], worker="bench")
    spent = bench.meter.spent()
    if outcome is FAILED:
        await bench.round(1, Done())
        bench.meter.spent()
    return spent


Measured = Callable[[Bench], Awaitable[Spent]]
ROWS: dict[str, Measured] = {
    "ingest": ingest_alone,
    "status": status_alone,
    "settle done": lambda bench: settle_alone(bench, Done()),
    "settle failed": lambda bench: settle_alone(bench, FAILED),
    "delivered at once": lambda bench: life(bench, TOGETHER, 1, [Done()]),
    "the same, with Idempotency-Key": lambda bench: life(bench, TOGETHER, 1, [Done()], with_key=True),
    "the same, one by one": lambda bench: life(bench, 1, 1, [Done()]),
    "one failure": lambda bench: life(bench, TOGETHER, 1, [FAILED, Done()]),
    "four failures, dead": lambda bench: life(bench, TOGETHER, 1, [FAILED] * 4),
    "3 endpoints": lambda bench: life(bench, TOGETHER, 3, [Done()]),
}


# --- a thousand failures ------------------------------------------------------------------------------------------------


class Ends:
    """Notes when settlements were written."""

    def __init__(self, amount: int) -> None:
        self.at: list[float] = []
        self.all = asyncio.Event()
        self._amount = amount

    def observe(self, events: Sequence[Event]) -> None:
        self.at += [time.perf_counter()] * sum(isinstance(event, AttemptEnded) for event in events)
        if len(self.at) >= self._amount:
            self.all.set()


async def failing_at_once(bench: Bench, amount: int) -> tuple[float, float, Spent]:
    """Deliveries under way together, each to an endpoint of its own, that fail at the same moment: from the failure to the next try in the table and the queue.

    Answers the 95th percentile, and the seconds of this process's own work in it: the rest is the emulator's.
    """
    for start in range(0, amount, 50):
        await asyncio.gather(*(bench.ingest(1, alone=True) for _ in range(min(50, amount - start))))
    started, barrier, running = [0], asyncio.Event(), asyncio.Event()

    async def deliver(_: Any) -> None:
        started[0] += 1
        if started[0] == amount:
            running.set()
        await barrier.wait()
        raise TransientError("503 Service Unavailable")

    handlers, ends = Handlers(), Ends(amount)
    handlers.add(
        make_handler(TRIGGER_DELIVERIES.name, deliver, Policy(Fixed(timedelta(minutes=5)), retries=3, name="bench"))
    )
    settings = WorkerSettings(concurrency=amount, lease=timedelta(minutes=5), grace=ZERO)
    worker = Worker(bench.ledger, handlers, settings, observers=[ends])
    working = asyncio.create_task(worker.run())
    await running.wait()
    bench.meter.spent()
    began, worked = time.perf_counter(), time.process_time()
    barrier.set()
    await ends.all.wait()
    worked = time.process_time() - worked
    spent = bench.meter.spent()
    worker.stop()
    await working
    return statistics.quantiles([at - began for at in ends.at], n=20)[18], worked, spent


# --- telling ------------------------------------------------------------------------------------------------------------


def show(rows: dict[str, Spent], console: Console) -> None:
    table = Table(
        "an event", "DynamoDB", "SQS", "write units", "read units", "$ per million", "planned", title="Calls and units"
    )
    for name, one in rows.items():
        planned = MODEL.get(name)
        told = "" if planned is None else f"{planned[0]} · {planned[1]} · {planned[2]}"
        cells = [f"{value:.1f}" for value in (one.dynamodb, one.sqs, one.written, one.read, one.dollars)]
        table.add_row(name, *cells, told)
    console.print(table)
    for name in ("delivered at once", "one failure"):
        calls = ", ".join(f"{call} {amount:.1f}" for call, amount in sorted(rows[name].calls.items()))
        console.print(f"{name}: {calls}", highlight=False)


async def measure(url: str, failing: int, console: Console) -> dict[str, Any]:
    async with open_clients(region="us-east-1", endpoint_url=url) as clients:

        async def bench(name: str, *, units: bool) -> Bench:
            await clients.dynamodb.create_table(**definition(name))
            made = await clients.sqs.create_queue(QueueName=name)
            one = Bench(clients, name, made["QueueUrl"], units=units)
            await one.prepare()
            return one

        metered = await bench("units", units=True)
        rows = {}
        for name, measured in ROWS.items():
            rows[name] = await measured(metered)
        show(rows, console)
        p95, worked, spent = await failing_at_once(await bench("failing", units=False), failing)
        verdict = "holds" if p95 <= P95_BOUND_SECONDS else "does not hold"
        console.print(
            f"{failing:,} deliveries failing at once: p95 {p95:.2f} s until the next try is stored and sent "
            f"(bound {P95_BOUND_SECONDS:g} s: {verdict}), {worked:.2f} s of them work of this process; {spent.dynamodb:g} calls of DynamoDB and {spent.sqs:g} of SQS",
            highlight=False,
        )
    at = datetime.now().isoformat(timespec="seconds")
    return {"at": at, "failing": failing, "p95_seconds": p95, "rows": {name: vars(one) for name, one in rows.items()}}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.aws", description=__doc__)
    parser.add_argument("--failing", type=int, default=1000, help="deliveries that fail at once (default 1000)")
    parser.add_argument("--server", choices=["ministack", "moto"], default="ministack")
    parser.add_argument("--output", type=Path, default=BUILD / "bench-aws.json")
    options = parser.parse_args(argv)
    os.environ.update(AWS)
    with aws_server(options.server) as url:
        results = asyncio.run(measure(url, options.failing, Console(width=120)))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if results["p95_seconds"] <= P95_BOUND_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
