"""How many tasks are in which state, and why the dead ones died, counted in the background.

Counting reads the whole table: a second or two with ten million rows, so nobody may wait for it. It is done now and then,
never more than a fiftieth of the time, and written down. In between the minute's own counters tell what has changed since:
`figures` adds both up. Rows that others inserted into an adopted table are found here too, and counted as added.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, Text, bindparam, cast, delete, func, null, select, update

from redrive.core.cause import cause_of
from redrive.core.states import State
from redrive.ledgers import schema
from redrive.ledgers.sql import SqlLedger
from redrive.ledgers.statements import upsert

REST_SHARE = 50
"""A census may be taken again when this many times its own duration has passed."""
REST_MIN = timedelta(seconds=2)
PAGE = 1000
CAUSES_MAX = 1000
"""Groups kept for each ledger: what nobody can look through is no longer a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A census: the states, and what the minutes had counted from `minute` on when it was taken."""

    at: datetime
    states: Mapping[State, int]
    flows: Mapping[str, int]
    seconds: float
    oldest_due: timedelta | None


class Census:
    """Counts one ledger."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger
        self._database = ledger.database

    async def take_if_due(self) -> bool:
        """Count unless somebody has done so lately; whether it was done. Any number of processes may call this."""
        row = await self._database.read(self._last)
        now = await self._database.read(self._ledger.present)
        if row is not None and timedelta(0) <= now - row.at < max(
            REST_MIN, timedelta(seconds=row.seconds * REST_SHARE)
        ):
            return False
        await self.take()
        return True

    async def take(self) -> None:
        """Count now, and bring the list of dead tasks up to date."""
        started = time.monotonic()
        last = await self._database.read(self._last)
        counted = await self._database.scan(self._count, last.at if last is not None else None)
        oldest = await self._ledger.oldest_due()
        seconds = time.monotonic() - started
        await self._database.write(self._store, last, counted, seconds, oldest)
        await self._reconcile()

    # --- states -----------------------------------------------------------------------------------------------------

    def _last(self, connection: Connection) -> Any:
        return connection.execute(select(schema.census).where(schema.census.c.ledger == self._ledger.name)).first()

    def _count(self, connection: Connection, last_at: datetime | None) -> dict[str, Any]:
        """States and flows in one statement, so that both are of the same moment."""
        now = self._ledger.present(connection)
        rows, table = self._ledger.predicates, self._ledger.sql_table
        states = [func.count().filter(rows.state(state)).label(state.value) for state in State]
        minute = now.replace(second=0, microsecond=0)
        flows = [self._flow(name, minute).label(f"base_{name}") for name in schema.FLOWS]
        since = [] if last_at is None else [
            self._flow(name, last_at.replace(second=0, microsecond=0)).label(f"since_{name}") for name in ("added", "pruned")
        ]  # fmt: skip
        found = connection.execute(select(*states, *flows, *since).select_from(table)).one()
        return {**found._asdict(), "at": now}

    def _flow(self, name: str, minute: datetime) -> Any:
        m = schema.minute
        asked = select(func.coalesce(func.sum(m.c[name]), 0)).where(
            m.c.ledger == self._ledger.name, m.c.minute >= minute
        )
        return asked.scalar_subquery()

    def _store(
        self, connection: Connection, last: Any, counted: dict[str, Any], seconds: float, oldest: timedelta | None
    ) -> None:
        at: datetime = counted["at"]
        states = {state.value: counted[state.value] for state in State}
        oldest_seconds = None if oldest is None else oldest.total_seconds()
        row = {
            "ledger": self._ledger.name, "at": at, "seconds": seconds, "oldest_due_seconds": oldest_seconds,
            **states, **{f"base_{name}": counted[f"base_{name}"] for name in schema.FLOWS},
        }  # fmt: skip
        connection.execute(upsert(schema.census, connection.dialect.name), row)
        minute = at.replace(second=0, microsecond=0)
        sample = {"minute": minute, "ledger": self._ledger.name, "oldest_due_seconds": oldest_seconds, **states}
        connection.execute(upsert(schema.sample, connection.dialect.name), sample)
        if last is not None:
            before = sum(getattr(last, state.value) for state in State)
            ours = (counted["since_added"] - last.base_added) - (counted["since_pruned"] - last.base_pruned)
            others = sum(states.values()) - before - ours
            if others > 0:
                self._ledger.count_added(connection, others, worker="census")

    # --- the dead ---------------------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """List dead tasks that are not listed yet, drop those that are dead no longer, and count the groups."""
        gone = await self._database.scan(self._no_longer_dead)
        for start in range(0, len(gone), PAGE):
            await self._database.write(self._drop, gone[start : start + PAGE])
        after: Any = None
        while True:
            found = await self._database.scan(self._not_listed, after)
            if found:
                await self._database.write(self._list, found)
            if len(found) < PAGE:
                break
            after = found[-1].id
        groups = await self._database.scan(self._groups)
        await self._database.write(self._store_groups, groups)

    def _listed(self) -> Select[Any]:
        return select(schema.dead.c.task_id).where(schema.dead.c.ledger == self._ledger.name)

    def _dead(self) -> Any:
        return self._ledger.predicates.state(State.DEAD)

    def _no_longer_dead(self, connection: Connection) -> list[str]:
        still = select(cast(self._ledger.predicates.column("id"), Text)).where(self._dead())
        return list(connection.execute(self._listed().where(schema.dead.c.task_id.not_in(still))).scalars())

    def _drop(self, connection: Connection, ids: list[str]) -> None:
        d = schema.dead
        connection.execute(
            delete(d).where(d.c.ledger == self._ledger.name, d.c.task_id.in_(bindparam("ids", expanding=True))),
            {"ids": ids},
        )

    def _not_listed(self, connection: Connection, after: Any) -> list[Any]:
        rows = self._ledger.predicates
        id_ = rows.column("id")
        error = rows.column("last_error").label("error") if self._ledger.table.last_error else null().label("error")
        role = next((role for role in ("ended_at", "updated_at") if role in self._ledger.table.columns()), None)
        since = (rows.column(role) if role else null()).label("since")
        asked = (
            select(id_.label("id"), error, since)
            .where(self._dead(), cast(id_, Text).not_in(self._listed()))
            .order_by(id_)
            .limit(PAGE)
        )
        if after is not None:
            asked = asked.where(id_ > after)
        return list(connection.execute(asked))

    def _list(self, connection: Connection, found: Iterable[Any]) -> None:
        now = self._ledger.present(connection)
        dead, causes = [], {}
        for row in found:
            cause, since = cause_of(row.error), row.since or now
            dead.append({"ledger": self._ledger.name, "task_id": str(row.id), "cause": cause.id, "since": since})
            causes[cause.id] = {
                "ledger": self._ledger.name, "id": cause.id, "text": cause.text, "sample": row.error or "",
                "first_seen": since, "last_seen": since, "amount": 0,
            }  # fmt: skip
        connection.execute(upsert(schema.dead, connection.dialect.name), dead)
        connection.execute(upsert(schema.cause, connection.dialect.name, keep=True), list(causes.values()))

    def _groups(self, connection: Connection) -> list[Any]:
        d = schema.dead
        asked = (
            select(
                d.c.cause,
                func.count().label("amount"),
                func.min(d.c.since).label("first"),
                func.max(d.c.since).label("last"),
            )
            .where(d.c.ledger == self._ledger.name)
            .group_by(d.c.cause)
            .order_by(func.count().desc())
            .limit(CAUSES_MAX)
        )
        return list(connection.execute(asked))

    def _store_groups(self, connection: Connection, groups: Iterable[Any]) -> None:
        c = schema.cause
        there = {row.id: row for row in connection.execute(select(c).where(c.c.ledger == self._ledger.name))}
        counted = {group.cause: group for group in groups}
        for id_, row in there.items():
            group = counted.get(id_)
            amount = 0 if group is None else group.amount
            first = row.first_seen if group is None else min(row.first_seen, group.first)
            last = row.last_seen if group is None else max(row.last_seen, group.last)
            if (amount, first, last) != (row.amount, row.first_seen, row.last_seen):
                connection.execute(
                    update(c)
                    .where(c.c.ledger == self._ledger.name, c.c.id == id_)
                    .values(amount=amount, first_seen=first, last_seen=last)
                )
