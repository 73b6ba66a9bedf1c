"""Pages of tasks for people, by any filter, each served by an index where there is one.

A page is in the order of the instant that matters: when waiting tasks are due, when leases end, when tasks ended. What claims
read holds waiting and claimed rows in just that order, kind by kind, in any ledger: partial indexes, or the messages of a
queue. redrive's own table has one more index for what has ended; and dead rows of other tables are found by the list that
the census keeps. What none of them serves is read by id. Every look is limited: who asks for more than an index can give
gets a `TooSlowError`, not a wait.
"""

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from redrive.core.states import State
from redrive.core.table import TASKS
from redrive.core.task import Task, TaskId
from redrive.errors import TooSlowError, UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.due import KINDS_LISTED_MAX, KINDS_PER_LOOK_MAX
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.predicates import Branch, Predicates
from redrive.ledgers.sql.reader import PAGE_MAX
from redrive.ledgers.sql.times import Earliest, comparable
from redrive.ports import Where

LOOK_WITHIN = timedelta(seconds=2)
"""How long a page may take: an index answers in milliseconds, and whoever waits longer should search in the background."""
COUNT_WITHIN = timedelta(seconds=10)
CLAIMED_COUNTED_MAX = 100_000
LISTED_AT_ONCE = 500
LISTED_LOOKS_MAX = 40
OPEN = (State.WAITING, State.CLAIMED)
ENDED = (State.DONE, State.DEAD, State.CANCELLED)
_EARLIEST = "earliest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks: all conditions must hold, None asks nothing.

    `cause` is a group of dead tasks. `older_than` is how long a task has not changed. `until` takes only tasks that were
    there in this state already at that instant: so who acts on what was shown acts on nothing else.
    """

    state: State | None = None
    kind: str | None = None
    key: str | None = None
    error: str | None = None
    cause: str | None = None
    older_than: timedelta | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        refuse_nul(self.kind, self.key, self.error, self.cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A page of tasks, and where the next one begins; None after the last."""

    tasks: list[Task]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two tasks: the instant and the id of the one before it."""

    at: Any
    id: TaskId


class Browser:
    """Looks through one ledger."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger
        self._database = ledger.database
        self._rows: Predicates = ledger.predicates
        self._id = self._rows.column("id")
        self._own = ledger.table == TASKS

    async def page(
        self, asked: Filter, *, cursor: str | None = None, limit: int = 50, newest_first: bool = False
    ) -> Leaf:
        """A page of tasks."""
        if not 1 <= limit < PAGE_MAX:
            raise UsageError(f"limit must lie between 1 and {PAGE_MAX - 1}, not {limit!r}")
        ids, following = await self.ids(asked, cursor=cursor, limit=limit, newest_first=newest_first)
        found = await self._ledger.find(Where(ids=ids), limit=limit) if ids else None
        by_id = {task.id: task for task in found.tasks} if found is not None else {}
        # One that has changed between the two looks may no longer be what was asked for.
        tasks = [by_id[id_] for id_ in ids if id_ in by_id and asked.state in (None, by_id[id_].state)]
        return Leaf(tasks=tasks, cursor=following)

    async def ids(
        self, asked: Filter, *, cursor: str | None = None, limit: int = 500, newest_first: bool = False
    ) -> tuple[list[TaskId], str | None]:
        """The ids of a page of tasks, and where the next one begins."""
        self._check(asked)
        after = None if cursor is None else self._read_cursor(cursor)
        places = await self._places(asked, after, limit + 1, newest_first=newest_first)
        following = self._write_cursor(places[limit - 1]) if len(places) > limit else None
        return [place.id for place in places[:limit]], following

    async def count(self, asked: Filter) -> int:
        """How many tasks there are. Exact, and limited like every look."""
        self._check(asked)
        if not self._is_listed(asked):
            kinds = await self._kinds(asked) if asked.state in OPEN and asked.key is None else None
            if kinds is None or len(kinds) > KINDS_PER_LOOK_MAX:
                return await self._database.look(COUNT_WITHIN, self._count, asked)
            return await self._database.look(COUNT_WITHIN, self._count_open, asked, kinds)
        if asked == Filter(cause=asked.cause, state=asked.state, until=asked.until):
            listed = await self._database.look(COUNT_WITHIN, self._count_listed, asked)
            # Nobody else writes our own table. In those of others the list may be a census behind; so few are looked at.
            if self._own or listed > LISTED_LOOKS_MAX * LISTED_AT_ONCE:
                return listed
        return await self._count_pages(asked)

    async def claimed(self) -> int:
        """How many tasks are held now: their index holds nothing else, and what all workers hold is few."""
        return await self._database.look(LOOK_WITHIN, self._ledger.count_held, CLAIMED_COUNTED_MAX)

    async def present(self) -> datetime:
        """The instant, as this ledger sees it."""
        return await self._database.read(self._ledger.present)

    def _check(self, asked: Filter) -> None:
        if asked.cause is not None and asked.state not in (None, State.DEAD):
            raise UsageError("only dead tasks are grouped by cause: leave state out, or ask for dead")
        roles = self._ledger.table.columns()
        for name, role in (("error", "last_error"), ("kind", "kind")):
            if getattr(asked, name) is not None and role not in roles:
                raise UsageError(f"{self._ledger.name!r} has no column for {name}: it cannot be asked for by it")

    # --- places -------------------------------------------------------------------------------------------------------

    async def _places(self, asked: Filter, after: Place | None, limit: int, *, newest_first: bool) -> list[Place]:
        if self._is_listed(asked):
            _check_place(after, datetime)
            return await self._listed(asked, after, limit, newest_first=newest_first)
        kinds = await self._kinds(asked) if self._is_indexed(asked) else None
        if kinds is None:
            _check_place(after, type(None))
            return await self._database.look(LOOK_WITHIN, self._by_id, asked, after, limit, newest_first=newest_first)
        found: list[Place] = []
        size = KINDS_PER_LOOK_MAX
        for start in range(0, len(kinds), size):
            some = kinds[start : start + size]
            found += await self._database.look(
                LOOK_WITHIN, self._heads, asked, some, after, limit, newest_first=newest_first
            )
        found.sort(key=lambda place: (place.at, place.id), reverse=newest_first)
        return found[:limit]

    def _is_listed(self, asked: Filter) -> bool:
        """Whether the list of the dead is looked through, and not the table."""
        return asked.key is None and (asked.cause is not None or (asked.state is State.DEAD and not self._own))

    def _is_indexed(self, asked: Filter) -> bool:
        """Whether indexes hold the rows in question in the order of their instants."""
        if asked.key is not None:
            return False
        return asked.state in OPEN or (self._own and (asked.state is not None or asked.kind is not None))

    def _branches(
        self, connection: Connection, asked: Filter, kind: str | None, rest: Sequence[ColumnElement[bool]]
    ) -> list[Branch]:
        """The rows of a kind, one branch for each index that holds some of them."""
        found: list[Branch] = []
        for state in State if asked.state is None else [asked.state]:
            if state in OPEN:
                found += self._ledger.open_branches(connection, state, kind, rest)
            else:
                at, of_kind = self._rows.column("ended_at"), self._rows.column("kind") == kind
                ended = and_(self._rows.state(state), at.is_not(None), of_kind, *rest)
                found.append(Branch(self._id, at, self._ledger.sql_table, ended))
        return found

    async def _kinds(self, asked: Filter) -> list[str | None] | None:
        """The kinds to look through, each by itself: their indexes begin with it. None if they are too many."""
        if self._ledger.table.kind is None:
            return [None]
        if asked.kind is not None:
            return [asked.kind]
        if asked.state is None:
            return None
        kinds = (
            await self._database.look(LOOK_WITHIN, self._ended_kinds)
            if asked.state in ENDED
            else await self._ledger.open_kinds()
        )
        return None if len(kinds) >= KINDS_LISTED_MAX else [*kinds]

    def _ended_kinds(self, connection: Connection) -> list[str]:
        """The kinds of what has ended, in our own table: one probe of the index for each."""
        t = schema.task
        has_ended = t.c.ended_at.is_not(None)
        scan = select(func.min(t.c.kind).label("kind")).where(has_ended).cte("kinds", recursive=True)
        following = select(func.min(t.c.kind)).where(has_ended, t.c.kind > scan.c.kind).scalar_subquery()
        scan = scan.union_all(select(following).where(scan.c.kind.is_not(None)))
        found = select(scan.c.kind).where(scan.c.kind.is_not(None)).limit(KINDS_LISTED_MAX)
        return list(connection.execute(found).scalars())

    def _heads(
        self,
        connection: Connection,
        asked: Filter,
        kinds: Sequence[str | None],
        after: Place | None,
        limit: int,
        *,
        newest_first: bool,
    ) -> list[Place]:
        """The first rows of each branch and kind, merged."""
        now = self._ledger.present(connection)
        rest = self._conditions(asked, now, kind=False)
        parts: list[Select[Any]] = []
        for kind in kinds:
            for branch in self._branches(connection, asked, kind, rest):
                at, id_ = branch.at, branch.id
                _check_place(after, float if isinstance(at.type, Float) else datetime)
                head = select(at.label("at"), id_.label("id")).select_from(branch.source).where(branch.where)
                if after is not None:
                    head = head.where(self._behind(branch, after, newest_first=newest_first))
                order = (at.desc(), id_.desc()) if newest_first else (at, id_)
                parts.append(select(head.order_by(*order).limit(limit).subquery()))
        if not parts:
            return []
        rows = union_all(*parts).subquery("heads")
        merged = (rows.c.at.desc(), rows.c.id.desc()) if newest_first else (rows.c.at, rows.c.id)
        found = connection.execute(select(rows).order_by(*merged).limit(limit))
        return [Place(_with_zone(row.at), row.id) for row in found]

    def _behind(self, branch: Branch, after: Place, *, newest_first: bool) -> ColumnElement[bool]:
        at, id_ = branch.at, branch.id
        # Written out, not as a row value: the first half then is a range of the index, with or without the id in it.
        instant: ColumnElement[Any] = Earliest() if after.at == _EARLIEST else bindparam(None, after.at, type_=at.type)
        if newest_first:
            return and_(at <= instant, or_(at < instant, id_ < after.id))
        return and_(at >= instant, or_(at > instant, id_ > after.id))

    def _by_id(
        self, connection: Connection, asked: Filter, after: Place | None, limit: int, *, newest_first: bool
    ) -> list[Place]:
        found = select(self._id).where(*self._conditions(asked, self._ledger.present(connection)))
        if after is not None:
            found = found.where(self._id < after.id if newest_first else self._id > after.id)
        found = found.order_by(self._id.desc() if newest_first else self._id).limit(limit)
        return [Place(None, id_) for id_ in connection.execute(found).scalars()]

    # --- the list of the dead -----------------------------------------------------------------------------------------

    async def _listed(self, asked: Filter, after: Place | None, limit: int, *, newest_first: bool) -> list[Place]:
        """Dead tasks by the census's list, each looked at again: the table has the last word."""
        places: list[Place] = []
        ends = time.monotonic() + LOOK_WITHIN.total_seconds()
        for _ in range(LISTED_LOOKS_MAX):
            if time.monotonic() > ends:
                raise TooSlowError(f"fewer than {limit} of the dead tasks looked at in time match")
            some: list[Place] = await self._database.look(
                LOOK_WITHIN, self._some_listed, asked, after, LISTED_AT_ONCE, newest_first=newest_first
            )
            dead = await self._database.look(LOOK_WITHIN, self._still_dead, asked, [place.id for place in some])
            places += [place for place in some if place.id in dead]
            if len(places) >= limit or len(some) < LISTED_AT_ONCE:
                return places[:limit]
            after = some[-1]
        raise TooSlowError(f"fewer than {limit} of {LISTED_LOOKS_MAX * LISTED_AT_ONCE:,} dead tasks match")

    def _list_conditions(self, asked: Filter) -> list[ColumnElement[bool]]:
        d = schema.dead
        where = [d.c.ledger == self._ledger.name]
        if asked.cause is not None:
            where.append(d.c.cause == asked.cause)
        if asked.until is not None:
            where.append(d.c.listed_at <= asked.until)
        return where

    def _some_listed(
        self, connection: Connection, asked: Filter, after: Place | None, limit: int, *, newest_first: bool
    ) -> list[Place]:
        d = schema.dead
        found = select(d.c.since, d.c.task_id).where(*self._list_conditions(asked))
        if after is not None:
            since, id_ = bindparam(None, after.at, type_=d.c.since.type), str(after.id)
            found = found.where(
                and_(d.c.since <= since, or_(d.c.since < since, d.c.task_id < id_))
                if newest_first
                else and_(d.c.since >= since, or_(d.c.since > since, d.c.task_id > id_))
            )
        order = (d.c.since.desc(), d.c.task_id.desc()) if newest_first else (d.c.since, d.c.task_id)
        rows = connection.execute(found.order_by(*order).limit(limit))
        return [Place(row.since, self._ledger.read_id(row.task_id)) for row in rows]

    def _still_dead(self, connection: Connection, asked: Filter, ids: Sequence[TaskId]) -> set[TaskId]:
        if not ids:
            return set()
        where = [self._rows.state(State.DEAD), self._id.in_(ids)]
        # The list knows since when they are dead; the rest the row must say.
        now = asked.until or self._ledger.present(connection)
        where += self._conditions(
            Filter(kind=asked.kind, error=asked.error, older_than=asked.older_than), now, of=State.DEAD
        )
        return set(connection.execute(select(self._id).where(*where)).scalars())

    def _count_listed(self, connection: Connection, asked: Filter) -> int:
        listed = select(func.count()).select_from(schema.dead).where(*self._list_conditions(asked))
        return int(connection.execute(listed).scalar_one())

    async def _count_pages(self, asked: Filter) -> int:
        amount, cursor, ends = 0, None, time.monotonic() + COUNT_WITHIN.total_seconds()
        while True:
            if time.monotonic() > ends:
                raise TooSlowError(f"there are more than {amount:,} dead tasks to look at")
            ids, cursor = await self.ids(asked, cursor=cursor, limit=LISTED_AT_ONCE)
            amount += len(ids)
            if cursor is None:
                return amount

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _count(self, connection: Connection, asked: Filter) -> int:
        where = self._conditions(asked, self._ledger.present(connection))
        counted = select(func.count()).select_from(self._ledger.sql_table).where(*where)
        return int(connection.execute(counted).scalar_one())

    def _count_open(self, connection: Connection, asked: Filter, kinds: Sequence[str | None]) -> int:
        """The same for what waits or is held, by what claims read; one statement, as the limit is for each."""
        rest = self._conditions(asked, self._ledger.present(connection), kind=False)
        branches = [one for kind in kinds for one in self._branches(connection, asked, kind, rest)]
        if not branches:
            return 0
        counts = [select(func.count().label("amount")).select_from(one.source).where(one.where) for one in branches]
        return int(connection.execute(select(func.sum(union_all(*counts).subquery().c.amount))).scalar_one())

    def _conditions(
        self, asked: Filter, now: datetime, *, kind: bool = True, of: State | None = None
    ) -> list[ColumnElement[bool]]:
        """What a row must fulfil; without the kind where the index is asked for it."""
        rows, where = self._rows, list[ColumnElement[bool]]()
        state = asked.state or of
        if asked.state is not None:
            where.append(rows.state(asked.state))
        if kind and asked.kind is not None:
            where.append(rows.column("kind") == asked.kind)
        if asked.key is not None:
            where.append(self._has_key(asked.key))
        if asked.cause is not None:
            d = schema.dead
            of_group = (d.c.ledger == self._ledger.name, d.c.cause == asked.cause)
            where.append(exists().where(*of_group, d.c.task_id == cast(self._id, Text)))
        if asked.error is not None:
            where.append(rows.column("last_error").contains(asked.error, autoescape=True))
        if asked.older_than is not None:
            # As old as it was when somebody looked: what grows old meanwhile is not what was shown.
            where.append(self._not_after(self._changed(state), (asked.until or now) - asked.older_than, unknown=False))
        if asked.until is not None:
            where += self._there_by(state, asked.until)
        return where

    def _has_key(self, key: str) -> ColumnElement[bool]:
        column = self._rows.column("key")
        try:
            value: Any = (
                int(key) if isinstance(column.type, Integer) else UUID(key) if isinstance(column.type, Uuid) else key
            )
        except ValueError:
            return false()
        return false() if isinstance(value, int) and abs(value) >= 2**63 else column == value

    def _changed(self, state: State | None, *, exact: bool = False) -> ColumnElement[Any] | None:
        """The column that says since when a row is in this state; unless `exact` also one that says it roughly."""
        roles: tuple[str, ...]
        if state in ENDED:
            roles = ("ended_at", "done_at", "updated_at") if state is State.DONE else ("ended_at", "updated_at")
        else:
            roles = ("updated_at",) if exact else ("updated_at", "created_at")
        there = self._ledger.table.columns()
        role = next((role for role in roles if role in there), None)
        return None if role is None else self._rows.column(role)

    def _not_after(self, column: ColumnElement[Any] | None, instant: datetime, *, unknown: bool) -> ColumnElement[bool]:
        if column is None:
            if unknown:
                return literal_column("1 = 1")
            raise UsageError(
                f"{self._ledger.name!r} has no column that says when a task changed: it cannot be asked for by age"
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
        tried = exists().where(a.c.ledger == self._ledger.name, a.c.task_id == id_, a.c.ended_at > instant)
        acted = exists().where(d.c.ledger == self._ledger.name, d.c.task_id == id_, d.c.at > instant)
        return [~tried, ~acted, self._not_after(self._changed(state), instant, unknown=True)]

    # --- cursors ------------------------------------------------------------------------------------------------------

    def _write_cursor(self, place: Place) -> str:
        at = place.at
        if isinstance(at, datetime):
            # PostgreSQL's -infinity has no place in a calendar.
            at = _EARLIEST if at.year == 1 else at.isoformat()
        said = json.dumps([at, str(place.id)])
        return base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")

    def _read_cursor(self, text: str) -> Place:
        try:
            at, id_ = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            if isinstance(at, str) and at != _EARLIEST:
                at = datetime.fromisoformat(at)
                assert at.tzinfo is not None
            at = float(at) if isinstance(at, int) else at
            assert isinstance(id_, str)
        except (ValueError, TypeError, AssertionError, RecursionError):
            raise UsageError("the cursor is not one of ours: begin again without it") from None
        return Place(at, self._ledger.read_id(id_))


def refuse_nul(*asked: str | None) -> None:
    """PostgreSQL stores no text with a NUL, and takes none in a question."""
    if any(text is not None and "\0" in text for text in asked):
        raise UsageError("no task holds a NUL: ask without it")


def _check_place(after: Place | None, type_: type) -> None:
    """A place between tasks of another filter may have an instant of another kind, or none."""
    if after is not None and not isinstance(after.at, type_) and not (after.at == _EARLIEST and type_ is datetime):
        raise UsageError("the cursor belongs to another filter: begin again without it")


def _with_zone(at: Any) -> Any:
    """PostgreSQL's -infinity comes without a zone, and could not be compared."""
    return at.replace(tzinfo=UTC) if isinstance(at, datetime) and at.tzinfo is None else at
