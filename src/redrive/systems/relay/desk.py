"""What people do with messages whose retries are spent: look, send them out again, or close them.

Both are acts of the ledger, so the tasks page, the command line and the routes here mean the same thing: a redrive is a
resubmission, wherever somebody asks for it. What is written in the same commit is in `beside`.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, LargeBinary, bindparam, cast, func, literal_column, select

from redrive import State
from redrive.errors import TooSlowError
from redrive.events import Act, TasksChanged
from redrive.extend import Database, OnDatabase, When, reads
from redrive.lane import Actor, Lane, Page
from redrive.operator.acts import Acted, act_on_pages
from redrive.operator.shown_errors import shows, sifted
from redrive.operator.whole_acts import as_one_act
from redrive.sql import comparable, may_show
from redrive.systems.relay.tables import RETRY_QUEUE, retry_queue

R = TypeVar("R")

LOOK_WITHIN = timedelta(seconds=2)
COUNT_WITHIN = timedelta(seconds=10)
ACT_WITHIN = timedelta(seconds=8)
"""An act on all that match stops after this between two pages, and says that it is not complete."""
DEPTH_MAX = 1_000_000
READ_BYTES_MAX = 65_536
"""So much of a payload is read to be shown."""
COUNTED_AT_ONCE = 500
COUNTED_MAX = 10_000
"""Beyond this a number is shown as “or more”. An act on all that match takes all of them."""
QUEUES_MAX = 20
"""So many queues are named: those whose messages are the oldest, so that a new one pushes none of them out."""
QUEUES_READ_MAX = 1000
"""Of so many queues, the first by name, it is known which are the oldest."""
TOO_SLOW = "the error's text is looked for message by message, and these are too many: name the queue as well"
_c = retry_queue.c
_WORDS = RETRY_QUEUE.words
# As a literal: bound, it hides the partial indexes.
_IN_REVIEW = _c.status == literal_column(f"'{_WORDS.dead}'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which messages in review: all conditions must hold, None asks nothing.

    `until` takes only what was in review at that instant already, so who acts on what was shown acts on nothing else.
    """

    queue: str | None = None
    error: str | None = None
    message_id: str | None = None
    ids: Sequence[int] | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How much waits for a person; each number is counted up to a limit."""

    total: int
    queues: Sequence[tuple[str, int]]
    more: bool
    """Whether messages of queues wait that are not named."""


# SQLite keeps what was inserted as text as such: its bytes are meant.
_PAYLOAD = cast(_c.original_payload, LargeBinary)
_SHOWN = (
    _c.id, _c.message_id, _c.original_queue, _c.retry_count, _c.max_retries, _c.status, _c.last_error, _c.next_retry_at,
    _c.lease_until, _c.created_at, _c.updated_at, _c.content_type, func.length(_PAYLOAD).label("payload_bytes"),
    func.coalesce(_c.error_reason, "").label("error_reason"),
)  # fmt: skip
"""What a list shows of a row: never its payload."""


class ReviewDesk(OnDatabase):
    """The messages that wait for a person."""

    def __init__(self, database: Database, lane: Lane) -> None:
        super().__init__(database, open=lane.ledger)
        self._lane = lane

    # --- looking ----------------------------------------------------------------------------------------------------

    async def page(self, asked: Asked, *, before: int | None = None, limit: int = 50) -> Page[Any]:
        """Messages in review, the newest first; `TooSlowError` where that takes long."""

        async def look(last: Any | None, amount: int) -> list[Any]:
            found = select(*_SHOWN).where(*self._conditions(asked)).order_by(_c.id.desc()).limit(amount)
            behind = before if last is None else last.id
            if behind is not None:
                found = found.where(_c.id < behind)
            return await self._look(lambda connection: list(connection.execute(found)))

        rows = await self._shown(asked, look, limit + 1)
        return Page(items=rows[:limit], cursor=rows[limit - 1].id if len(rows) > limit else None)

    async def _shown(
        self, asked: Asked, look: Callable[[Any | None, int], Awaitable[list[Any]]], limit: int
    ) -> list[Any]:
        """Rows that match, their errors as people see them."""
        if asked.error is None:
            return await look(None, limit)
        error = asked.error

        async def fitting(some: Sequence[Any]) -> Sequence[Any]:
            return [row for row in some if shows(row.error_reason, error)]

        return await sifted(look, fitting, None, limit, LOOK_WITHIN)

    async def get(self, id: int) -> Any | None:
        """A message, wherever it stands now, with its headers and the beginning of its payload (`head`)."""
        head = func.substr(_PAYLOAD, 1, READ_BYTES_MAX, type_=LargeBinary).label("head")
        found = select(*_SHOWN, _c.headers, head).where(_c.id == id)
        return await self._look(lambda connection: connection.execute(found).one_or_none())

    async def waiting(self) -> Waiting:
        """How many there are, and of which queues."""
        return await self._look(_waiting, COUNT_WITHIN)

    async def count(self, asked: Asked) -> int:
        """How many match. Exact, and limited like every look."""
        if asked.error is not None:
            amount, last, ends = 0, 0, time.monotonic() + COUNT_WITHIN.total_seconds()
            while ids := await self._ids(asked, last, COUNTED_AT_ONCE):
                amount, last = amount + len(ids), ids[-1]
                if time.monotonic() > ends:
                    raise TooSlowError(f"there are more than {amount:,} messages to look at")
            return amount
        counted = select(func.count()).select_from(retry_queue).where(*self._conditions(asked))
        return await self._look(lambda connection: int(connection.execute(counted).scalar_one()), COUNT_WITHIN)

    @reads
    def depth(self, connection: Connection) -> int:
        """How many messages wait for their retry, counted up to a million."""
        is_pending = _c.status == literal_column(f"'{_WORDS.waiting}'")
        pending = select(_c.id).where(is_pending).limit(DEPTH_MAX).subquery()
        return int(connection.execute(select(func.count()).select_from(pending)).scalar_one())

    async def present(self) -> datetime:
        """The instant, as the table sees it."""
        return await self._database.read(self._database.present)

    async def _look(self, run: Callable[[Connection], R], within: timedelta = LOOK_WITHIN) -> R:
        return await (await self._opened()).look(within, run)

    def _conditions(self, asked: Asked) -> list[ColumnElement[bool]]:
        where: list[ColumnElement[bool]] = [_IN_REVIEW]
        if asked.queue is not None:
            where.append(_c.original_queue == asked.queue)
        if asked.error is not None:
            where.append(may_show(_c.error_reason, asked.error))
        if asked.message_id is not None:
            where.append(_c.message_id == asked.message_id)
        if asked.ids is not None:
            where.append(_c.id.in_(asked.ids))
        if asked.until is not None:
            # What is in review has not changed since it came there. Instants are compared, never their text.
            where.append(comparable(_c.updated_at) <= comparable(bindparam(None, asked.until, type_=When)))
        return where

    # --- acting -----------------------------------------------------------------------------------------------------

    async def act(self, act: Act, ids: Sequence[int], actor: Actor) -> Acted:
        """Act on these; who comes second finds that there is nothing left to do, and why."""
        changed = await self._change(act, ids, actor)
        if changed:
            await self._lane.count_soon()
        return Acted(changed=changed, refused=await self._why_not(set(ids) - set(changed)), matched=len(ids))

    async def act_on_all(self, act: Act, asked: Asked, actor: Actor, *, at_most: int | None = None) -> Acted:
        """Act on all that match, page by page.

        `at_most` is the number that was shown. What ended before `until` and was committed after the look is not among it.
        """

        async def next_page(cursor: Any, limit: int) -> Page[Any]:
            ids = await self._ids(asked, cursor or 0, limit)
            return Page(items=ids, cursor=ids[-1] if len(ids) == limit else None)

        named = {one.name: getattr(asked, one.name) for one in fields(asked) if one.name != "ids"}
        whole = as_one_act(actor, f"{act} of {self._lane.name}", named)
        done = await act_on_pages(
            next_page, lambda ids: self._change(act, ids, whole), at_most=at_most, within=ACT_WITHIN
        )
        if done.changed:
            await self._lane.count_soon()
        return Acted(changed=done.changed, matched=done.matched, until=asked.until, complete=done.complete)

    async def _ids(self, asked: Asked, after: int, limit: int) -> list[int]:
        """The ids of those that match, behind this one."""

        async def look(last: Any | None, amount: int) -> list[Any]:
            behind = _c.id > (after if last is None else last.id)
            found = select(_c.id, _c.error_reason).where(*self._conditions(asked), behind).order_by(_c.id).limit(amount)
            return await self._look(lambda connection: list(connection.execute(found)), COUNT_WITHIN)

        return [row.id for row in await self._shown(asked, look, limit)]

    async def _change(self, act: Act, ids: Sequence[Any], actor: Actor) -> list[Any]:
        # Not by the lane, which would look the ids up first.
        ledger = await self._lane.ledger()
        if act is Act.REDRIVE:
            changed = await ledger.redrive(ids, actor)
        else:
            changed = await ledger.resolve(ids, State.CANCELLED, actor)
        if changed:
            self._lane.tell([TasksChanged(self._lane.name, act, tuple(changed), actor.name, actor.reason)])
        return changed

    async def _why_not(self, rest: set[int]) -> dict[Any, str]:
        if not rest:
            return {}
        found = select(_c.id, _c.status, _c.lease_until).where(_c.id.in_(rest))
        try:
            rows = await self._look(lambda connection: {row.id: row for row in connection.execute(found)})
        except TooSlowError:  # the others have changed, and that must be told
            return dict.fromkeys(sorted(rest), "it was left alone; the database took too long to say why")
        return {id_: _why_not(rows.get(id_)) for id_ in sorted(rest)}


def _why_not(row: Any | None) -> str:
    if row is None:
        return "there is no such message"
    if row.status == _WORDS.waiting:
        return "it waits for its retry already" if row.lease_until is None else "it is being published right now"
    if row.status == _WORDS.done:
        return "it has gone out again already"
    if row.status == _WORDS.cancelled:
        return "it was resolved already"
    return "it changed meanwhile and is in review again: look once more"


def _waiting(connection: Connection) -> Waiting:
    scan = select(func.min(_c.original_queue).label("queue")).where(_IN_REVIEW).cte("queues", recursive=True)
    following = select(func.min(_c.original_queue)).where(_IN_REVIEW, _c.original_queue > scan.c.queue)
    # One probe of the index for each queue, however many messages there are.
    scan = scan.union_all(select(following.scalar_subquery()).where(scan.c.queue.is_not(None)))
    oldest = select(func.min(_c.id)).where(_IN_REVIEW, _c.original_queue == scan.c.queue).scalar_subquery()
    known = select(scan.c.queue, oldest.label("oldest")).where(scan.c.queue.is_not(None)).limit(QUEUES_READ_MAX)
    found = sorted(connection.execute(known), key=lambda one: one.oldest)
    queues = [(one.queue, _count(connection, _c.original_queue == one.queue)) for one in found[:QUEUES_MAX]]
    return Waiting(
        total=_count(connection),
        queues=sorted(queues, key=lambda one: (-one[1], one[0])),
        more=len(found) > QUEUES_MAX,
    )


def _count(connection: Connection, *where: ColumnElement[bool]) -> int:
    few = select(_c.id).where(_IN_REVIEW, *where).limit(COUNTED_MAX).subquery()
    return int(connection.execute(select(func.count()).select_from(few)).scalar_one())
