"""A ledger whose rows wait in queues of PGMQ: the row says what and how often, its message says when.

A message is hidden until its `vt`. Claiming takes due messages and hides them for the lease; settling with a delay hides
them for the delay; the other ends delete or archive them. Row and message change in one transaction, the row first.

The fence is the row's `claim_id` and, on the message, its `read_ct`: each time a message is handed out its `read_ct` is raised, so
a worker whose time ran out changes nothing once anybody has read the message since, and loses nothing while nobody has. A message
that is due while its row is claimed belongs to a lost worker, unless the one who asks holds it itself; `claim` hands it out marked
abandoned.

What is read besides (tasks, attempts) is read from the table by the base class; counts come from the messages as far as
they can. See ADR 10.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Connection, Table

from redrive.core.decide import Settlement
from redrive.core.failure import describe_error
from redrive.core.states import Act, State
from redrive.core.table import LedgerTable
from redrive.core.task import Claim, ClaimLocked, ClaimLost, TaskId, Unwritten
from redrive.errors import UsageError
from redrive.ledgers.pgmq.queues import Queues
from redrive.ledgers.pgmq.statements import PgmqStatements, QueueLayout, QueuePredicates
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.json_text import decode_json
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.predicates import Branch
from redrive.ledgers.sql.seam import Prepared
from redrive.ledgers.sql.settle import ExtraColumns
from redrive.ports import Actor, Page, Return

Reading = tuple[str, int, int]
"""A queue, a message in it, and how often it has been read. Ids of messages are unique in their queue only."""


class PgmqLedger(SqlLedger):
    """A table whose open rows have messages in queues of PGMQ."""

    def __init__(
        self,
        database: Database,
        ledger_table: LedgerTable,
        table: Table,
        layout: QueueLayout,
        *,
        name: str | None = None,
        beside: Beside | None = None,
        extra: ExtraColumns | None = None,
        queues: Queues | None = None,
    ) -> None:
        super().__init__(database, ledger_table, table, name=name, beside=beside, extra=extra)
        self._mapped.rows = QueuePredicates(ledger_table, table, layout.dead_since)
        self._layout = layout
        self._queued = PgmqStatements(self._mapped, layout, self._fences)
        self.queues = queues or Queues(layout.kind_field)

    @property
    def effects(self) -> None:
        """See `Ledger.effects`: a queue hands tasks out again by itself, so nobody could ask the probe before."""
        return None

    def _check_gated(self) -> None:
        raise UsageError(
            f"{self.name!r} waits in queues of PGMQ, which hand tasks out and know no gates: pause its kinds instead, or limit "
            "how many of them its workers run"
        )

    # --- claim ------------------------------------------------------------------------------------------------------

    async def claim(
        self,
        limit: int,
        lease: timedelta,
        *,
        kinds: Sequence[str] | None = None,
        fence: UUID | None = None,
        held: Callable[[], Iterable[Claim]] = tuple,
        gates: bool = True,  # noqa: ARG002 - there are none
        busy: Sequence[str] | None = None,  # noqa: ARG002 - nobody asks
    ) -> list[Claim]:
        """See `Ledger.claim`."""
        known = await self._known(kinds)
        if limit < 1 or not known:
            return []
        return await self.database.write(
            self._claim_messages, limit, lease, self._in_turn(known), fence or uuid4(), held
        )

    def _claim_messages(
        self,
        connection: Connection,
        limit: int,
        lease: timedelta,
        kinds: list[str],
        fence: UUID,
        held: Callable[[], Iterable[Claim]] = tuple,
    ) -> list[Claim]:
        claims: list[Claim] = []
        for queue, fields in self._by_queue(kinds).items():
            if len(claims) < limit:
                claims += self._claim_from(connection, queue, fields, limit - len(claims), lease, fence, held)
        fresh = self._suspects.marked(connection, [claim for claim in claims if claim.abandoned is None])
        if self._tells_claims and (told := [claim for claim in fresh if claim.unreadable is None]):
            self.beside.claimed(connection, told)
        return fresh + [claim for claim in claims if claim.abandoned is not None]

    def _by_queue(self, kinds: Iterable[str]) -> Mapping[str, list[str]]:
        queues = defaultdict(list)
        for kind in kinds:
            queue, field = self._layout.split(kind)
            queues[queue].append(field)
        return queues

    def _claim_from(
        self,
        connection: Connection,
        queue: str,
        kinds: list[str],
        limit: int,
        lease: timedelta,
        fence: UUID,
        holding: Callable[[], Iterable[Claim]],
    ) -> list[Claim]:
        if not self.queues.exists(connection, queue):
            return []
        parameters = {"limit": limit, "kinds": kinds, "fence": fence, **self._times(lease=lease)}
        rows = self._queued.queue(queue).claim.rows(connection, parameters)
        wide = 3 + len(self._layout.same)
        id_at = wide + [column.name for column in self._queued.columns].index(self._mapped.id.name)
        held = [row for row in rows if row[id_at] is not None]
        claims = self._claim_reader.claims((row[wide:] for row in held), fence, lease)
        claims = [self._with_message(claim, row) for claim, row in zip(claims, held, strict=True)]
        if len(held) < len(rows):
            rest = [row for row in rows if row[id_at] is None]
            own = {(claim.task.id, claim.claim_id) for claim in holding()}
            claims += self._take_over(connection, queue, rest, fence, lease, own)
        return claims

    def _take_over(
        self,
        connection: Connection,
        queue: str,
        rows: Sequence[Any],
        fence: UUID,
        lease: timedelta,
        own: Set[tuple[TaskId, UUID]] = frozenset(),
    ) -> list[Claim]:
        """Messages whose rows do not wait: of lost workers, or left over by what has ended; those are put away.

        What the one who asks holds itself is not lost, however late it is: it stays as it was claimed, and hidden.
        """
        wide = 3 + len(self._layout.same)
        same = [tuple(row[3:wide]) for row in rows]
        found = connection.execute(self._queued.whose, {"same": same, "queue": queue}).all()
        by_message = {row[0]: row for row in rows}
        lost, message_of, kept = [], {}, []
        for id_, msg_id, claim_id, claimed_at, waits in found:
            if msg_id not in by_message:
                continue
            message = by_message.pop(msg_id)
            if (id_, claim_id) in own:
                kept.append(msg_id)
            elif not waits:  # else somebody was quicker and has let go of it: it is visible again when this lease ends
                lost.append((id_, claim_id, claimed_at))
                message_of[id_] = message
        if kept:
            connection.execute(self._queued.queue(queue).unread, {"ids": kept})
        if by_message:
            self.queues.archive(connection, queue, sorted(by_message))
        if not lost:
            return []
        abandoned = self._abandoned(connection, lost)
        free = set(connection.execute(self._queued.lock_rows, {"ids": sorted(abandoned)}).scalars())
        if len(free) < len(abandoned):
            # A row that somebody has locked holds nobody up. Its message is visible again when this lease ends; as long as it was
            # not handed out, its holder may stand in the line for the row.
            unread = [message_of[id_][0] for id_ in abandoned if id_ not in free]
            connection.execute(self._queued.queue(queue).unread, {"ids": unread})
        parameters = {"ids": sorted(free), "fence": fence, **self._times(lease=lease)}
        taken = self._queued.take_over.rows(connection, parameters)
        claims = self._claim_reader.claims(taken, fence, lease, abandoned)
        return [self._with_message(claim, message_of[claim.task.id]) for claim in claims]

    def _with_message(self, claim: Claim, row: Any) -> Claim:
        """The claim with what a handler needs of its message; one that cannot be read costs no other."""
        msg_id, claim.task.payload["read_ct"], data = row[:3]
        try:
            claim.task.payload[self._layout.data_field] = None if data is None else decode_json(data)
        except (RecursionError, ValueError) as error:
            said = f"message {msg_id} cannot be read ({describe_error(error)}). Correct it, then redrive the task"
            return claim._replace(unreadable=said)
        return claim

    async def recall(self, fence: UUID, lease: timedelta) -> list[Claim]:  # noqa: ARG002
        """See `Ledger.recall`: no index finds rows by their fence here, and the queue brings them back by itself."""
        return []

    async def reclaim(self, limit: int, lease: timedelta, *, kinds: Sequence[str] | None = None) -> list[Claim]:  # noqa: ARG002
        """See `Ledger.reclaim`: what was abandoned is handed out by `claim`."""
        return []

    def parked_kinds(self, connection: Connection, kind: str | None, most: int) -> int | None:  # noqa: ARG002
        """See `Parking.parked_kinds`: they wait in queues, and no index of the rows counts them."""
        return None

    async def take_lost(self, kind: str, limit: int, lease: timedelta) -> list[Claim]:
        """See `SqlLedger.take_lost`."""
        return await self.database.write(self._take_lost, kind, limit, lease)

    def _take_lost(self, connection: Connection, kind: str, limit: int, lease: timedelta) -> list[Claim]:
        queue, field = self._layout.split(kind)
        if not self.queues.exists(connection, queue):
            return []
        parameters = {"kind": field, "limit": limit, **self._times(lease=lease)}
        rows = connection.execute(self._queued.queue(queue).lost, parameters).all()
        return self._take_over(connection, queue, rows, uuid4(), lease) if rows else []

    # --- settle and extend ------------------------------------------------------------------------------------------

    def _settle_each(
        self,
        connection: Connection,
        settlements: list[Settlement],
        worker: str,
        *,
        wait: bool = False,
        prepared: Prepared | None = None,  # noqa: ARG002 - there are queues on PostgreSQL alone
    ) -> list[Unwritten]:
        held, unwritten = self._held(connection, [one.claim for one in settlements], wait=wait)
        ours = [one for one in settlements if self._message(one.claim) in held] if unwritten else settlements
        if ours:
            unwritten += (refused := super()._settle_each(connection, ours, worker, wait=wait))
            left = {one.claim.task.id for one in refused}
            # Only now that everything else is written: whoever sees a message again sees its row as it was left.
            self._release(connection, [one for one in ours if one.claim.task.id not in left] if left else ours)
        return unwritten

    def _settle_in_line(self, connection: Connection, settlements: list[Settlement], worker: str) -> list[Unwritten]:
        # The row first: while it is waited for, the message is free to be extended.
        ids = [one.claim.task.id for one in settlements]
        connection.execute(self._queued.wait_for_rows, {"ids": ids})
        return super()._settle_in_line(connection, settlements, worker)

    def _held(
        self, connection: Connection, claims: Sequence[Claim], *, wait: bool = False
    ) -> tuple[set[Reading], list[Unwritten]]:
        """Those of the messages that nobody else has read since, and the others. They are locked until the commit."""
        held, unwritten = set[Reading](), list[Unwritten]()
        for queue, some in self._claims_by_queue(claims).items():
            statements = self._queued.queue(queue)
            parameters = self._queued.held_batch.parameters(self._message(claim)[1:] for claim in some)
            locked = statements.lock_held(wait=wait).rows(connection, parameters)
            mine = {(queue, row[0], row[1]) for row in locked}
            if len(mine) < len(some):
                still = {(queue, row[0], row[1]) for row in connection.execute(statements.held, parameters)}
                rest = [(claim, self._message(claim)) for claim in some]
                unwritten += [
                    ClaimLocked(claim) if message in still else ClaimLost(claim)
                    for claim, message in rest
                    if message not in mine
                ]
            held |= mine
        return held, unwritten

    def _claims_by_queue(self, claims: Iterable[Claim]) -> Mapping[str, list[Claim]]:
        queues: dict[str, list[Claim]] = defaultdict(list)
        for claim in claims:
            queues[claim.task.payload[self._layout.queue]].append(claim)
        return dict(sorted(queues.items()))

    def _release(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        """Let go of the messages: deleted, archived, or hidden for the delay."""
        queues: dict[str, list[Settlement]] = defaultdict(list)
        for one in settlements:
            queues[one.claim.task.payload[self._layout.queue]].append(one)
        for queue, some in queues.items():
            done, ended, delayed = list[int](), list[int](), list[tuple[int, Any]]()
            for one in some:
                msg_id = one.claim.task.payload[self._layout.msg_id]
                if one.state is State.WAITING:
                    assert one.delay is not None
                    delayed.append((msg_id, one.delay))
                else:
                    (done if one.state is State.DONE else ended).append(msg_id)
            if done:
                self.queues.delete(connection, queue, done)
            if ended:
                self.queues.archive(connection, queue, ended)
            if delayed:
                parameters = self._queued.delay_batch.parameters(sorted(delayed)) | self._times()
                self._queued.queue(queue).delay.rows(connection, parameters)

    async def extend(self, claims: Sequence[Claim], lease: timedelta) -> list[Unwritten]:
        """See `Ledger.extend`."""
        if not claims:
            return []
        ordered = sorted(claims, key=lambda claim: claim.task.id)
        return await self.database.write(self._extend, ordered, lease)

    def _extend(self, connection: Connection, claims: list[Claim], lease: timedelta) -> list[Unwritten]:
        held, unwritten = self._held(connection, claims)
        for queue, some in self._claims_by_queue(claim for claim in claims if self._message(claim) in held).items():
            statements = self._queued.queue(queue)
            parameters = {"ids": [self._message(claim)[1] for claim in some], **self._times(lease=lease)}
            statements.extend.rows(connection, parameters)
            told = {row[0] for row in statements.tell_leases.rows(connection, self._fences.parameters(some))}
            # A message that is kept is enough: its row is only told.
            rest = self._fences.why(connection, [claim for claim in some if claim.task.id not in told])
            unwritten += [one for one in rest if isinstance(one, ClaimLost)]
        return unwritten

    # --- what is due ------------------------------------------------------------------------------------------------

    def _seconds_left(self, connection: Connection, kinds: list[str] | None, *, signed: bool = False) -> float | None:
        left = []
        for queue, fields in self._by_queue(kinds or ()).items():
            if not self.queues.exists(connection, queue):
                continue
            heads = self._queued.queue(queue).heads
            left.append(connection.execute(heads, {"kinds": fields, **self._times()}).scalar())
        soonest = min((float(one) for one in left if one is not None), default=None)
        return soonest if signed or soonest is None else max(0.0, soonest)

    async def next_due(self, *, kinds: Sequence[str] | None = None) -> timedelta | None:
        """See `Ledger.next_due`. A message that is held counts with the end of its lease: it is due then, as abandoned."""
        known = await self._known(kinds)
        return await self.database.read(self._next_due, known) if known else None

    def _list_kinds(self, connection: Connection, prefix: str = "", after: str | None = None) -> Page[str]:  # noqa: ARG002
        found = []
        for queue in self.queues.ours(connection, self._layout.ending):
            kinds = connection.execute(self._queued.queue(queue).kinds).scalars()
            found += [kind for one in kinds if (kind := self._layout.join(queue, one)).startswith(prefix)]
        return Page(items=found)

    def _overdue(self, connection: Connection, kind: str, age: timedelta, limit: int) -> list[TaskId]:
        queue, field = self._layout.split(kind)
        if not self.queues.exists(connection, queue):
            return []
        parameters = {"kind": field, "limit": limit, **self._age(age)}
        return list(connection.execute(self._queued.queue(queue).overdue, parameters).scalars())

    async def counts(self, *, counted_max: int = 100_000) -> Mapping[State, int]:
        """See `LedgerReader.counts`. The table is kept for ever, so nothing here reads all of it.

        What is open is counted by its messages, claimed among the oldest `counted_max` of each queue; dead by its index; done
        and cancelled among the newest `counted_max` rows only.
        """
        return await super().counts(counted_max=counted_max)

    def _counts(self, connection: Connection, counted_max: int) -> dict[State, int]:
        claimed = messages = 0
        for queue in self.queues.ours(connection, self._layout.ending):
            held, there = connection.execute(self._queued.queue(queue).open_counts, {"limit": counted_max}).one()
            claimed, messages = claimed + held, messages + there
        done, cancelled = connection.execute(self._queued.ended_counts, {"limit": counted_max}).one()
        return {
            State.WAITING: min(messages - claimed, counted_max),
            State.CLAIMED: min(claimed, counted_max),
            State.DONE: done,
            State.DEAD: connection.execute(self._queued.dead_count, {"limit": counted_max}).scalar_one(),
            State.CANCELLED: cancelled,
        }

    def open_branches(
        self, connection: Connection, state: State, kind: str | None, conditions: Sequence[ColumnElement[bool]]
    ) -> list[Branch]:
        """See `SqlLedger.open_branches`. The table has no index for it, the messages have."""
        queue, field = self._layout.split(kind or "")
        if not self.queues.exists(connection, queue):
            return []
        return [self._queued.queue(queue).branch(field, state, conditions)]

    def count_held(self, connection: Connection, counted_max: int) -> int:
        """See `SqlLedger.count_held`: among the oldest `counted_max` messages of each queue."""
        return sum(
            connection.execute(self._queued.queue(queue).claimed_count, {"limit": counted_max}).scalar_one()
            for queue in self.queues.ours(connection, self._layout.ending)
        )

    # --- acts of people and systems ---------------------------------------------------------------------------------

    def _act_on(
        self,
        connection: Connection,
        act: Act,
        state: State,
        ids: Sequence[TaskId],
        actor: Actor,
        note: Any = None,
        *,
        alone: bool = True,
    ) -> list[TaskId]:
        queues: dict[str, dict[TaskId, int]] = defaultdict(dict)
        for id_, queue, msg_id in connection.execute(self._queued.messages_of, {"ids": list(ids)}):
            queues[queue][id_] = msg_id
        if act is Act.REDRIVE:
            ids = [id_ for queue, some in queues.items() for id_ in self._in_archive(connection, queue, list(some))]
        elif act is not Act.RESOLVE:  # what waits has a message: locked first, as everywhere, and in the same order
            for queue, some in sorted(queues.items()):
                connection.execute(self._queued.queue(queue).lock, {"ids": sorted(some.values())}).all()
        changed = super()._act_on(connection, act, state, sorted(ids), actor, note, alone=alone) if ids else []
        for queue, some in queues.items():
            here = [id_ for id_ in changed if id_ in some]
            if here and act is Act.REDRIVE:
                connection.execute(self._queued.queue(queue).resend, {"ids": here, **self._times()})
            elif here and act is not Act.RESOLVE:
                self.queues.archive(connection, queue, [some[id_] for id_ in here])
        return changed

    def _in_archive(self, connection: Connection, queue: str, ids: list[TaskId]) -> list[TaskId]:
        """Those whose message can be sent again; the others cannot be redriven."""
        return list(connection.execute(self._queued.queue(queue).in_archive, {"ids": ids}).scalars())

    def _return(
        self,
        connection: Connection,  # noqa: ARG002
        returns: Sequence[Return],  # noqa: ARG002
        actor: Actor,  # noqa: ARG002
        *,
        soon: bool = False,  # noqa: ARG002
    ) -> list[TaskId]:
        raise UsageError(
            f"{self.name!r} waits in queues, which forget what is done: add it again instead of returning it"
        )

    def _message(self, claim: Claim) -> Reading:
        """The message of a claim, and which reading of it is the claim's."""
        row = claim.task.payload
        return row[self._layout.queue], row[self._layout.msg_id], row["read_ct"]
