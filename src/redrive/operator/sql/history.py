"""The history of a ledger in tables, some tasks at a time, in the order of their ids: for whoever replays all of it."""

from datetime import datetime
from itertools import groupby

from sqlalchemy import Connection, select

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.reader import attempt_of_row
from redrive.operator.found import PastTries

ROWS_AT_ONCE = 2000

_t = schema.attempt


class SqlHistory:
    """The history of one ledger; see `History`."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger

    async def tries(self, since: datetime, *, after: str | None = None) -> PastTries:
        """See `History.tries`."""
        rows = ROWS_AT_ONCE
        while True:
            page = await self._ledger.database.read(self._tries, since, after, rows)
            if page is not None:
                return page
            rows *= 4  # one task alone has more tries than that

    def _tries(self, connection: Connection, since: datetime, after: str | None, limit: int) -> PastTries | None:
        # Which tasks come next is found by an index alone; what is older than `since` is passed over within these.
        named = select(_t).where(_t.c.ledger == self._ledger.name).order_by(_t.c.task_id).limit(limit)
        if after is not None:
            named = named.where(_t.c.task_id > after)
        rows = connection.execute(named).all()
        tasks = [
            (id_, sorted(some, key=lambda row: (row.ended_at, row.number)))
            for id_, some in groupby(rows, lambda row: row.task_id)
        ]
        last = None
        if len(rows) == limit:
            if len(tasks) == 1:
                return None
            tasks.pop()  # there may be more tries of it
            last = tasks[-1][0]
        young = [(id_, [attempt_of_row(row) for row in some if row.ended_at >= since]) for id_, some in tasks]
        passed_over = sum(len(some) for _, some in tasks) - sum(len(some) for _, some in young)
        return PastTries(tasks=[(id_, some) for id_, some in young if some], passed_over=passed_over, cursor=last)
