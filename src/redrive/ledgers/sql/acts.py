"""Acts of people and systems: redriving, cancelling, resolving, burying, returning, pruning; each with who did it and why."""

import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError

from redrive.core.effect_mark import EffectAnswer
from redrive.core.states import TERMINAL, Act, State, check_transition, sources
from redrive.core.table import TASKS
from redrive.core.task import TaskId
from redrive.errors import StaleError, UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.audit_lines import record
from redrive.ledgers.sql.base import ANNOUNCE_HORIZON, IDS_MAX
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.database import StillLocked, callers_connection, run_within
from redrive.ledgers.sql.due import KINDS_PER_LOOK_MAX
from redrive.ledgers.sql.ended_kinds import ended_kinds
from redrive.ledgers.sql.gate_rows import NamedGate
from redrive.ledgers.sql.gates import Gating
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.predicates import quoted
from redrive.ledgers.sql.seam import Parameters
from redrive.ledgers.sql.stacks import FORGOTTEN_MAX, forget_stacks
from redrive.ledgers.sql.times import comparable
from redrive.ports import Actor, Return, WholeAct, Within

KEEPER = Actor(name="keeper", reason="its deadline passed while it waited behind a gate")
ENDING_ACTS = {Act.CANCEL: "cancelled", Act.BURY: "dead"}
"""Acts that end waiting tasks, and the column of the minute that counts them as settlements do."""

LOCKED_WAIT = timedelta(seconds=1)
"""How long an act waits for a row that somebody has locked; most locks are gone in milliseconds."""
LOCKED_AGAIN = timedelta(seconds=0.2)
"""The same for a part of them, once it is known that a lock stays."""
LOCKED_SECONDS_MAX = 10.0
"""How long it looks for those that are not locked."""


_HISTORY_KEPT = select(schema.partition.c.name).where(
    schema.partition.c.name == schema.attempt.name, schema.partition.c.keep_seconds.is_not(None)
)


_OF_TASKS = (
    schema.deed, schema.dead, schema.edit, schema.result, schema.effect, schema.stop, schema.progress,
)  # fmt: skip
"""What goes with a task, beside its history."""


class ActStatements:
    """The statements, each with its purpose."""

    def __init__(self, mapped: Mapped) -> None:
        self._mapped = mapped

    def act(self, act: Act, state: State) -> Update:
        """Change the rows in `ids` that `act` may lead to `state`."""
        mapped, rows = self._mapped, self._mapped.rows
        from_states = or_(*(rows.state(before) for before in sources(act, state)))
        values: dict[str, Any] = {"status": quoted(mapped.ledger_table.words.word(state)), "due": null()}
        if state is State.WAITING:
            values |= {"count": literal_column("0"), "due": mapped.now("due")}
        if act is Act.REDRIVE and mapped.has("redrives"):
            values["redrives"] = rows.column("redrives") + 1
        if mapped.has("updated_at"):
            values["updated_at"] = mapped.now("updated_at")
        if mapped.has("ended_at"):
            values["ended_at"] = null() if state is State.WAITING else mapped.now("ended_at")
        if state is State.DONE and mapped.has("done_at"):
            values["done_at"] = mapped.now("done_at")
        ids = mapped.id.in_(bindparam("ids", expanding=True))
        return mapped.update(values).where(ids, from_states).returning(mapped.id)

    @cached_property
    def return_batch(self) -> Batch:
        """The columns of a return, in the order of `Acting._return`."""
        mapped = self._mapped
        due = mapped.dialect.span_type(mapped.rows.column("due"))
        columns = {"id": mapped.id.type, "word": Text(), "count": Integer(), "delay": due, "error": Text()}
        return Batch(mapped.dialect, columns)

    @cached_property
    def return_(self) -> Update:
        """Bring the ended rows of a batch back, each with the larger of both counts."""
        mapped, rows, batch = self._mapped, self._mapped.rows, self.return_batch.rows
        count = rows.count()
        values: dict[str, Any] = {
            "status": mapped.as_status(batch.c.word),
            "count": case((count < batch.c.count, batch.c.count), else_=count),
            "due": mapped.dialect.later(batch.c.delay, rows.column("due")),
        }
        if mapped.has("last_error"):
            values["last_error"] = func.coalesce(batch.c.error, rows.column("last_error"))
        if mapped.has("updated_at"):
            values["updated_at"] = mapped.now("updated_at")
        for role in ("ended_at", "done_at"):
            if mapped.has(role):
                values[role] = null()
        ended = or_(*(rows.state(before) for before in sources(Act.RETURN, State.WAITING)))
        return mapped.update(values).where(self.return_batch.match("id", mapped.id), ended).returning(mapped.id)

    def old(self, states: Sequence[State], kinds: Sequence[str] | None = None) -> Select[Any]:
        """Up to `limit` rows that ended in one of the states longer than `age` ago, and that no foreign key keeps; of all kinds or of some."""
        if not set(states) <= TERMINAL:
            raise UsageError(f"only tasks that have ended can be pruned, not {', '.join(states)}")
        mapped, old = self._mapped, []
        for state in states:
            if mapped.ledger_table.words.has(state):
                ended_at = self._ended_at(state)
                old.append(and_(mapped.rows.state(state), comparable(ended_at) <= mapped.dialect.ago(ended_at)))
        free = [~pointed_at for pointed_at in mapped.kept_by()]
        of_kinds = [] if kinds is None else [mapped.rows.column("kind").in_(kinds)]
        few = select(mapped.id).where(*of_kinds, or_(false(), *old), *free).limit(bindparam("limit", type_=Integer))
        return few.with_for_update(skip_locked=True)

    def prune(self, old: Select[Any]) -> Any:
        """Delete such rows."""
        gone = self._mapped.dialect.among(self._mapped.id, old)
        return delete(self._mapped.table).where(gone).returning(self._mapped.id)

    @cached_property
    def prune_ids(self) -> Any:
        """Delete rows by their ids."""
        ids = self._mapped.id.in_(bindparam("ids", expanding=True))
        return delete(self._mapped.table).where(ids).returning(self._mapped.id)

    def _ended_at(self, state: State) -> Column[Any]:
        """The column that says when a row ended. When it was created would be the wrong age: it may have just ended."""
        roles = ("ended_at", "done_at", "updated_at") if state is State.DONE else ("ended_at", "updated_at")
        for role in roles:
            if self._mapped.has(role):
                return self._mapped.rows.column(role)
        raise UsageError(
            f"{self._mapped.ledger_table.name!r} has no column that says when a task ended as {state}: "
            f"name one as {' or '.join(roles)} in its LedgerTable to prune it"
        )


class Acting(Gating):
    """The part of a ledger that people and systems act through."""

    @cached_property
    def _acting(self) -> ActStatements:
        return ActStatements(self._mapped)

    @cached_property
    def _actor(self) -> str:
        """The worker of the counters that acts raise."""
        return f"act:{uuid4()}"

    async def redrive(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """See `Ledger.redrive`."""
        changed = await self._act(Act.REDRIVE, State.WAITING, ids, actor)
        if changed:
            self.database.wake(self.name)
        return changed

    def redrive_on(self, connection: Connection, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """The same in a transaction of ours that commits at once; whoever calls wakes the workers afterwards."""
        return self._act_on(connection, Act.REDRIVE, State.WAITING, ids, actor)

    def set_payload(self, connection: Connection, id: TaskId, payload: Any) -> None:
        """Give a dead row another payload, which is checked by whoever calls."""
        dead = self._mapped.rows.state(State.DEAD)
        changed = self._mapped.update({"payload": payload}).where(self._mapped.id == id, dead)
        if connection.execute(changed).rowcount != 1:
            raise StaleError(f"task {id} is not dead any more: its payload was left as it was")

    async def cancel(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """See `Ledger.cancel`."""
        return await self._act(Act.CANCEL, State.CANCELLED, ids, actor)

    def cancel_sync(self, ids: Sequence[TaskId], actor: Actor, *, within: Within) -> list[TaskId]:
        """The same for code without an event loop, in the caller's transaction."""
        changed, ordered = list[TaskId](), sorted(set(ids))
        with callers_connection(within) as connection:
            for start in range(0, len(ordered), IDS_MAX):
                some = ordered[start : start + IDS_MAX]
                changed += self._act_on(connection, Act.CANCEL, State.CANCELLED, some, actor, alone=False)
        return changed

    async def resolve(self, ids: Sequence[TaskId], state: State, actor: Actor, *, note: Any = None) -> list[TaskId]:
        """See `Ledger.resolve`. The note is for what is written beside."""
        check_transition(Act.RESOLVE, State.DEAD, state)
        return await self._act(Act.RESOLVE, state, ids, actor, note)

    async def bury(self, ids: Sequence[TaskId], actor: Actor, *, note: Any = None) -> list[TaskId]:
        """Waiting tasks end as dead, because the system that owns them gives them up. Returns those that changed."""
        return await self._act(Act.BURY, State.DEAD, ids, actor, note)

    async def keep_gates(self, *, recount: bool) -> int:
        """See `Ledger.keep_gates`."""
        if not self.has_gates:
            return 0
        if recount:
            await self.recount()
            await self.fit_rules()
            await self.forget_gates()
        late = await self.overdue_behind_gates()
        return len(await self.bury(late, KEEPER)) if late else 0

    async def _act(self, act: Act, state: State, ids: Sequence[TaskId], actor: Actor, note: Any = None) -> list[TaskId]:
        """Act on many. If one of them is locked for long, the others are looked for in halves; `StillLocked` if none was changed."""
        changed: list[TaskId] = []
        ordered = sorted(set(ids))
        if len(ordered) > 1 and actor.whole is None:
            actor = replace(actor, whole=WholeAct(id=uuid4().hex))  # it may take more than one commit
        parts = deque(ordered[start : start + IDS_MAX] for start in range(0, len(ordered), IDS_MAX))
        wait, ends, locked = LOCKED_WAIT, math.inf, None
        while parts:
            some = parts.popleft()
            try:
                changed += await self.database.stand_in_line(wait, self._act_on, act, state, some, actor, note)
            except StillLocked as error:
                wait, ends = LOCKED_AGAIN, min(ends, time.monotonic() + LOCKED_SECONDS_MAX)
                if len(some) == 1 or time.monotonic() > ends:
                    locked = error
                else:
                    parts.extendleft((some[len(some) // 2 :], some[: len(some) // 2]))
        if locked is not None and not changed:
            raise locked
        return changed

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
        """`alone` says that the commit follows at once: else nobody may wait for a counter that is written here."""
        if state is State.WAITING:
            ids = self._answered(connection, ids)
        statement = self._acting.act(act, state)
        changed: list[TaskId] = list(connection.execute(statement, {"ids": ids, **self._times()}).scalars())
        self._record(connection, act, changed, actor)
        self._close_effects(connection, act, state, changed, actor)
        if act is not Act.CANCEL:
            self._forget(connection, [str(id_) for id_ in changed], schema.dead)
        if changed and act in ENDING_ACTS:
            worker = self._actor if alone else f"act:{uuid4()}"
            self._count_flow(connection, ENDING_ACTS[act], len(changed), worker)
        if changed and alone and state is State.WAITING:
            self._wake_gates_of(connection, changed)
        if changed:
            self.beside.acted(connection, act, state, changed, actor, note)
        if changed and state is State.WAITING:
            self.database.announce(connection, self.name, soon=True)
        return changed

    def _answered(self, connection: Connection, ids: Sequence[TaskId]) -> Sequence[TaskId]:
        """Those that may run: no redrive runs a task before it is known whether its effect happened."""
        opened = set() if self.effects is None else set(self.effects.open_among(connection, ids))
        return [id_ for id_ in ids if id_ not in opened] if opened else ids

    def _close_effects(
        self, connection: Connection, act: Act, state: State, ids: Sequence[TaskId], actor: Actor
    ) -> None:
        """Whoever ends tasks closes the questions whether their effects happened."""
        if self.effects is None or not ids or state is State.WAITING or act is Act.BURY:
            return
        if opened := self.effects.open_among(connection, ids):
            answer = EffectAnswer.HAPPENED if state is State.DONE else EffectAnswer.CLOSED
            self.effects.answer(connection, opened, answer, actor)

    def _wake_gates_of(self, connection: Connection, ids: Sequence[TaskId]) -> None:
        """Have the gates looked at of tasks that wait again.

        They are locked until the commit, and all the same before what is written beside: a settlement locks in this order, too.
        """
        if not self.has_gates:
            return
        rows = self._mapped.rows
        columns = [
            rows.gate(),
            rows.column("kind") if self._mapped.has("kind") else null(),
            rows.column("tenant") if self._mapped.has("tenant") else null(),
        ]
        named = rows.column(self.table.gated_by or "gate").is_not(None)
        found = connection.execute(select(*columns).where(self._mapped.id.in_(ids), named).distinct()).all()
        self.make_gates(connection, [NamedGate(gate, kind, str(tenant or "")) for gate, kind, tenant in found])

    def _record(self, connection: Connection, act: Act, ids: Sequence[TaskId], actor: Actor) -> None:
        if ids:
            things, at = [str(id_) for id_ in ids], self.present(connection)
            record(connection, ledger=self.name, act=act.value, things=things, actor=actor, at=at)

    async def return_(self, returns: Sequence[Return], actor: Actor, *, within: Within | None = None) -> list[TaskId]:
        """See `Ledger.return_`."""
        if not returns:
            return []
        if within is not None:
            return await run_within(within, self._return, returns, actor)
        changed = await self.database.write(self._return, returns, actor, soon=True)
        if any(one.delay <= ANNOUNCE_HORIZON for one in returns):
            self.database.wake(self.name)
        return changed

    def return_sync(self, returns: Sequence[Return], actor: Actor, *, within: Within) -> list[TaskId]:
        """The same for code without an event loop, in the caller's `Connection` or `Session`."""
        if not returns:
            return []
        with callers_connection(within) as connection:
            return self._return(connection, returns, actor)

    def _return(
        self, connection: Connection, returns: Sequence[Return], actor: Actor, *, soon: bool = False
    ) -> list[TaskId]:
        # By id, as every batch here; of a task that is named twice the larger count stays.
        largest = {one.id: one for one in sorted(returns, key=lambda one: (one.id, one.failures))}
        now, span, word = self._now(), self._mapped.dialect.span, self.table.words.word
        rows = [
            (one.id, word(State.WAITING, failures=one.failures), one.failures, span(now, one.delay), one.error)
            for one in largest.values()
        ]
        parameters = self._acting.return_batch.parameters(rows) | self._times()
        changed: list[TaskId] = list(connection.execute(self._acting.return_, parameters).scalars())
        self._record(connection, Act.RETURN, changed, actor)
        self._forget(connection, [str(id_) for id_ in changed], schema.dead, schema.result)
        if any(largest[id_].delay <= ANNOUNCE_HORIZON for id_ in changed):
            self.database.announce(connection, self.name, soon=soon)
        if soon and changed:
            self._wake_gates_of(connection, changed)
        return changed

    async def keep_history(self) -> int:
        """See `Ledger.keep_history`."""
        kept = 0
        with suppress(StillLocked):  # partitions are made ahead, and stacks are old: there is time
            if self._mapped.dialect.has_partitions:
                kept = await self.database.write(self._mapped.dialect.keep_history)
            while await self.database.write(forget_stacks, self.database) == FORGOTTEN_MAX:
                pass
        return kept

    async def prune(self, states: Sequence[State], older_than: timedelta, *, limit: int = 1000) -> int:
        """See `Ledger.prune`."""
        gone, refused = 0, None
        for old in await self._old(states):
            try:
                gone += await self.database.write(self._prune, old, older_than, limit - gone)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                refused = refused or error  # others may go all the same
            if gone >= limit:
                break
        if refused is not None and not gone:
            raise refused
        return gone

    async def _old(self, states: Sequence[State]) -> list[Select[Any]]:
        """What is old, as an index finds it: of our own table a state and some kinds at once."""
        if not states:
            return []
        whole = self._acting.old(states)
        if self.table != TASKS:
            return [whole]
        kinds = await self.database.read(ended_kinds)
        some = [kinds[start : start + KINDS_PER_LOOK_MAX] for start in range(0, len(kinds), KINDS_PER_LOOK_MAX)]
        return [self._acting.old([state], these) for state in states for these in some]

    def unprunable(self, state: State) -> str | None:
        """Why tasks that ended so cannot be pruned; None if they can."""
        try:
            self._acting.old([state])
        except UsageError as error:
            return str(error)
        return None

    def _prune(self, connection: Connection, old: Select[Any], older_than: timedelta, limit: int) -> int:
        parameters = {"limit": limit, **self._age(older_than)}
        try:
            gone = self._delete(connection, self._acting.prune(old), parameters)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            # One of them cannot be deleted, since a trigger forbids it or something points at it. The others can.
            gone = self._delete_apart(connection, connection.execute(old, parameters).scalars().all())
            if not gone:
                raise
        # A history that is kept for a time of its own goes by partitions, which is the point of them.
        history = () if connection.execute(_HISTORY_KEPT).first() else (schema.attempt,)
        self._forget(connection, [str(id_) for id_ in gone], *history, *_OF_TASKS)
        if gone:
            self._count_flow(connection, "pruned", len(gone), self._adder)
        return len(gone)

    def _delete_apart(self, connection: Connection, ids: Sequence[TaskId]) -> list[TaskId]:
        """Delete rows in halves, down to those that cannot be deleted; which are gone."""
        half = (len(ids) + 1) // 2
        gone: list[TaskId] = []
        for some in (ids[:half], ids[half:]):
            if not some:
                continue
            try:
                gone += self._delete(connection, self._acting.prune_ids, {"ids": list(some)})
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                gone += self._delete_apart(connection, some) if len(some) > 1 else []
        return gone

    @staticmethod
    def _delete(connection: Connection, statement: Any, parameters: Parameters) -> list[TaskId]:
        """Delete in a savepoint, so that a refusal leaves the transaction as it was."""
        connection.exec_driver_sql("SAVEPOINT prune")
        try:
            gone = list(connection.execute(statement, parameters).scalars())
        except DBAPIError as error:
            # Nothing is asked of a connection that is gone, nor of one whose caller was cancelled: that must come through as it is.
            if not error.connection_invalidated:
                connection.exec_driver_sql("ROLLBACK TO SAVEPOINT prune")
                connection.exec_driver_sql("RELEASE SAVEPOINT prune")
            raise
        connection.exec_driver_sql("RELEASE SAVEPOINT prune")
        return gone
