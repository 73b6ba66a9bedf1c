"""From a row of any ledger table to a `Task` or a `Claim`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement

from redrive.core.states import TERMINAL, State
from redrive.core.table import TASKS, LedgerTable
from redrive.core.task import Abandoned, Claim, GateSeen, Task, TaskId
from redrive.ledgers.sql.sift import Sifted


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
            ledger_table.gated_by or "gate", "tenant", "priority",
        )  # fmt: skip
        self._pick = itemgetter(*(at.get(role, width) for role in roles))
        mapped = set(ledger_table.columns().values()) - {ledger_table.key, ledger_table.id_column}
        # Which destination a row is for, whose it is and how urgent are facts that a handler needs, too.
        mapped -= {ledger_table.gate, ledger_table.tenant, ledger_table.priority}
        self._others = [(name, place) for name, place in position.items() if name not in mapped]
        self._width = width
        self._id_at = at["id"]
        shown = {name for name, _ in self._others} if ledger_table.payload is None else {ledger_table.payload}
        self._shown = {name: place for name, place in position.items() if name in shown}
        self._own = ledger_table is TASKS

    def task(self, row: Any) -> Task:
        """The task that a row stands for."""
        return self._task((*row, None), None, None, None)

    def sifted_task(self, row: Sifted) -> Task:
        """The same of a row that was sifted, as far as it can be read."""
        return self.task(self._explained(row))

    def _explained(self, row: Sifted) -> Sequence[Any]:
        """The cells; those of the payload that cannot be read say why."""
        if not row.unreadable:
            return row.cells
        cells = list(row.cells)
        for name, error in row.unreadable.items():
            if name in self._shown:
                cells[self._shown[name]] = f"cannot be read: {error}"
        return cells

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

    def claims_behind_gates(self, rows: Sequence[Any], fence: UUID, lease: timedelta) -> list[Claim]:
        """The same of a statement that claims behind gates: behind the present stands what it saw of them, see `GateSeen`."""
        claims = self.claims(rows, fence, lease)
        seen = [GateSeen(fence, bool(probe), trips, refused) for *_, probe, trips, refused in rows]
        return [claim._replace(seen=one) for claim, one in zip(claims, seen, strict=True)]

    def sifted_claims(
        self,
        rows: Iterable[Sifted],
        fence: UUID,
        lease: timedelta,
        abandoned: Mapping[TaskId, Abandoned] | None = None,
    ) -> list[Claim]:
        """The same of rows that were sifted: a claim of a row that cannot be read says so."""
        claims = []
        for row in rows:
            [claim] = self.claims([self._explained(row)], fence, lease, abandoned)
            claims.append(claim._replace(unreadable=row.said(row.cells[self._id_at])))
        return claims

    def _task(
        self, cells: tuple[Any, ...], state: State | None, claimed_at: datetime | None, lease_until: datetime | None
    ) -> Task:
        (
            id_, key, kind, payload, word, count, count_max, redrives, due, first_due, deadline,
            row_lease_until, row_claimed_at, created_at, updated_at, ended_at, done_at, last_error, trace,
            gate, tenant, priority,
        ) = self._pick(cells)  # fmt: skip
        table = self._table
        if not self._own:  # PostgreSQL's infinity comes without a zone, and could not be compared
            due, first_due, deadline, created_at = map(_with_zone, (due, first_due, deadline, created_at))
        if state is None:
            claimed_at, lease_until, updated_at, ended_at, done_at = map(
                _with_zone, (row_claimed_at, row_lease_until, updated_at, ended_at, done_at)
            )
            state = table.words.state(str(word), has_due=due is not None, leased=lease_until is not None)
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
            gate if gate is None or isinstance(gate, str) else str(gate),
            tenant if tenant is None or isinstance(tenant, str) else str(tenant),
            priority,
        )


def _with_zone(instant: datetime | None) -> datetime | None:
    return instant.replace(tzinfo=UTC) if instant is not None and instant.tzinfo is None else instant
