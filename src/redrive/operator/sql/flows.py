"""What a system counts besides tasks, added to the minutes in the commits that change it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Insert, Text, bindparam

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.times import Instant
from redrive.operator.headcount import ENDS


class Flows:
    """Adds to a minute, in the same statement as to a counter of the system's own where the database can do that."""

    def __init__(self, database: Database, headcount: str, counter: Insert) -> None:
        self._headcount = headcount
        self._added = self._build(database, counter, ["added"])
        self._ended = self._build(database, counter, ENDS)

    @staticmethod
    def _build(database: Database, counter: Insert, names: Sequence[str]) -> Sequence[Compiled]:
        row = {
            "minute": bindparam("of_minute", type_=Instant),
            "ledger": bindparam("of_headcount", type_=Text),
            "worker": bindparam("of_worker", type_=Text),
            **{name: bindparam(f"of_{name}", type_=BigInteger) for name in names},
        }
        both = database.dialect.together(counter, add_up(database.insert(schema.minute).values(row), names))
        return [Compiled(statement) for statement in both]

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
            statement.changed(connection, said)
