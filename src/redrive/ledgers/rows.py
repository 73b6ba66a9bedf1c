"""From a row of any ledger table to a `Task` or a `Claim`."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from sqlalchemy import Table

from redrive.core.states import TERMINAL, State
from redrive.core.table import LedgerTable
from redrive.core.task import Abandoned, Claim, Task, TaskId


class RowReader:
    """Reads rows whose columns are the table's, in the table's order."""

    def __init__(self, ledger_table: LedgerTable, table: Table) -> None:
        self._table = ledger_table
        position = {column.name: at for at, column in enumerate(table.columns)}
        at = {role: position[name] for role, name in ledger_table.columns().items()}
        width = len(position)
        # A role without a column reads as None: one more cell behind the row.
        roles = (
            "id", "key", "kind", "payload", "status", "count", "count_max", "redrives", "due", "first_due", "deadline",
            "lease_until", "claimed_at", "created_at", "updated_at", "ended_at", "done_at", "last_error", "trace",
        )  # fmt: skip
        self._pick = itemgetter(*(at.get(role, width) for role in roles))
        mapped = set(ledger_table.columns().values()) - {ledger_table.key, ledger_table.id_column}
        self._others = [(name, place) for name, place in position.items() if name not in mapped]
        self._claim_id = at["claim_id"]
        self._width = width

    def task(self, row: Any) -> Task:
        """The task that a row stands for."""
        return self._task(tuple(row)[: self._width], None)

    def claims(self, rows: Iterable[Any], abandoned: Mapping[TaskId, Abandoned] | None = None) -> list[Claim]:
        """The claims that a claiming statement returned, each row with the ledger's present behind it."""
        claims = []
        for row in rows:
            cells = tuple(row)
            task = self._task(cells[: self._width], State.CLAIMED)
            claims.append(
                Claim(
                    task=task,
                    claim_id=cells[self._claim_id],
                    claimed_at=cells[self._width],
                    abandoned=None if abandoned is None else abandoned[task.id],
                )
            )
        return claims

    def _task(self, cells: tuple[Any, ...], state: State | None) -> Task:
        (
            id_, key, kind, payload, word, count, count_max, redrives, due, first_due, deadline,
            lease_until, claimed_at, created_at, updated_at, ended_at, done_at, last_error, trace,
        ) = self._pick((*cells, None))  # fmt: skip
        table = self._table
        if state is None:
            state = table.words.state(word, has_due=due is not None, leased=lease_until is not None)
        if table.payload is None:
            payload = {name: cells[place] for name, place in self._others}
        return Task(
            id=id_,
            key=key if isinstance(key, str) else str(key),
            kind=kind if kind is not None else table.name,
            payload=payload,
            state=state,
            failures=table.failures(count or 0, claimed=state is State.CLAIMED),
            failures_max=table.failures_max(count_max),
            redrives=redrives or 0,
            due_at=due if due is not None or state is not State.WAITING else first_due,
            deadline_at=deadline,
            lease_until=lease_until,
            claimed_at=claimed_at,
            created_at=created_at,
            updated_at=updated_at,
            ended_at=ended_at if ended_at is not None or state not in TERMINAL else done_at,
            last_error=last_error,
            trace=trace,
        )
