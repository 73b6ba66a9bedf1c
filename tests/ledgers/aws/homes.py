"""A ledger over items to test, on a server of DynamoDB and a queue that obeys the test's clock."""

import asyncio
import itertools
import os
import secrets
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from redrive.core.durations import ZERO
from redrive.core.task import TaskId
from redrive.ledgers.aws.attributes import from_iso, from_item
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.expressions import Update, put
from redrive.ledgers.aws.heads import Head, Part, part_number, split_id, task_id
from redrive.ledgers.aws.history import failure_key
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.open import AwsClients, open_clients
from redrive.ledgers.aws.queue import DELAY_MAX, Message, ReceivedMessage
from redrive.ledgers.aws.table import definition
from redrive.ledgers.rollup import MEASURED
from redrive.systems.triggers.aws.follow import EventFollower, standing_facts
from redrive.systems.triggers.ledger import TRIGGER_DELIVERIES
from redrive.systems.triggers.status import Standing
from redrive.testing import VirtualClock
from tests.ledgers.aws.servers import AWS
from tests.ledgers.homes import START, Home
from tests.ledgers.shapes import Shape

DELIVERIES = Shape(table=replace(TRIGGER_DELIVERIES, schema="dynamodb"), create={})
"""Deliveries as parts of events. The schema is there for the marks of the suite alone."""
USER = "ada"
PARTS_OF_AN_EVENT = 3
VISIBILITY = timedelta(seconds=30)


class ClockQueue:
    """A queue as SQS is one, but by the clock of a test: delays up to its limit, and messages that come back unless deleted."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._receipts = itertools.count()
        self._messages: dict[str, tuple[Any, Message]] = {}

    async def send(self, messages: Any) -> None:
        for message, delay in messages:
            self._messages[str(next(self._receipts))] = (self._clock.now() + min(delay, DELAY_MAX), message)

    async def receive(self, limit: int, wait: timedelta) -> list[ReceivedMessage]:
        now = self._clock.now()
        visible = sorted((seen_at, int(receipt)) for receipt, (seen_at, _) in self._messages.items() if seen_at <= now)
        taken = []
        for _, receipt in visible[: min(limit, 10)]:
            _, message = self._messages[str(receipt)]
            self._messages[str(receipt)] = (now + VISIBILITY, message)
            taken.append(ReceivedMessage(str(receipt), message))
        await asyncio.sleep(0)
        return taken

    async def delete(self, messages: Any) -> None:
        for one in messages:
            self._messages.pop(one.receipt, None)

    async def depth(self) -> int:
        return len(self._messages)


@dataclass(slots=True)
class ItemHome(Home):
    """The same verbs as of a home on SQL, with values instead of rows."""

    ledger: DynamoLedger = field(default=None)  # type: ignore[assignment]
    clients: AwsClients = field(default=None)  # type: ignore[assignment]

    async def another(self) -> DynamoLedger:
        return make_ledger(self.ledger.dynamo, self.ledger.queue, self.clock)

    @property
    def lists_all(self) -> bool:
        return False

    @property
    def keeps_errors_of_the_done(self) -> bool:
        return False

    async def put(
        self, amount: int = 1, *, kind: str = "mail", delay: timedelta = ZERO, failures_max: int | None = None
    ) -> list[TaskId]:
        ids: list[TaskId] = []
        heads = []
        for start in range(0, amount, PARTS_OF_AN_EVENT):
            self._serial += 1
            numbers = [part_number(place) for place in range(min(PARTS_OF_AN_EVENT, amount - start))]
            due = self.clock.now() + delay
            most = 3 if failures_max is None else failures_max - 1
            parts = {number: Part(target=f"ep-{number}", due_at=due, retries_max=most) for number in numbers}
            heads.append(new_event(f"event-{self._serial:05}", parts, self.clock.now()))
            ids += [task_id(heads[-1].id, number) for number in numbers]
        for head in heads:  # one after the other: a message each, in their order
            await self.ledger.take(head, counts={"received": 1})
        return ids

    async def put_behind(self, gate: str, amount: int = 1) -> list[TaskId]:
        """Events with a delivery each, all to one endpoint."""
        ids: list[TaskId] = []
        for _ in range(amount):
            self._serial += 1
            id_, now = f"event-{self._serial:05}", self.clock.now()
            await self.ledger.take(new_event(id_, {"00": Part(gate, due_at=now)}, now), counts={"received": 1})
            ids.append(task_id(id_, "00"))
        return ids

    async def row(self, id: TaskId) -> dict[str, Any]:
        task = await self.ledger.get(id)
        assert task is not None
        head_id, number = split_id(id) or ("", "")
        part = (await self.ledger.heads([head_id]))[head_id].parts[number]
        return {
            "id": task.id, "key": task.key, "status": task.state.value, "count": part.retries, "count_max": part.retries_max,
            "due": task.due_at, "lease_until": part.lease_until, "claim_id": part.fence, "claimed_at": part.claimed_at,
            "last_error": task.last_error, "ended_at": task.ended_at, "created_at": task.created_at,
            "updated_at": task.updated_at, "redrives": task.redrives,
        }  # fmt: skip

    async def standing(self, id: TaskId) -> dict[str, Any]:
        """The facts of the event of a delivery."""
        head_id, _ = split_id(id) or ("", "")
        return dict((await self.ledger.heads([head_id]))[head_id].facts)

    async def change(self, id: TaskId, *, last_error: str) -> None:
        """Write an error that nobody has redacted."""
        place = split_id(id)
        assert place is not None
        await self.ledger.dynamo.write([Update(failure_key(*place)).set("last_error", last_error).action()])

    async def wipe(self) -> None:
        client = self.ledger.dynamo._client
        found = await client.scan(TableName=self.ledger.dynamo.table)
        for item in found["Items"]:
            await client.delete_item(
                TableName=self.ledger.dynamo.table, Key={name: item[name] for name in ("pk", "sk")}
            )

    async def minutes(self) -> list[dict[str, Any]]:
        """All that was counted in each minute; the shards of a minute together."""
        client = self.ledger.dynamo._client
        added: dict[tuple[str, str, str], dict[str, Any]] = {}
        for item in (await client.scan(TableName=self.ledger.dynamo.table, ConsistentRead=True))["Items"]:
            values = from_item(item)
            if not values["pk"].startswith("R#") or values["ledger"] != self.ledger.name:
                continue
            known = values["rolled_minute"], values["ledger"], values["worker"]
            row = added.setdefault(known, dict.fromkeys((*MEASURED, "added", "pruned"), 0))
            for name in row:
                row[name] += values.get(name, 0)
        return [
            {"minute": from_iso(minute), "ledger": ledger, "worker": worker, **row}
            for (minute, ledger, worker), row in added.items()
        ]

    async def leave(self) -> None:
        await self.ledger.dynamo._client.delete_table(TableName=self.ledger.dynamo.table)


def new_event(id: str, parts: dict[str, Part], now: Any) -> Head:
    """An event that was just received."""
    facts = standing_facts(Standing("received"), id, now)
    facts = {name: value for name, value in facts.items() if value is not None}
    return Head(id=id, user_id=USER, created_at=now, parts=parts, facts=facts | {"correlation_id": f"c-{id}"})


def make_ledger(dynamo: Dynamo, queue: Any, clock: Any) -> DynamoLedger:
    """A ledger that looks the moment that something is due or over, as the suite does."""
    at_once = {
        "slack": ZERO,
        "grace": ZERO,
        "sweep_every": ZERO,
        "gates_fresh": ZERO,
        "tell_within": timedelta(minutes=5),
    }
    return DynamoLedger(dynamo, queue, DELIVERIES.table, clock=clock, follower=EventFollower(), **at_once)


@dataclass(slots=True)
class ItemGround:
    """What the tests on one server share: a client."""

    url: str
    clients: AwsClients
    _leave: Any
    intact: bool = True

    @classmethod
    async def at(cls, url: str) -> "ItemGround":
        os.environ.update({name: value for name, value in AWS.items() if name not in os.environ})
        opened = open_clients(region="us-east-1", endpoint_url=url)
        return cls(url, await opened.__aenter__(), opened.__aexit__)

    async def home(self) -> ItemHome:
        """An empty ledger at the start of time."""
        table = f"t-{secrets.token_hex(6)}"
        await self.clients.dynamodb.create_table(**definition(table))
        clock = VirtualClock()
        clock.advance(START - clock.now())
        dynamo = Dynamo(self.clients.dynamodb, table)
        await dynamo.write([put((f"U#{USER}", "U"), {"listing": "users", "listing_at": USER})])
        ledger = make_ledger(dynamo, ClockQueue(clock), clock)
        return ItemHome(
            store="aws", shape=DELIVERIES, url=self.url, clock=clock, database=None, ledger=ledger, clients=self.clients
        )  # type: ignore[arg-type]

    async def close(self) -> None:
        await self._leave(None, None, None)
