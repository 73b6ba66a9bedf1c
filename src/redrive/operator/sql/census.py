"""How many tasks are in which state, and why the dead ones died, counted in the background.

Counting reads the whole table: a second or two with ten million rows, so nobody may wait for it. It is done now and then,
never more than a fiftieth of the time, and written down. In between the minute's own counters tell what has changed since:
`figures` adds both up. Rows that others inserted into an adopted table are found here too, and counted as added.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, delete, func, null, select, update

from redrive.core.cause import cause_of
from redrive.core.failure import redact
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.ledgers.rollup import FLOWS
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.sift import is_unreadable, sift
from redrive.ledgers.sql.times import comparable
from redrive.ledgers.sql.upsert import upsert
from redrive.operator.census_pace import rest_after, turn_lasts
from redrive.operator.figures import States, flows_from
from redrive.operator.kinds import WaitingKind
from redrive.operator.sql.cursors import with_zone
from redrive.operator.sql.reads import LOOK_WITHIN
from redrive.operator.sql.turns import SqlTurns
from redrive.operator.sql.waiting import waiting_of

PAGE = 1000
RECENT_MAX = 20_000
"""So many that died lately are looked at; of more, all are gone through."""
LATE = timedelta(minutes=1)
"""A commit may come so long after the instant that it wrote."""
CLAIMED_COUNTED_MAX = 100_000
CAUSES_MAX = 1000
"""Groups kept for each ledger: what nobody can look through is no longer a group."""


class _Dead(NamedTuple):
    """A dead row."""

    id: TaskId
    error: str | None
    since: datetime | None
    kind: str | None


class SqlCensus:
    """Counts one ledger; see `Census`."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger
        self._database = ledger.database
        self._turns = SqlTurns(ledger.database)

    async def take_if_due(self) -> bool:
        """See `Census.take_if_due`."""
        row = await self._database.read(self._last)
        now = await self._database.read(self._ledger.present)
        took = timedelta(seconds=0 if row is None else row.seconds)
        if row is not None and timedelta(0) <= now - row.at < rest_after(took):
            return False
        turn = f"census {self._ledger.name}"
        until = await self._turns.take(turn, turn_lasts(took))
        if until is None:
            return False
        try:
            return await self.take()
        finally:
            await self._turns.give_back(turn, until)

    async def take(self) -> bool:
        """See `Census.take`."""
        started = time.monotonic()
        last = await self._database.read(self._last)
        counted = await self._database.scan(self._count, last.at if last is not None else None)
        oldest = await self._ledger.oldest_due()
        seconds = time.monotonic() - started
        stored = await self._database.write(self._store, last, counted, seconds, oldest)
        if stored:
            await self._reconcile(last.at if last is not None else None)
            await self._database.write(self._took, counted["at"], time.monotonic() - started)
        return stored

    async def hurry(self) -> None:
        """See `Census.hurry`."""
        await self._database.write(self._took, None, 0.0)

    async def amounts_now(self, counted: States) -> dict[State, int]:
        """See `Census.amounts_now`.

        The minutes know what is added and what ends. Which of the open tasks are held changes too often to be written down:
        they are counted, as their index holds nothing else, and what all workers hold is few.
        """
        amounts = dict(counted.amounts)
        is_open = amounts[State.WAITING] + amounts[State.CLAIMED]
        held = await self._database.look(LOOK_WITHIN, self._ledger.count_held, CLAIMED_COUNTED_MAX)
        amounts[State.CLAIMED] = min(is_open, held)
        amounts[State.WAITING] = is_open - amounts[State.CLAIMED]
        return amounts

    async def waiting(self, kinds: Sequence[str]) -> Mapping[str, WaitingKind]:
        """See `Census.waiting`."""
        return await waiting_of(self._ledger, kinds)

    def _took(self, connection: Connection, at: datetime | None, seconds: float) -> None:
        c = schema.census
        this = c.c.ledger == self._ledger.name if at is None else and_(c.c.ledger == self._ledger.name, c.c.at == at)
        connection.execute(update(c).where(this).values(seconds=seconds))

    # --- states -----------------------------------------------------------------------------------------------------

    def _last(self, connection: Connection, *, lock: bool = False) -> Any:
        asked = select(schema.census).where(schema.census.c.ledger == self._ledger.name)
        return connection.execute(asked.with_for_update() if lock else asked).first()

    def _count(self, connection: Connection, last_at: datetime | None) -> dict[str, Any]:
        """States and flows in one statement, so that both are of the same moment."""
        now = self._ledger.present(connection)
        rows, table = self._ledger.predicates, self._ledger.sql_table
        states = [func.count().filter(rows.state(state)).label(state.value) for state in State]
        flows = [self._flow(name, flows_from(now)).label(f"base_{name}") for name in FLOWS]
        since = [] if last_at is None else [
            self._flow(name, flows_from(last_at)).label(f"since_{name}") for name in ("added", "pruned")
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
    ) -> bool:
        # What was found must be counted once: of two who counted from the same census on, the second is too late.
        there = self._last(connection, lock=True)
        if (there and there.at) != (last and last.at):
            return False
        at: datetime = counted["at"]
        states = {state.value: counted[state.value] for state in State}
        oldest_seconds = None if oldest is None else oldest.total_seconds()
        others = self._others(last, counted)
        if others:
            self._ledger.count_added(connection, others, worker="census")
        row = {
            "ledger": self._ledger.name, "at": at, "seconds": seconds, "oldest_due_seconds": oldest_seconds,
            **states, **{f"base_{name}": counted[f"base_{name}"] for name in FLOWS},
            "base_added": counted["base_added"] + others,  # they are in the states already
        }  # fmt: skip
        connection.execute(upsert(self._ledger.database, schema.census), row)
        minute = at.replace(second=0, microsecond=0)
        sample = {"minute": minute, "ledger": self._ledger.name, "oldest_due_seconds": oldest_seconds, **states}
        connection.execute(upsert(self._ledger.database, schema.sample), sample)
        return True

    @staticmethod
    def _others(last: Any, counted: dict[str, Any]) -> int:
        """How many rows there are that nobody has counted as added since the last census; after a clock went back, none."""
        if last is None or counted["at"] < last.at:
            return 0
        grown: int = sum(counted[state.value] - getattr(last, state.value) for state in State)
        ours: int = (counted["since_added"] - last.base_added) - (counted["since_pruned"] - last.base_pruned)
        return max(0, grown - ours)

    # --- the dead ---------------------------------------------------------------------------------------------------

    async def _reconcile(self, last_at: datetime | None) -> None:
        """List dead tasks that are not listed yet, drop those that are dead no longer, and count the groups.

        What died lately is found by its time. Only if the list still has another length than the dead have, both are gone
        through, a page at a time: a million dead tasks take seconds, and nobody waits for them.
        """
        if last_at is not None and self._since is not None:
            recent = await self._database.scan(self._some_dead, None, last_at - LATE)
            for start in range(0, len(recent), PAGE):
                await self._list_new(recent[start : start + PAGE])
        if not await self._database.scan(self._agree):
            await self._drop_gone()
            await self._list_all()
        groups = await self._database.scan(self._groups)
        await self._database.write(self._store_groups, groups)

    def _dead(self) -> Any:
        return self._ledger.predicates.state(State.DEAD)

    @property
    def _since(self) -> Any:
        """The column that says since when a task is dead."""
        role = next((role for role in ("ended_at", "updated_at") if role in self._ledger.table.columns()), None)
        return None if role is None else self._ledger.predicates.column(role)

    def _agree(self, connection: Connection) -> bool:
        d = schema.dead
        listed = select(func.count()).select_from(d).where(d.c.ledger == self._ledger.name).scalar_subquery()
        dead = select(func.count()).select_from(self._ledger.sql_table).where(self._dead()).scalar_subquery()
        in_list, in_table = connection.execute(select(listed, dead)).one()
        return bool(in_list == in_table)

    async def _drop_gone(self) -> None:
        after: str | None = None
        while True:
            listed = await self._database.scan(self._some_listed, after)
            gone = await self._database.scan(self._gone, listed)
            if gone:
                await self._database.write(self._drop, gone)
            if len(listed) < PAGE:
                return
            after = listed[-1]

    def _some_listed(self, connection: Connection, after: str | None) -> list[str]:
        d = schema.dead
        asked = select(d.c.task_id).where(d.c.ledger == self._ledger.name).order_by(d.c.task_id).limit(PAGE)
        if after is not None:
            asked = asked.where(d.c.task_id > after)
        return list(connection.execute(asked).scalars())

    def _gone(self, connection: Connection, listed: list[str]) -> list[str]:
        id_ = self._ledger.predicates.column("id")
        asked = select(id_).where(id_.in_([self._ledger.read_id(text) for text in listed]), self._dead())
        still = {str(one) for one in connection.execute(asked).scalars()} if listed else set()
        return [text for text in listed if text not in still]

    def _drop(self, connection: Connection, ids: list[str]) -> None:
        d = schema.dead
        connection.execute(
            delete(d).where(d.c.ledger == self._ledger.name, d.c.task_id.in_(bindparam("ids", expanding=True))),
            {"ids": ids},
        )

    async def _list_all(self) -> None:
        after: Any = None
        while True:
            found = await self._database.scan(self._some_dead, after, None)
            await self._list_new(found)
            if len(found) < PAGE:
                return
            after = found[-1].id

    def _some_dead(self, connection: Connection, after: Any, recent: datetime | None) -> list[_Dead]:
        """Dead rows: a page of all by their ids, or some of those that died lately."""
        rows = self._ledger.predicates
        id_, since = rows.column("id"), self._since
        error = rows.column("last_error").label("error") if self._ledger.table.last_error else null().label("error")
        kind = rows.column("kind") if self._ledger.table.kind else null()
        died = (null() if since is None else since).label("since")
        asked = select(id_.label("id"), error, died, kind.label("kind")).where(self._dead())
        if recent is not None:
            bound = comparable(bindparam(None, recent, type_=since.type))
            return self._read(connection, asked.where(comparable(since) >= bound).limit(RECENT_MAX))
        asked = asked.order_by(id_).limit(PAGE)
        if after is not None:
            asked = asked.where(id_ > after)
        return self._read(connection, asked)

    def _read(self, connection: Connection, asked: Select[Any]) -> list[_Dead]:
        """The rows, also where one of them cannot be read."""
        try:
            rows = [_Dead(*row) for row in connection.execute(asked).all()]
        except Exception as error:
            if not is_unreadable(error):
                raise
            id_ = self._ledger.predicates.column("id")
            ids = connection.execute(asked.with_only_columns(id_)).scalars().all()
            rows = [_Dead(*row.cells) for row in sift(connection, asked.selected_columns, id_, ids)]
        return [row._replace(since=with_zone(row.since)) for row in rows]

    async def _list_new(self, found: list[Any]) -> None:
        listed = await self._database.read(self._listed, [str(row.id) for row in found]) if found else set()
        new = [row for row in found if str(row.id) not in listed]
        if new:
            await self._database.write(self._list, new)

    def _listed(self, connection: Connection, ids: list[str]) -> set[str]:
        d = schema.dead
        asked = select(d.c.task_id).where(d.c.ledger == self._ledger.name, d.c.task_id.in_(ids))
        return set(connection.execute(asked).scalars())

    def _list(self, connection: Connection, found: Iterable[Any]) -> None:
        now, found = self._ledger.present(connection), list(found)
        told = self._told(connection, [str(row.id) for row in found])
        dead, causes = [], {}
        for row in found:
            # Redacted first: the id of a cause is a hash of its text, which somebody could try guesses against.
            error, at = told.get(str(row.id), (None, None))
            # Some tables keep the message alone, or none: workers count by the whole error, and one cause must have one id.
            whole = error if error is not None and error.endswith(row.error or "") else row.error
            shown, since = redact(whole or ""), row.since or now
            kind = self._ledger.table.name if row.kind is None else str(row.kind)  # as its tasks have it
            cause = cause_of(shown, kind=kind, at=at)
            listed = {"ledger": self._ledger.name, "task_id": str(row.id), "cause": cause.id}
            dead.append({**listed, "since": since, "listed_at": now})
            causes[cause.id] = {
                "ledger": self._ledger.name, "id": cause.id, "text": cause.text, "sample": shown, "kind": kind, "at": at,
                "first_seen": since, "last_seen": since, "amount": 0,
            }  # fmt: skip
        connection.execute(upsert(self._ledger.database, schema.dead, keep=True), dead)
        connection.execute(upsert(self._ledger.database, schema.cause, keep=True), list(causes.values()))

    def _told(self, connection: Connection, ids: list[str]) -> dict[str, tuple[str | None, str | None]]:
        """The errors of the tries which these tasks died of, and the lines of the user's code that they came from."""
        a = schema.attempt
        ended = select(a.c.task_id, a.c.error, a.c.explanation).where(
            a.c.ledger == self._ledger.name, a.c.task_id.in_(ids), a.c.state == State.DEAD.value
        )
        told = connection.execute(ended.order_by(a.c.ended_at))
        return {row.task_id: (row.error, (row.explanation or {}).get("at")) for row in told}

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
