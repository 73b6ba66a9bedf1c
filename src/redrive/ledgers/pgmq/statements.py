"""The SQL of a ledger over queues of PGMQ, built once for each queue from the `QueueLayout` and the `LedgerTable`.

What the table alone is asked comes from `ClaimStatements`. Due messages are found by an index on their kind and `vt`, which is asked
for in the only way that no other index serves: PGMQ has one on `vt` alone, and PostgreSQL likes it as long as few messages are
due, but by it a claim reads every due message of all the kinds that it does not want.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Interval,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    extract,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from redrive.core.states import State
from redrive.core.table import LedgerTable
from redrive.ledgers.pgmq.queues import archive_table, message_table
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.claim import ClaimStatements
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.due import KINDS_LISTED_MAX
from redrive.ledgers.sql.fences import Fences
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.predicates import Branch, Predicates


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLayout:
    """How rows and messages belong together."""

    queue: str
    """The column with the name of the queue."""
    msg_id: str
    """The column with the id of the message."""
    same: Sequence[str]
    """Columns that the message repeats under the same names; together they are unique in the table."""
    kind_field: str
    """What the message says of the kind."""
    data_field: str
    """What of the message a handler needs; it joins the payload under this name."""
    split: Callable[[str], tuple[str, str]]
    """From a kind to its queue and what the messages there say of it."""
    join: Callable[[str, str], str]
    """The way back."""
    ending: str
    """How the names of the ledger's queues end."""
    dead_since: str
    """The column that is set while a row is dead, and that its index finds."""


class QueueStatements:
    """The statements over one queue and the table, each with its purpose."""

    def __init__(self, of: "PgmqStatements", queue: str) -> None:
        self.queue = queue
        self._of = of
        self._layout = of.layout
        self.messages = message_table(queue)
        self.archived = archive_table(queue)
        self.kind = self.messages.c.message[of.layout.kind_field].astext

    @cached_property
    def claim(self) -> Compiled:
        """Hide up to `limit` due messages of these kinds and claim their rows, those that wait."""
        c, of = self.messages.c, self._of
        limit = bindparam("limit", type_=Integer)
        kinds = self._wanted()
        # Pulled row by row from behind the limit: kinds that come after it is reached are neither read nor locked.
        due = select(c.msg_id).where(*self._until(kinds.c.kind, of.now())).order_by(self.kind, c.vt).limit(limit)
        locked = due.with_for_update(skip_locked=True).lateral("due")
        ids = select(locked.c.msg_id).select_from(kinds.join(locked, true())).limit(limit)
        taken = (
            update(self.messages)
            .where(c.msg_id == any_(func.array(ids.scalar_subquery())))
            .values(vt=of.later(c.vt, "lease"), read_ct=c.read_ct + 1)
            .returning(c.msg_id, c.read_ct, c.message)
            .cte("taken")
        )
        msg_id = of.table.c[self._layout.msg_id]
        mine = [of.table.c[name] == taken.c.message[name].astext for name in self._layout.same]
        held = of.hold_waiting(*mine, msg_id == taken.c.msg_id).cte("held")
        shown = select(
            taken.c.msg_id,
            taken.c.read_ct,
            self._data(taken.c.message),
            *(taken.c.message[name].astext for name in self._layout.same),
            *held.c,
        )
        return Compiled(shown.select_from(taken.outerjoin(held, held.c[self._layout.msg_id] == taken.c.msg_id)))

    @cached_property
    def lost(self) -> Any:
        """Hide up to `limit` due messages of a kind whose rows are claimed: those of lost workers, as `claim` returns them."""
        c, of = self.messages.c, self._of
        row = self._row_of(of.rows.state(State.CLAIMED))
        found = (
            select(c.msg_id)
            .select_from(self.messages.join(row, true()))
            .where(*self._until(bindparam("kind", type_=Text), of.now()))
            .order_by(self.kind, c.vt)
            .limit(bindparam("limit", type_=Integer))
            .with_for_update(of=self.messages, skip_locked=True)
            .correlate(None)
        )
        return (
            update(self.messages)
            .where(c.msg_id == any_(func.array(found.scalar_subquery())))
            .values(vt=of.later(c.vt, "lease"), read_ct=c.read_ct + 1)
            .returning(
                c.msg_id,
                c.read_ct,
                self._data(c.message),
                *(c.message[name].astext for name in self._layout.same),
            )
        )

    def _data(self, message: ColumnElement[Any]) -> ColumnElement[Any]:
        """What a handler needs of a message, as text: the driver's codec for JSON would be one more call for each."""
        return cast(message[self._layout.data_field], Text)

    def _until(self, kind: ColumnElement[Any], end: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """Messages of a kind that are due until then. To be read in the order of kind and `vt`."""
        both = tuple_(self.kind, self.messages.c.vt)
        return [both >= tuple_(kind, literal_column("timestamptz '-infinity'")), both <= tuple_(kind, end)]

    @staticmethod
    def _wanted() -> Any:
        kinds = bindparam("kinds", type_=ARRAY(Text))
        return func.unnest(kinds, type_=Text).table_valued("kind", name="wanted").render_derived()

    @cached_property
    def held(self) -> Select[Any]:
        """The messages that nobody has read since they were claimed, in the order of their ids."""
        c, batch = self.messages.c, self._of.held_batch.rows
        return (
            select(c.msg_id, c.read_ct)
            .join(batch, self._of.held_batch.match("msg_id", c.msg_id) & (batch.c.read_ct == c.read_ct))
            .order_by(c.msg_id)
        )

    def lock_held(self, *, wait: bool) -> Compiled:
        """The same, locked: those that nobody else has locked, or all."""
        return self._lock_and_wait if wait else self._lock_free

    @cached_property
    def _lock_free(self) -> Compiled:
        return Compiled(self.held.with_for_update(of=self.messages, skip_locked=True))

    @cached_property
    def _lock_and_wait(self) -> Compiled:
        return Compiled(self.held.with_for_update(of=self.messages))

    @cached_property
    def unread(self) -> Any:
        """Take back that messages were read, in the transaction that has read them."""
        c = self.messages.c
        return update(self.messages).where(c.msg_id == any_(_ids())).values(read_ct=c.read_ct - 1)

    @cached_property
    def delay(self) -> Compiled:
        """Hide messages that the caller holds for the delay of each: what `set_vt` does, for many delays at once."""
        c, batch = self.messages.c, self._of.delay_batch.rows
        vt = self._of.now() + batch.c.delay
        return Compiled(update(self.messages).where(self._of.delay_batch.match("msg_id", c.msg_id)).values(vt=vt))

    @cached_property
    def extend(self) -> Compiled:
        """Hide messages that the caller holds until `lease` from now, and never for less than they are hidden already."""
        c = self.messages.c
        later = func.greatest(c.vt, self._of.later(c.vt, "lease"))
        return Compiled(update(self.messages).where(c.msg_id == any_(_ids())).values(vt=later))

    @cached_property
    def tell_leases(self) -> Compiled:
        """Write into the rows until when their messages are hidden, each only where its fence is still there."""
        of = self._of
        mine = of.table.c[self._layout.msg_id] == self.messages.c.msg_id
        return Compiled(
            update(of.table)
            .where(of.fences.free, mine)
            .values({of.rows.column("lease_until").name: self.messages.c.vt})
            .returning(of.id)
        )

    @cached_property
    def lock(self) -> Select[Any]:
        """Lock messages, in the order of their ids."""
        c = self.messages.c
        return select(c.msg_id).where(c.msg_id == any_(_ids())).order_by(c.msg_id).with_for_update()

    @cached_property
    def heads(self) -> Select[Any]:
        """How many seconds until the next message of these kinds is due; below zero where it has been due."""
        c, kinds = self.messages.c, self._wanted()
        ever = self._until(kinds.c.kind, literal_column("timestamptz 'infinity'"))
        head = select(c.vt).where(*ever).order_by(self.kind, c.vt).limit(1).lateral("head")
        return select(func.min(extract("epoch", head.c.vt - self._of.now()))).select_from(kinds.join(head, true()))

    @cached_property
    def kinds(self) -> Select[Any]:
        """The kinds that have messages: a loose index scan, one probe per kind."""
        scan = select(func.min(self.kind).label("kind")).cte("kinds", recursive=True)
        following = select(func.min(self.kind)).where(self.kind > scan.c.kind).scalar_subquery()
        scan = scan.union_all(select(following).where(scan.c.kind.is_not(None)))
        return select(scan.c.kind).where(scan.c.kind.is_not(None)).limit(KINDS_LISTED_MAX)

    def _row_of(self, state: ColumnElement[bool]) -> Any:
        """The row of a message, if it is in this state. Limited, so that the messages come first and not the whole table."""
        table = self._of.table
        mine = [table.c[name] == self.messages.c.message[name].astext for name in self._layout.same]
        mine.append(table.c[self._layout.msg_id] == self.messages.c.msg_id)
        return select(self._of.id).where(*mine, state).limit(literal_column("1")).lateral("row_of")

    @cached_property
    def overdue(self) -> Select[Any]:
        """The rows that wait and whose messages of a kind have been due longer than `age`."""
        c, of = self.messages.c, self._of
        row = self._row_of(of.rows.state(State.WAITING))
        found = select(row.c[of.id.name]).select_from(self.messages.join(row, true()))
        found = found.where(*self._until(bindparam("kind", type_=Text), of.ago(c.vt)))
        return found.order_by(self.kind, c.vt).limit(bindparam("limit", type_=Integer))

    def branch(self, kind: str, state: State, conditions: Sequence[ColumnElement[bool]]) -> Branch:
        """The rows of a kind that wait or are held, in the order of when their messages are visible again."""
        c, of = self.messages.c, self._of
        row = self._row_of(and_(of.rows.state(state), *conditions))
        mine = self.kind == bindparam(None, kind, type_=Text)
        if state is State.CLAIMED:  # what was never read is held by nobody: its row need not be looked up
            mine = and_(mine, c.read_ct > literal_column("0"))
        return Branch(row.c[of.id.name], c.vt, self.messages.join(row, true()), mine)

    @cached_property
    def claimed_count(self) -> Select[Any]:
        """How many rows are claimed, among those of the oldest `limit` messages. Only what was read once is looked up."""
        c, limit = self.messages.c, bindparam("limit", type_=Integer)
        oldest = select(*c).order_by(c.msg_id).limit(limit).subquery("oldest")
        mine = [self._of.table.c[name] == oldest.c.message[name].astext for name in self._layout.same]
        mine.append(self._of.table.c[self._layout.msg_id] == oldest.c.msg_id)
        claimed = self._of.rows.state(State.CLAIMED)
        return select(func.count()).where(oldest.c.read_ct > literal_column("0"), *mine, claimed)

    @cached_property
    def open_counts(self) -> Select[Any]:
        """How many rows are claimed, as `claimed_count` says, and how many messages there are, up to `limit` more, at one instant."""
        claimed = self.claimed_count.with_only_columns(func.count().label("amount")).cte("claimed")
        most = bindparam("limit", type_=Integer) + select(claimed.c.amount).scalar_subquery()
        few = select(self.messages.c.msg_id).limit(most).subquery("few")
        return select(claimed.c.amount, select(func.count()).select_from(few).scalar_subquery())

    @cached_property
    def in_archive(self) -> Select[Any]:
        """Which of the rows have their message in the archive."""
        of = self._of
        there = of.table.c[self._layout.msg_id] == self.archived.c.msg_id
        return select(of.id).where(of.id == any_(_ids()), there)

    @cached_property
    def resend(self) -> Any:
        """Send the archived messages of rows once more, due now, and tell the rows."""
        of, c = self._of, self.archived.c
        table = of.table
        again = select(of.now(), c.message).where(
            table.c[self._layout.msg_id] == c.msg_id, table.c[of.id.name] == any_(_ids())
        )
        sent = insert(self.messages).from_select(["vt", "message"], again).returning(*self.messages.c).cte("sent")
        mine = [table.c[name] == sent.c.message[name].astext for name in self._layout.same]
        return update(table).where(*mine).values({self._layout.msg_id: sent.c.msg_id})


def _ids() -> Any:
    return bindparam("ids", type_=ARRAY(BigInteger))


class QueuePredicates(Predicates):
    """Which rows are what, where those that are dead have an index of their own."""

    def __init__(self, ledger_table: LedgerTable, table: Table, dead_since: str) -> None:
        super().__init__(ledger_table, table)
        self._dead_since = table.c[dead_since]

    def state(self, state: State) -> ColumnElement[bool]:
        """See `Predicates.state`."""
        found = super().state(state)
        return and_(found, self._dead_since.is_not(None)) if state is State.DEAD else found


class PgmqStatements(ClaimStatements):
    """The statements of the table, and those of each queue."""

    def __init__(self, mapped: Mapped, layout: QueueLayout, fences: Fences) -> None:
        super().__init__(mapped)
        self.fences = fences
        self.layout = layout
        self.rows, self.table, self.id, self.dialect = mapped.rows, mapped.table, mapped.id, mapped.dialect
        self._queues: dict[str, QueueStatements] = {}
        self.held_batch = Batch(self.dialect, {"msg_id": BigInteger(), "read_ct": Integer()})
        self.delay_batch = Batch(self.dialect, {"msg_id": BigInteger(), "delay": Interval()})

    def queue(self, name: str) -> QueueStatements:
        """The statements of one queue."""
        if name not in self._queues:
            self._queues[name] = QueueStatements(self, name)
        return self._queues[name]

    def now(self) -> ColumnElement[Any]:
        """The present."""
        return self.dialect.now()

    def later(self, column: ColumnElement[Any], span: str) -> ColumnElement[Any]:
        """The instant that is the parameter `span` from now."""
        return self._mapped.later(column, span)

    def ago(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The instant that was `age` ago."""
        return self.dialect.ago(column)

    def hold_waiting(self, *where: ColumnElement[bool]) -> Any:
        """Claim the rows for which this holds and which wait. One that somebody has locked holds nobody up: its message comes again."""
        waiting = select(self.id).where(self.rows.state(State.WAITING), *where)
        free = self.dialect.unlocked(self.id, waiting)
        assert free is not None, "a queue of PGMQ is in a PostgreSQL, which locks rows one by one"
        return self.hold(free, anew=True)

    @cached_property
    def whose(self) -> Select[Any]:
        """Rows by what their messages repeat of them, with what is needed to tell a lost worker from an ended row."""
        columns = [self.table.c[name] for name in self.layout.same]
        asked: Any = bindparam("same", expanding=True)
        return select(
            self.id,
            self.table.c[self.layout.msg_id],
            self.rows.column("claim_id"),
            self.rows.column("claimed_at"),
            self.rows.state(State.WAITING).label("waits"),
        ).where(
            tuple_(*columns).in_(asked),
            self.table.c[self.layout.queue] == bindparam("queue", type_=Text),
            or_(self.rows.state(State.CLAIMED), self.rows.state(State.WAITING)),
        )

    @cached_property
    def dead_count(self) -> Select[Any]:
        """How many rows are dead, up to `limit`, by their own index."""
        dead = select(self.id).where(self.table.c[self.layout.dead_since].is_not(None))
        return select(func.count()).select_from(dead.limit(bindparam("limit", type_=Integer)).subquery("few"))

    @cached_property
    def ended_counts(self) -> Select[Any]:
        """How many rows are done and how many cancelled, among the newest `limit`: no index tells them apart."""
        states: list[Any] = [self.rows.state(one).label(one.value) for one in (State.DONE, State.CANCELLED)]
        few = select(*states).order_by(self.id.desc()).limit(bindparam("limit", type_=Integer)).subquery("newest")
        counted: list[Any] = [func.count().filter(column) for column in few.c]
        return select(*counted)

    @cached_property
    def lock_rows(self) -> Select[Any]:
        """Lock those of the rows that nobody else has locked."""
        return select(self.id).where(self.id == any_(_ids())).with_for_update(skip_locked=True)

    @cached_property
    def wait_for_rows(self) -> Select[Any]:
        """Lock rows, in the order of their ids."""
        return select(self.id).where(self.id == any_(_ids())).order_by(self.id).with_for_update(key_share=True)

    @cached_property
    def messages_of(self) -> Select[Any]:
        """Where the messages of rows are."""
        columns = self.table.c[self.layout.queue], self.table.c[self.layout.msg_id]
        return select(self.id, *columns).where(self.id == any_(_ids())).order_by(*columns)
