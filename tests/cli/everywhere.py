"""A database with a dead task in every ledger, as the five systems leave them."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

from sqlalchemy import insert, update

from redrive import Exponential, PermanentError, Policy, Redrive, jitter, seconds
from redrive.core.decide import decide
from redrive.core.outcome import Failed
from redrive.lane import Lane
from redrive.systems.commands import Commands
from redrive.systems.commands.registry import Registry
from redrive.systems.flags import Flags
from redrive.systems.flags.tables import schedules
from redrive.systems.flags.values import NewSchedule
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay.tables import retry_queue
from redrive.systems.triggers import Triggers
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.values import NewEvent
from redrive.systems.webhooks import Webhooks

ONCE = Policy(Exponential(seconds(1), seconds(1)), attempts=1, jitter=jitter.none)


async def dead_everywhere(url: str) -> dict[str, str]:
    """The key of the dead task of each ledger. Secrets are encrypted only while they are made: looking needs no key for them."""
    with patch.dict(os.environ, REDRIVE_SECRET_KEY="A" * 43 + "="):
        return await _dead_everywhere(url)


async def _dead_everywhere(url: str) -> dict[str, str]:
    app = Redrive(url, durable=False)
    bus, flags, relay, triggers, webhooks = (
        Commands(app, handlers=Registry()), Flags(app), Relay(app, RelaySettings()), Triggers(app), Webhooks(app),
    )  # fmt: skip
    async with app:
        await app.add("mail", key="task-1")
        await webhooks.accept("order.created", {}, idempotency_key="hook-1")
        await bus.send("payments", "Debit", "debit-1", {})
        endpoint = {"url": "https://shop.example/", "event_types": ["*"], "secret": new_secret(), "policy": {}}
        await triggers.endpoints.create({"user_id": "ada", "enabled": True, **endpoint})
        await triggers.intake.take([NewEvent(user_id="ada", event_type="order.made", payload="{}", correlation_id="c")])
        for lane in (app.tasks, webhooks.lane, bus.lane, triggers.lane):
            await kill_one(lane)

        now = datetime.now(UTC)
        await flags.put("promo", actor="ada")
        later = NewSchedule(scheduled_at=now + timedelta(days=1), updates={"enabled": True})
        await flags.schedule("promo", later, actor="ada")
        failed = update(schedules).values(status="failed", last_error="no")
        message = {"message_id": "message-1", "original_payload": b"p", "original_queue": "q", "headers": {}}
        reviewed = insert(retry_queue).values(status="failed", created_at=now, updated_at=now, **message)
        for statement in (failed, reviewed):
            await app.database.write(lambda connection, statement=statement: connection.execute(statement).rowcount)
        await triggers.outgoing.close()
        lanes = app.tasks, bus.lane, flags.lane, relay.lane, triggers.lane, webhooks.lane
        return {lane.name: (await lane.find()).items[0].key for lane in lanes}


async def kill_one(lane: Lane) -> None:
    """Let the one task that is due die."""
    ledger = await lane.ledger()
    async with asyncio.timeout(60):
        while not (claims := await ledger.claim(1, seconds(60))):
            await asyncio.sleep(0.01)
    [claim] = claims
    assert await ledger.settle([decide(claim, Failed(PermanentError("no")), ONCE)], worker="w") == []
