"""What people count of a lane, where that is not its tasks: an event, for one, may be many deliveries, or none.

It is counted in the same minutes as tasks are, under a name of its own, in the commits that change it. So charts and alarms take
either, and nobody counts a table for them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, Insert, Text, bindparam

from redrive.core.histograms import TOOK, TRIES, took_bucket, tries_bucket
from redrive.core.states import State
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.upsert import upsert

ENDS = ("done", "dead", *TRIES, *TOOK)
"""What is counted of those that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headcount:
    """What is counted, what it is called, and how many there are."""

    name: str
    """What the minutes call it."""
    things: str
    """What people call several of them."""
    words: Mapping[State, str]
    """Its own words for the states that it can be in."""
    amounts: Callable[[], Awaitable[Mapping[State, int]]]
    """How many are in each state, all at one instant, so that they add up."""


class Flows:
    """Adds to a minute, in the same statement as to a counter of the system's own where the database can do that."""

    def __init__(self, database: Database, headcount: str, counter: Insert) -> None:
        self._headcount = headcount
        self._added = self._build(database, counter, ["added"])
        self._ended = self._build(database, counter, ENDS)

    @staticmethod
    def _build(database: Database, counter: Insert, names: Sequence[str]) -> Sequence[Any]:
        row = {
            "minute": bindparam("of_minute", type_=Instant),
            "ledger": bindparam("of_headcount", type_=Text),
            "worker": bindparam("of_worker", type_=Text),
            **{name: bindparam(f"of_{name}", type_=BigInteger) for name in names},
        }
        return database.dialect.together(counter, add_up(database.insert(schema.minute).values(row), names))

    def add(self, connection: Connection, amounts: Mapping[str, int], at: datetime, worker: str, counter: Any) -> None:
        """Add what was counted at an instant; `counter` are the parameters of the system's own counter."""
        names, statements = (["added"], self._added) if "added" in amounts else (ENDS, self._ended)
        minute = {
            "of_minute": at.replace(second=0, microsecond=0),
            "of_headcount": self._headcount,
            "of_worker": worker,
        }
        said = counter | minute | {f"of_{name}": amounts.get(name, 0) for name in names}
        for statement in statements:
            connection.execute(statement, said)


def ended(state: State, failures: int, took: timedelta) -> list[str]:
    """The columns that count one that has ended."""
    names = [state.value, tries_bucket(failures + 1)]
    return [*names, took_bucket(took.total_seconds())] if state is State.DONE else names


async def sample(database: Database, headcount: Headcount, oldest_due: timedelta | None) -> None:
    """Write down how many there are, for the chart of depths."""
    amounts = await headcount.amounts()
    row = {
        "ledger": headcount.name,
        "oldest_due_seconds": None if oldest_due is None else oldest_due.total_seconds(),
        **{state.value: amounts.get(state, 0) for state in State},
    }
    await database.write(_store, database, row)


def _store(connection: Connection, database: Database, row: Mapping[str, Any]) -> None:
    minute = database.present(connection).replace(second=0, microsecond=0)
    connection.execute(upsert(database, schema.sample), {**row, "minute": minute})
