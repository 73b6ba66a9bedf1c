"""Gates of every sort: one that holds, one that a person paused, one that has been through both, and a kind that is paused."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, insert

from redrive import hours
from redrive.gates import Breaker
from redrive.ledgers.sql import schema

from .site import Site


async def guard(site: Site) -> None:
    """Some gates with tasks parked behind them, and an hour to draw."""
    app, lane = site.app, site.app.tasks
    app.gate("bank:*", concurrency=5, rate="20/s", breaker=Breaker(failures=3), budget=0.2)
    for number in range(5):
        await app.add("slow", key=f"bank-{number}", gate="bank:DE")

    async def holds() -> bool:
        view = await lane.gate_state("bank:DE")
        return view is not None and view.does == "holding"

    await site.until(holds, within=60)
    for number in range(24):
        await app.add("slow", key=f"parked-{number}", gate="bank:DE")
    for name in ("bank:FR", "warehouse", "smtp"):
        await app.add("mail", key=f"to {name}", gate=name)
    await lane.pause_gate("endpoint:acme", actor="ada", reason="acme moves its server", span=hours(1))
    await app.add("mail", key="to acme", gate="endpoint:acme")
    await lane.pause_gate("kind:newsletter", actor="ada", reason="wrong template")
    await app.database.write(remember)


def remember(connection: Connection) -> None:
    """What the warehouse went through in the last hour."""
    now = datetime.now(UTC)
    spans = (("holding", 44, 38), ("returning", 38, 35))
    rows = [
        {
            "ledger": "redrive_task", "name": "warehouse", "does": does,
            "began_at": now - timedelta(minutes=begin), "ended_at": now - timedelta(minutes=end),
        }
        for does, begin, end in spans
    ]  # fmt: skip
    connection.execute(insert(schema.gate_span), rows)
