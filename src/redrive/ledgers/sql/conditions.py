"""A filter as conditions on the rows of one ledger's table. Every look and every act by a filter goes through here."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Integer, Text, Uuid, and_, bindparam, cast, exists, false, literal_column, or_

from redrive.core.failure import HIDDEN
from redrive.core.states import TERMINAL, State
from redrive.core.table import TASKS
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.predicates import Predicates
from redrive.ledgers.sql.times import comparable
from redrive.ports import Filter


def may_show(column: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    """Whether an error may show this text once it is redacted: it must hold all of it that is not hidden."""
    return and_(*(column.contains(part, autoescape=True) for part in text.split(HIDDEN)))


class Conditions:
    """What a row of this ledger must fulfil to match a filter."""

    def __init__(self, ledger: str, rows: Predicates) -> None:
        self._ledger = ledger
        self._rows = rows
        self._roles = rows.ledger_table.columns()
        self._id = rows.column("id")

    def check(self, asked: Filter) -> None:
        """Raise `UsageError` where the table lacks what the filter asks about."""
        if asked.text is not None:
            raise UsageError("a text is searched for in the background: ask for kind, key, error or cause here")
        for name, role in (("error", "last_error"), ("kind", "kind")):
            if name == "kind" and asked.kind == self._rows.ledger_table.name:
                continue  # without a column all are of one kind, which has the name of the table
            if getattr(asked, name) is not None and role not in self._roles:
                raise UsageError(
                    f"{self._ledger!r} has no column for {name}: name one in its LedgerTable to filter by {name}"
                )

    def of(
        self, asked: Filter, now: Callable[[], datetime], *, kind: bool = True, state: State | None = None
    ) -> list[ColumnElement[bool]]:
        """All conditions; without the kind where an index is asked for it. `state` is that of rows found by other means."""
        rows, where = self._rows, list[ColumnElement[bool]]()
        state = asked.state or state
        if asked.state is not None:
            where.append(rows.state(asked.state))
        elif rows.ledger_table is not TASKS:  # our own rows have no other words
            where.append(rows.ours())
        if kind and asked.kind is not None and "kind" in self._roles:
            where.append(rows.column("kind") == asked.kind)
        if asked.key is not None:
            where.append(self._has_key(asked.key))
        if asked.ids is not None:
            where.append(self._id.in_(asked.ids))
        if asked.cause is not None:
            d = schema.dead
            of_group = (d.c.ledger == self._ledger, d.c.cause == asked.cause)
            where.append(exists().where(*of_group, d.c.task_id == cast(self._id, Text)))
        if asked.error is not None:
            where.append(may_show(rows.column("last_error"), asked.error))
        if asked.older_than is not None:
            # As old as it was when somebody looked: what grows old meanwhile is not what was shown.
            at = (asked.until or now()) - asked.older_than
            where.append(self._not_after(self._changed(state), at, unknown=False))
        if asked.until is not None:
            where += self._there_by(state, asked.until)
        return where

    def key_value(self, key: str) -> Any:
        """The key as the key column holds it; None if it cannot hold it."""
        type_ = self._rows.column("key").type
        try:
            value: Any = int(key) if isinstance(type_, Integer) else UUID(key) if isinstance(type_, Uuid) else key
        except ValueError:
            return None
        if isinstance(value, int):
            return value if abs(value) < 2**63 else None
        return None if isinstance(value, str) and "\0" in value else value

    def _has_key(self, key: str) -> ColumnElement[bool]:
        value = self.key_value(key)
        return false() if value is None else self._rows.column("key") == value

    def _changed(self, state: State | None, *, exact: bool = False) -> ColumnElement[Any] | None:
        """The column that says since when a row is in this state; unless `exact` also one that says it roughly."""
        roles: tuple[str, ...]
        if state in TERMINAL:
            roles = ("ended_at", "done_at", "updated_at") if state is State.DONE else ("ended_at", "updated_at")
        else:
            roles = ("updated_at",) if exact else ("updated_at", "created_at")
        role = next((role for role in roles if role in self._roles), None)
        return None if role is None else self._rows.column(role)

    def _not_after(self, column: ColumnElement[Any] | None, instant: datetime, *, unknown: bool) -> ColumnElement[bool]:
        if column is None:
            if unknown:
                return literal_column("1 = 1")
            raise UsageError(
                f"{self._ledger!r} has no column that says when a task changed: it cannot be asked for by age"
            )
        not_after = comparable(column) <= comparable(bindparam(None, instant, type_=column.type))
        return or_(column.is_(None), not_after) if unknown else not_after

    def _there_by(self, state: State | None, instant: datetime) -> list[ColumnElement[bool]]:
        """Whether a row was there in its state at an instant already."""
        exact = self._changed(state, exact=True)
        if exact is not None:
            return [self._not_after(exact, instant, unknown=True)]
        # No column says so, but our books do: no try ended since, and nobody acted on it.
        a, d, id_ = schema.attempt, schema.deed, cast(self._id, Text)
        tried = exists().where(a.c.ledger == self._ledger, a.c.task_id == id_, a.c.ended_at > instant)
        acted = exists().where(d.c.ledger == self._ledger, d.c.task_id == id_, d.c.at > instant)
        return [~tried, ~acted, self._not_after(self._changed(state), instant, unknown=True)]
