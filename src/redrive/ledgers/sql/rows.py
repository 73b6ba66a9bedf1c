"""From a row of any ledger table to a `Task` or a `Claim`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement

from redrive.core.states import TERMINAL, State
from redrive.core.table import TASKS, LedgerTable
from redrive.core.task import Abandoned, Claim, GateSeen, Task, TaskId
from redrive.ledgers.sql.sift import Sifted

_ROLES = (
    "id", "key", "kind", "payload", "status", "count", "count_max", "redrives", "due", "first_due", "deadline", "lease_until",
    "claimed_at", "created_at", "updated_at", "ended_at", "done_at", "last_error", "trace", "gate", "tenant", "priority",
)  # fmt: skip

_NEW: Any = tuple.__new__
"""Makes named tuples of as many values as they have: their own ways are functions of Python's, called for each."""
_UNSAID = tuple(Claim._field_defaults.values())


class RowReader:
    """Reads rows that have these columns of the table, in this order. A role without a column reads as None.

    A claim reads a thousand rows at once, so they are read by columns: most columns are taken as they are.
    """

    def __init__(self, ledger_table: LedgerTable, columns: Iterable[ColumnElement[Any]]) -> None:
        self._table = ledger_table
        position = {column.name: at for at, column in enumerate(columns)}
        at = {role: position[name] for role, name in ledger_table.columns().items() if name in position}
        self._at = [at.get(ledger_table.gated_by or "gate" if role == "gate" else role) for role in _ROLES]
        mapped = set(ledger_table.columns().values()) - {ledger_table.key, ledger_table.id_column}
        # Which destination a row is for, whose it is and how urgent are facts that a handler needs, too.
        mapped -= {ledger_table.gate, ledger_table.tenant, ledger_table.priority}
        others = [(name, place) for name, place in position.items() if name not in mapped]
        self._names = [name for name, _ in others]
        self._places = [place for _, place in others]
        self._width = len(position)
        self._id_at = at["id"]
        shown = set(self._names) if ledger_table.payload is None else {ledger_table.payload}
        self._shown = {name: place for name, place in position.items() if name in shown}
        self._own = ledger_table is TASKS

    def task(self, row: Any) -> Task:
        """The task that a row stands for."""
        [task] = self.tasks([row])
        return task

    def tasks(self, rows: Sequence[Any]) -> list[Task]:
        """The tasks that rows stand for."""
        return self._tasks(rows) if rows else []

    def sifted_task(self, row: Sifted) -> Task:
        """The same of a row that was sifted, as far as it can be read."""
        table = self._table
        [task] = self._tasks(
            [self._explained(row)], has_due=table.due in row.unreadable, leased=table.lease_until in row.unreadable
        )
        return task

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
        rows = list(rows)
        if not rows:
            return []
        now: datetime = rows[0][self._width]  # the present of a statement is the same for all of its rows
        tasks = self._tasks(rows, claimed_at=now, lease_until=now + lease)
        if abandoned is None:
            return list(map(_NEW, repeat(Claim), zip(tasks, repeat(fence), repeat(now), *map(repeat, _UNSAID))))
        lost = [abandoned[task.id] for task in tasks]
        return [Claim(task, one.claim_id or fence, now, one) for task, one in zip(tasks, lost, strict=True)]

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

    def _tasks(
        self,
        rows: Sequence[Any],
        *,
        claimed_at: datetime | None = None,
        lease_until: datetime | None = None,
        has_due: bool = False,
        leased: bool = False,
    ) -> list[Task]:
        """The tasks that rows stand for: claimed now, or as they stand; with a due time or a lease that is there and cannot be read."""
        table, columns, amount = self._table, list(zip(*rows, strict=True)), len(rows)
        nothing = (None,) * amount
        cells: list[Sequence[Any]] = [nothing if at is None else columns[at] for at in self._at]
        (
            ids, keys, kinds, payloads, words, counts, counts_max, redrives, dues, first_dues, deadlines,
            leases, claimed, created, updated, ended, done, errors, traces, gates, tenants, priorities,
        ) = cells  # fmt: skip
        exact = self._own and not any(None in column for column in (keys, kinds, counts, redrives))
        if not exact:  # PostgreSQL's infinity comes without a zone, and could not be compared
            dues, first_dues, deadlines, created = map(_with_zones, (dues, first_dues, deadlines, created))
            keys = [key if isinstance(key, str) else str(key) for key in keys]
            kinds = [table.name if kind is None else kind for kind in kinds]
            gates, tenants = map(_as_texts, (gates, tenants))
        if claimed_at is not None:
            states = [State.CLAIMED] * amount
            leases, claimed = [lease_until] * amount, [claimed_at] * amount
        else:
            leases, claimed, updated, ended, done = map(_with_zones, (leases, claimed, updated, ended, done))
            states = [
                table.words.state(str(word), has_due=has_due or due is not None, leased=leased or lease is not None)
                for word, due, lease in zip(words, dues, leases, strict=True)
            ]
            dues = [
                first if due is None and state is State.WAITING else due
                for due, first, state in zip(dues, first_dues, states, strict=True)
            ]
            ended = [
                at if end is None and state in TERMINAL else end
                for end, at, state in zip(ended, done, states, strict=True)
            ]
        if table.payload is None:
            others = zip(*(columns[place] for place in self._places), strict=True)
            payloads = [dict(zip(self._names, values, strict=True)) for values in others]
        if not exact:
            counts = [
                table.failures(count or 0, claimed=state is State.CLAIMED)
                for count, state in zip(counts, states, strict=True)
            ]
            counts_max = [table.failures_max(most) for most in counts_max]
            redrives = [often or 0 for often in redrives]
        fields = zip(
            ids, keys, kinds, payloads, states, counts, counts_max, redrives, dues, deadlines, leases, claimed,
            created, updated, ended, errors, traces, gates, tenants, priorities, strict=True,
        )  # fmt: skip
        return list(map(_NEW, repeat(Task), fields))


def _with_zones(instants: Sequence[datetime | None]) -> Sequence[datetime | None]:
    return [_with_zone(one) for one in instants]


def _as_texts(values: Sequence[Any]) -> Sequence[str | None]:
    return [value if value is None or isinstance(value, str) else str(value) for value in values]


def _with_zone(instant: datetime | None) -> datetime | None:
    return instant.replace(tzinfo=UTC) if instant is not None and instant.tzinfo is None else instant
