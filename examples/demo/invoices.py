"""Traffic for a table that is not redrive's: another program, which has never heard of redrive, inserts its invoices.

It says what it wants with a plain INSERT. The lane over the table finds the row, sends the invoice, and writes back in the
table's own words.
"""

import secrets
from zlib import crc32

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text, Uuid, func, text

from examples.demo.traffic import BRIEFLY, Traffic, chance, work
from redrive import LedgerTable, PermanentError, Redrive, Task, TransientError, Words
from redrive.extend import When, ledger_indexes

INVOICES = LedgerTable(
    "demo_invoice",
    key="number",
    words=Words(waiting="open", claimed="sending", done="sent", dead="stuck", cancelled="void"),
    due="send_at",
    count="failures",
    last_error="problem",
    created_at="created_at",
    updated_at="changed_at",
)
_INSERT = text("INSERT INTO demo_invoice (number, customer, cents) VALUES (:number, :customer, :cents)")
_CUSTOMERS = ("Lovelace & Co", "Hopper Ltd", "Hamilton GmbH", "Liskov AB")


def make_table() -> Table:
    """The table as its owner has it, with what `redrive adopt` would add. That it is there marks a database as the demo's."""
    table = Table(
        INVOICES.name,
        MetaData(),
        Column("number", Text, primary_key=True),
        Column("customer", Text, nullable=False),
        Column("cents", BigInteger, nullable=False),
        Column("status", Text, nullable=False, server_default=text("'open'")),
        Column("failures", Integer, nullable=False, server_default=text("0")),
        Column("problem", Text),
        Column("send_at", When, server_default=func.current_timestamp()),
        Column("created_at", When, nullable=False, server_default=func.current_timestamp()),
        Column("changed_at", When, nullable=False, server_default=func.current_timestamp()),
        Column("lease_until", When),
        Column("claim_id", Uuid().with_variant(Text(), "sqlite")),
    )
    ledger_indexes(INVOICES, table)
    return table


class Invoices(Traffic):
    """A flaky mail house, and customers without an address."""

    every_seconds = 3.0

    def __init__(self, app: Redrive) -> None:
        self._database = app.database
        self._run = secrets.token_hex(3)
        app.adopt(INVOICES).handler(policy=BRIEFLY)(send)

    async def beat(self, number: int) -> None:
        """One invoice, from a stranger."""
        row = {
            "number": f"{self._run}-{number:05}",
            "customer": chance.choice(_CUSTOMERS),
            "cents": chance.randint(500, 99_999),
        }
        await self._database.write(lambda connection: connection.execute(_INSERT, row))


async def send(task: Task) -> None:
    """Fails now and then; the address of one customer in eight cannot be found."""
    await work(0.05, 0.3)
    if crc32(task.key.encode()) % 8 == 0:
        raise PermanentError(f"{task.payload['customer']!r} has no address")
    if chance.random() < 0.3:
        raise TransientError("the mail house answered 502")
