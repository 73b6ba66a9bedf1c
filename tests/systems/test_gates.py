"""Relay, commands, webhooks and flags: no gate until somebody limits or pauses one, and then it holds for what waits too."""

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection

from redrive import Fixed, Policy, Redrive, jitter
from redrive.core.decide import decide
from redrive.core.outcome import Failed
from redrive.errors import LedgerAwayError, TransientError, UsageError
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.commands import Commands, CommandSettings
from redrive.systems.commands.registry import Registry
from redrive.systems.flags import Flags, FlagSettings, NewSchedule
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.webhooks import Webhooks, WebhookSettings
from redrive.testing import VirtualClock
from tests.ledgers.homes import settlement
from tests.ledgers.sql.test_migrate import catalogue
from tests.servers import Migrated

from .relay.kit import arrival

LEASE = timedelta(seconds=30)
MINUTE = timedelta(minutes=1)
Put = Callable[[str], Awaitable[Any]]


def _webhooks(app: Redrive) -> tuple[Any, Any, str, Put]:
    webhooks = Webhooks(app, WebhookSettings(_env_file=None), sources=())
    webhooks.handler("order.made")(lambda _task: None)
    return (
        webhooks.lane,
        webhooks.inbox.gates,
        "order.made",
        lambda key: webhooks.accept("order.made", {}, idempotency_key=key),
    )


def _relay(app: Redrive) -> tuple[Any, Any, str, Put]:
    relay = Relay(app, RelaySettings(_env_file=None, base_delay_ms=1, max_delay_ms=1))
    return relay.lane, relay._intake.gates, "orders", lambda key: relay._intake.store([arrival(key, queue="orders")])


def _commands(app: Redrive) -> tuple[Any, Any, str, Put]:
    bus = Commands(app, settings=CommandSettings(_env_file=None), handlers=Registry())
    return bus.lane, bus._gates, "payments/Debit", lambda key: bus.send("payments", "Debit", key)


def _flags(app: Redrive) -> tuple[Any, Any, str, Put]:
    flags = Flags(app, FlagSettings(_env_file=None))

    async def put(key: str) -> Any:
        await flags.put(key, enabled=False, rollout_percentage=0, actor="ada")
        soon = NewSchedule(scheduled_at=app.database.now() + timedelta(seconds=1), updates={"enabled": True})
        return await flags.schedule(key, soon, actor="ada")

    return flags.lane, flags._intake.gates, "schedules", put


SYSTEMS = {"webhooks": _webhooks, "relay": _relay, "commands": _commands, "flags": _flags}


@pytest.fixture
def store() -> str:
    return "sqlite"


async def taken(lane: Any, clock: VirtualClock) -> list[Any]:
    clock.advance(MINUTE)
    ledger = await lane.ledger()
    await ledger.discover()
    return [claim for _ in range(3) for claim in await ledger.claim(10, LEASE, kinds=await _kinds(lane, ledger))]


async def _kinds(lane: Any, ledger: Any) -> list[str] | None:
    return None if lane.table.kind is None else await ledger.open_kinds()


async def held_again(gates: Any) -> None:
    """A look, as if a second were over."""
    gates._looked_at = None
    await gates.look()


@pytest.mark.parametrize("name", SYSTEMS)
async def test_gates_are_used_when_they_are_set(name: str, migrated: Migrated, clock: VirtualClock) -> None:
    """Nothing has a gate at first. A pause keeps back what waits and what comes; after the resume all goes through, within the limit that is set."""
    app = Redrive(await migrated([name]), clock=clock, durable=False)
    lane, gates, gate, put = SYSTEMS[name](app)
    async with app:
        ledger = await lane.ledger()
        await put("a")
        assert await ledger.gates() == []
        await lane.pause_gate(gate, actor="ada", reason="the destination is being moved")
        await held_again(gates)
        await put("b")
        assert await taken(lane, clock) == []
        assert await lane.resume_gate(gate, actor="ada", reason="it is there")
        claims = await taken(lane, clock)
        assert [claim.task.gate for claim in claims] == [gate, gate]
        assert await ledger.settle([settlement(claim) for claim in claims], worker="w") == []
        await held_again(gates)
        await put("c")
        [claim] = await taken(lane, clock)
        assert claim.task.gate is None, "nobody limits it any more"
        lane.gate(gate, concurrency=1)
        await lane.ledger()
        for key in ("d", "e", "f"):
            await held_again(gates)
            await put(key)
        assert [claim.task.gate for claim in await taken(lane, clock)] == [gate]
        assert (await ledger.gate(gate))[0].held == 1


async def test_what_waits_is_taken_in_though_the_store_was_away(migrated: Migrated, clock: VirtualClock) -> None:
    """A look that found the pause and could not put anything behind it is made up for by the next one."""
    app = Redrive(await migrated(["relay"]), clock=clock, durable=False)
    lane, gates, gate, put = SYSTEMS["relay"](app)
    async with app:
        await put("a")
        await lane.pause_gate(gate, actor="ada", reason="the destination is being moved")
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(gates, "_take_some", _away)
            with pytest.raises(LedgerAwayError):
                await held_again(gates)
        await held_again(gates)
        assert await taken(lane, clock) == []


def _away(*_: Any) -> int:
    raise LedgerAwayError("no answer")


async def test_what_ran_when_somebody_paused_waits_behind_the_gate_then(
    migrated: Migrated, clock: VirtualClock
) -> None:
    """It was claimed without a gate, and fails: its next try is kept back as all others are."""
    app = Redrive(await migrated(["relay"]), clock=clock, durable=False)
    lane, gates, gate, put = SYSTEMS["relay"](app)
    async with app:
        await put("a")
        [claim] = await taken(lane, clock)
        await lane.pause_gate(gate, actor="ada", reason="the destination is being moved")
        await held_again(gates)
        failed = decide(
            claim, Failed(TransientError("no")), Policy(Fixed(timedelta(seconds=1)), attempts=3, jitter=jitter.none)
        )
        assert await (await lane.ledger()).settle([failed], worker="w") == []
        gates._take_in_at = -math.inf  # the last one was long enough ago
        await held_again(gates)
        assert await taken(lane, clock) == []


async def test_commands_in_queues_refuse_gates(postgres: Any, migrated: Migrated) -> None:
    """With PGMQ a limit is refused in one sentence, which says what holds instead."""
    url = await postgres.create()
    database = open_database(url, durable=False)
    await migrate(database, ["commands"])
    await database.close()
    app = Redrive(url, durable=False)
    bus = Commands(app, settings=CommandSettings(_env_file=None), handlers=Registry())
    async with app:
        with pytest.raises(UsageError, match="pause its kinds"):
            await bus.lane.pause_gate("payments/Debit", actor="ada", reason="x")
        bus.lane.gate("payments/*", concurrency=1)
        with pytest.raises(UsageError, match="PGMQ"):
            await bus.lane.ledger()


async def test_a_type_behind_a_gate_fills_no_queue(migrated: Migrated, clock: VirtualClock) -> None:
    """While a type is paused its webhooks have a queue of their own; of the others as many are taken in as ever."""
    app = Redrive(await migrated(["webhooks"]), clock=clock, durable=False)
    webhooks = Webhooks(app, WebhookSettings(_env_file=None, queue_maxsize=3), sources=())
    webhooks.handler("*")(lambda _task: None)
    async with app:
        await webhooks.lane.pause_gate("order.made", actor="ada", reason="x")
        await held_again(webhooks.inbox.gates)
        took = [await webhooks.accept("order.made", {}, idempotency_key=f"o{n}") for n in range(6)]
        other = [await webhooks.accept("mail.sent", {}, idempotency_key=f"m{n}") for n in range(6)]
    assert [receipt is not None for receipt in took] == [True] * 4 + [False] * 2
    assert [receipt is not None for receipt in other] == [True] * 4 + [False] * 2


async def test_schedules_are_claimed_by_priority(migrated: Migrated, clock: VirtualClock) -> None:
    """High before normal before low, whichever is due first; also those that were planned before anybody had a priority."""
    app = Redrive(await migrated(["flags"]), clock=clock, durable=False)
    flags = Flags(app, FlagSettings(_env_file=None))
    async with app:
        await flags.put("promo", enabled=False, rollout_percentage=0, actor="ada")
        for number, priority in enumerate(("normal", "low", "low", "high", "normal", "high")):
            at = clock.now() + timedelta(seconds=10 + number)
            new = NewSchedule(scheduled_at=at, updates={"rollout_percentage": number}, priority=priority)
            [made] = await flags.schedule("promo", new, actor="ada")
            assert made.priority == priority
        clock.advance(MINUTE)
        ledger = await flags.lane.ledger()
        claims = await ledger.claim(6, LEASE)
        assert sorted(claim.task.priority or 1 for claim in claims if claim.task.priority != 0) == [1, 1, 2, 2]
        ledger.draw.choice = lambda _given: -1  # whose turn it is to go first of all is drawn
        for claim in claims:
            await ledger.settle([settlement(claim, outcome=_released())], worker="w")
        order = [(await ledger.claim(1, LEASE))[0].task.payload["priority"] for _ in range(6)]
        assert order == [0, 0, None, None, 2, 2]


def _released() -> Any:
    from redrive.core.outcome import Released

    return Released()


@pytest.mark.parametrize("name", [*SYSTEMS, "triggers"])
async def test_gates_can_be_taken_back(name: str, tmp_path: Any) -> None:
    """Down to the version before gates and up again: the tables are the same."""
    numbers = {"webhooks": "0004", "relay": "0003", "commands": "0003", "flags": "0004", "triggers": "0002"}
    migration = import_module(f"redrive.systems.{name}.migrations.{name}_{numbers[name]}_gates")
    database = open_database(f"sqlite:///{tmp_path / 'a.db'}", durable=False)

    def run(connection: Connection, step: Callable[[], None]) -> None:
        with Operations.context(MigrationContext.configure(connection)):
            step()

    try:
        await migrate(database, [name])
        newest = await database.read(_indexes)
        await database.write(run, migration.downgrade)
        assert await database.read(_indexes) != newest
        await database.write(run, migration.upgrade)
        assert await database.read(_indexes) == newest
        await database.read(catalogue)
    finally:
        await database.close()


def _indexes(connection: Connection) -> set[tuple[str, str]]:
    asked = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    return {(name, " ".join(sql.split())) for name, sql in connection.exec_driver_sql(asked)}
