"""A bus on each database, with handlers and a clock of its own."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, text

from redrive import Redrive
from redrive.app import WorkerSettings
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.commands import (
    Command,
    CommandContext,
    CommandRecord,
    Commands,
    PermanentCommandError,
    Registry,
    RetryPolicy,
)
from redrive.testing import VirtualClock
from redrive.web.app import make_web
from tests.servers import Migrated

START = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
DOMAIN, TYPE = "payments", "DebitAccount"
REPLIES = "payments__replies"
QUEUE = "payments__commands"
ACTS_AT = "/api/commands/troubleshooting"
BAD = PermanentCommandError("NO_ACCOUNT", "no account for password=hunter2", {"iban": "x", "token": "s3cr3t-value"})


@dataclass(slots=True)
class Bench:
    """A bus with one handler whose behaviour a test sets, and short verbs around it."""

    app: Redrive
    bus: Commands
    handlers: Registry
    clock: VirtualClock
    store: str
    raises: list[BaseException | None] = field(default_factory=list)
    """What the next calls raise, in order; after that they return `result`."""
    result: Any = None
    calls: list[tuple[Command, int, int]] = field(default_factory=list)

    async def handle(self, command: Command, context: CommandContext) -> Any:
        self.calls.append((command, context.attempt, context.max_attempts))
        error = self.raises.pop(0) if self.raises else None
        if error is not None:
            raise error
        return self.result

    async def send(self, command_id: str = "c-1", data: Any = None, **given: Any) -> None:
        await self.bus.send(DOMAIN, TYPE, command_id, {"n": 1} if data is None else data, reply_to=REPLIES, **given)

    async def work(self) -> None:
        """Handle all that is due now, with the engine's own worker."""
        await self.app.work_off(self.bus.lane, WorkerSettings(concurrency=10))

    async def get(self, command_id: str = "c-1") -> CommandRecord:
        found = await self.bus.get_command(DOMAIN, command_id)
        assert found is not None
        return found

    async def events(self, command_id: str = "c-1") -> list[str]:
        """The audit: types, with the reason or the type of the error behind them."""
        shown = []
        for event in await self.bus.audit_trail(command_id):
            more = event.details.get("reason") or event.details.get("type")
            shown.append(f"{event.event_type} {more}" if more else event.event_type)
        return shown

    async def replies(self) -> list[tuple[str, Any]]:
        """What was replied: outcomes with the result, or with the code of the error."""
        taken = await self.bus.take_replies(REPLIES)
        return [(one.outcome.value, one.error["code"] if one.error else one.result) for one in taken]

    async def message(self, command_id: str = "c-1") -> str:
        """Where the message is: queued, archived or deleted; with how long it is hidden. SQLite has it in the row."""

        def look(connection: Connection) -> str:
            for table, word in (("q", "queued"), ("a", "archived")):
                row = connection.execute(
                    text(f"SELECT vt FROM pgmq.{table}_{QUEUE} WHERE message ->> 'command_id' = :id"),
                    {"id": command_id},
                ).first()
                if row is not None:
                    return (
                        word if word == "archived" else f"queued for {(row.vt - self.clock.now()).total_seconds():g} s"
                    )
            return "deleted"

        if self.store == "postgres":
            return await self.app.database.read(look)
        row = await self.get(command_id)
        hidden = row.lease_until or row.due_at
        if hidden is not None:
            return f"queued for {(hidden - self.clock.now()).total_seconds():g} s"
        return "deleted" if row.status == "COMPLETED" else "archived"

    def advance(self, **span: float) -> None:
        self.clock.advance(timedelta(**span))


@pytest.fixture
async def bus_url(migrated: Migrated) -> str:
    """The URL of a new database with the tables of the bus."""
    return await migrated(["commands"])


@pytest.fixture
async def bench(bus_url: str, store: str, clock: VirtualClock) -> AsyncIterator[Bench]:
    """A bus whose one handler does what the test says."""
    handlers = Registry()
    app = Redrive(bus_url, clock=clock, durable=False)
    bus = Commands(app, handlers=handlers, retry_policy=RetryPolicy())
    made = Bench(app, bus, handlers, clock, store)
    handlers.handler(DOMAIN, TYPE)(made.handle)
    async with app:
        yield made


@dataclass(slots=True)
class Desk:
    """A bus with an operator before it."""

    bench: Bench
    local: httpx.AsyncClient
    keys: dict[str, str]

    async def get(self, path: str, *, gives: int = 200, **parameters: Any) -> Any:
        answer = await self.local.get(path, params=parameters)
        assert answer.status_code == gives, answer.text
        return answer.json()

    async def act(self, name: str, *ids: str, gives: int = 200, role: str = "operator", **given: Any) -> Any:
        # Written out: httpx itself would not send half a surrogate.
        body = json.dumps({"domain": DOMAIN, "ids": list(ids), "reason": "mended", **given})
        headers = {"X-API-Key": self.keys[role], "Content-Type": "application/json"}
        answer = await self.local.post(f"{ACTS_AT}/{name}", content=body, headers=headers)
        assert answer.status_code == gives, answer.text
        return answer.json()

    async def troubled(self, *ids: str, domain: str = DOMAIN, **given: Any) -> None:
        """Commands that wait for a person."""
        for one in ids:
            self.bench.raises.append(BAD)
            await self.bench.bus.send(domain, TYPE, one, given.get("data", {"n": 1}), reply_to=REPLIES)
            await self.bench.work()


@pytest.fixture
async def desk(bench: Bench) -> AsyncIterator[Desk]:
    """The service stands still: the worker is the test."""
    bench.handlers.handler("shipping", TYPE)(bench.handle)
    service = Service(bench.app, Settings(_env_file=None))
    service.is_open = True
    keys = {role: (await service.keys.create(role, [role])).secret for role in ("viewer", "operator", "events:write")}
    transport = httpx.ASGITransport(make_web(service), client=("127.0.0.1", 12345), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as local:
        yield Desk(bench, local, keys)
    await service.close_all()
