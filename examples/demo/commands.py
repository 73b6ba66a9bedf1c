"""Traffic for the command bus: transfers and parcels, single and in batches; rules say no, banks time out, people are asked."""

import secrets
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, inspect, literal_column

from examples.demo.traffic import Traffic, chance, is_out, span, work
from redrive import Redrive
from redrive.queues import archive_table
from redrive.settings import load
from redrive.sql import Instant
from redrive.systems.commands import (
    BusinessRuleError,
    Command,
    CommandContext,
    Commands,
    CommandSettings,
    NewCommand,
    PermanentCommandError,
    Registry,
    TransientCommandError,
)
from redrive.systems.commands.tables import make_tables
from redrive.systems.commands.values import ENDING

PAYMENTS, PARCELS = "demo_payments", "demo_parcels"


class CommandTraffic(Traffic):
    """Two domains."""

    every_seconds = 2.0

    def __init__(self, app: Redrive) -> None:
        handlers = Registry()
        handlers.handler(PAYMENTS, "DebitAccount")(debit)
        handlers.handler(PARCELS, "BookCarrier")(book)
        handlers.handler(PARCELS, "PrintLabel")(label)
        waits = tuple(f"{span(wait).total_seconds():g}" for wait in (1, 3, 6))
        settings = load(CommandSettings).model_copy(update={"commands_backoff": waits})
        self._bus = Commands(app, settings=settings, handlers=handlers)
        self._database = app.database
        self._run = secrets.token_hex(3)

    async def beat(self, number: int) -> None:
        """A transfer and a parcel; a batch of pay-outs every half minute."""
        parcel = self._command(PARCELS, "BookCarrier" if number % 2 else "PrintLabel", f"{number}", {"parcel": number})
        await self._bus.send_batch([self._debit(f"{number}"), parcel])
        if number % 15 == 2:
            batch = [self._debit(f"{number}-{one}") for one in range(chance.randint(4, 8))]
            await self._bus.create_batch(PAYMENTS, batch, name=f"pay-out {number}")

    def _debit(self, id: str) -> NewCommand:
        data = {"account": f"acc-{chance.randint(1, 999)}", "cents": chance.randint(100, 9_999)}
        return self._command(PAYMENTS, "DebitAccount", id, data)

    def _command(self, domain: str, command_type: str, id: str, data: dict[str, Any]) -> NewCommand:
        return NewCommand(domain=domain, command_type=command_type, command_id=f"{self._run}-{id}", data=data)

    async def sweep(self, before: datetime) -> None:
        """See `Traffic.sweep`."""
        await self._database.write(_sweep, before)


def _sweep(connection: Connection, before: datetime) -> None:
    has_queues = connection.dialect.name == "postgresql"
    tables = make_tables(has_queues=has_queues)
    # The audit is for ever: nothing may take from it.
    connection.execute(delete(tables.batch).where(tables.batch.c.updated_at < before))
    if has_queues:
        for archive in (archive_table(f"{domain}{ENDING}") for domain in (PAYMENTS, PARCELS)):
            if inspect(connection).has_table(archive.name, archive.schema):  # made with the first command
                connection.execute(delete(archive).where(literal_column("archived_at", Instant) < before))


async def debit(command: Command, context: CommandContext) -> dict[str, Any]:
    """A bank: slow at times, strict at times, and some accounts are closed."""
    await work(0.05, 0.4)
    drawn, account = chance.random(), command.data["account"]
    if drawn < 0.06:
        raise PermanentCommandError("ACCOUNT_CLOSED", f"{account} was closed", {"account": account})
    if drawn < 0.16:
        raise BusinessRuleError("INSUFFICIENT_FUNDS", f"{account} does not hold {command.data['cents']} cents")
    if drawn < 0.4:
        raise TransientCommandError("BANK_TIMEOUT", f"the bank did not answer try {context.attempt}")
    return {"booked": command.data["cents"]}


async def book(command: Command) -> None:
    """A carrier whose customers are in the register that goes out."""
    await work(0.05, 0.2)
    if is_out():
        raise TransientCommandError("CARRIER_DOWN", f"no carrier takes parcel {command.data['parcel']} now")


async def label(_command: Command) -> None:
    """Works."""
    await work(0.01, 0.05)
