"""From a row of any ledger table to a `Task` or a `Claim`."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement

from redrive.core.states import TERMINAL, State
from redrive.core.table import LedgerTable
from redrive.core.task import Abandoned, Claim, Task, TaskId


class RowReader:
    """Reads rows that have these columns of the table, in this order. A role without a column reads as None."""

    def __init__(self, ledger_table: LedgerTable, columns: Iterable[ColumnElement[Any]]) -> None:
        self._table = ledger_table
        position = {column.name: at for at, column in enumerate(columns)}
        at = {role: position[name] for role, name in ledger_table.columns().items() if name in position}
        width = len(position)
        # One more cell behind the row is always None.
        roles = (
            "id", "key", "kind", "payload", "status", "count", "count_max", "redrives", "due", "first_due", "deadline",
            "lease_until", "claimed_at", "created_at", "updated_at", "ended_at", "done_at", "last_error", "trace",
        )  # fmt: skip
        self._pick = itemgetter(*(at.get(role, width) for role in roles))
        mapped = set(ledger_table.columns().values()) - {ledger_table.key, ledger_table.id_column}
        self._others = [(name, place) for name, place in position.items() if name not in mapped]
        self._width = width

    def task(self, row: Any) -> Task:
        """The task that a row stands for."""
        return self._task((*row, None), None, None, None)

    def claims(
        self, rows: Iterable[Any], fence: UUID, lease: timedelta, abandoned: Mapping[TaskId, Abandoned] | None = None
    ) -> list[Claim]:
        """The claims that a claiming statement returned, each row with the ledger's present behind it."""
        claims = []
        lease_until = None
        for row in rows:
            now: datetime = row[self._width]
            if lease_until is None:  # the present of a statement is the same for all of its rows
                lease_until = now + lease
            task = self._task((*row[: self._width], None), State.CLAIMED, now, lease_until)
            if abandoned is None:
                claims.append(Claim(task, fence, now))
            else:
                lost = abandoned[task.id]
                claims.append(Claim(task, lost.claim_id or fence, now, lost))
        return claims

    def _task(
        self, cells: tuple[Any, ...], state: State | None, claimed_at: datetime | None, lease_until: datetime | None
    ) -> Task:
        (
            id_, key, kind, payload, word, count, count_max, redrives, due, first_due, deadline,
            row_lease_until, row_claimed_at, created_at, updated_at, ended_at, done_at, last_error, trace,
        ) = self._pick(cells)  # fmt: skip
        table = self._table
        if state is None:
            claimed_at, lease_until = row_claimed_at, row_lease_until
            state = table.words.state(word, has_due=due is not None, leased=lease_until is not None)
        if table.payload is None:
            payload = {name: cells[place] for name, place in self._others}
        if due is None and state is State.WAITING:
            due = first_due
        if ended_at is None and state in TERMINAL:
            ended_at = done_at
        return Task(
            id_,
            key if isinstance(key, str) else str(key),
            table.name if kind is None else kind,
            payload,
            state,
            table.failures(count or 0, claimed=state is State.CLAIMED),
            None if count_max is None else table.failures_max(count_max),
            redrives or 0,
            due,
            deadline,
            lease_until,
            claimed_at,
            created_at,
            updated_at,
            ended_at,
            last_error,
            trace,
        )
