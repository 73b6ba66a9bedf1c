"""What a `Beside` sees of a settlement."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from redrive.core.decide import Settlement, decide
from redrive.core.durations import seconds
from redrive.core.outcome import Done
from redrive.core.policy import Policy
from redrive.core.table import TASKS
from redrive.core.task import NewTask
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger


class Results(Beside):
    """Keeps the results of what was settled."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def settled(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        self.seen += [one.result for one in settlements]


async def test_the_result_of_a_handler_is_there_in_the_commit(database: Database) -> None:
    """What a handler returned comes with its settlement; the ledger itself stores none of it."""
    results = Results()
    ledger = SqlLedger(database, TASKS, schema.task, beside=results)
    await ledger.add([NewTask(kind="mail", key="a", payload={"to": "ada"})])
    [claim] = await ledger.claim(1, seconds(30))
    assert await ledger.settle([decide(claim, Done({"sent": 3}), Policy())], worker="w1") == []
    assert results.seen == [{"sent": 3}]
    task = await ledger.get(claim.task.id)
    assert task is not None
    assert task.payload == {"to": "ada"}
