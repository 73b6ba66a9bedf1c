"""The one SQL implementation of the ledger port, over any `LedgerTable` on any `Database`.

The methods of the port are thin: they choose how a function of a connection runs (`statement`, `write`, `read`, or in the
caller's own transaction). The functions themselves, with a leading underscore, are synchronous and stand right below.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Table,
    Uuid,
    and_,
    func,
    literal_column,
    select,
)

from redrive.core.decide import Settlement
from redrive.core.states import Act, State, check_transition
from redrive.core.table import LedgerTable
from redrive.core.task import Abandoned, Added, Attempt, Claim, ClaimLost, Deed, NewTask, Task, TaskId, same_json
from redrive.errors import KeyTakenError, LedgerError, UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.conditions import Conditions
from redrive.ledgers.sql.database import Database, run_within, sync_connection
from redrive.ledgers.sql.gather import Gather
from redrive.ledgers.sql.ids import uuid7
from redrive.ledgers.sql.predicates import Branch, Predicates
from redrive.ledgers.sql.rollup import COUNTED, rolled_up
from redrive.ledgers.sql.rows import RowReader
from redrive.ledgers.sql.statements import KINDS_PER_CLAIM_MAX, ExtraColumns, Statements
from redrive.ledgers.sql.times import EPOCH, MICROSECOND
from redrive.ports import Actor, Filter, Page, Return, Transaction, Waiter, Within

ENDING_ACTS = {Act.CANCEL: "cancelled", Act.BURY: "dead"}
"""Acts that end waiting tasks, and the column of the minute that counts them as settlements do."""
ANNOUNCE_HORIZON = timedelta(seconds=1)
"""Work due later than this is found by the safety poll in time; announcing it would only cost."""
PAGE_MAX = 1000
IDS_MAX = 1000


class SqlLedger:
    """A table of a database as a ledger, and its reader.

    `beside` writes what else must be in the same commits; where it does not listen to claims or settlements, these stay one
    statement each. `extra` fills columns of the rows themselves.
    """

    def __init__(
        self,
        database: Database,
        ledger_table: LedgerTable,
        table: Table,
        *,
        name: str | None = None,
        beside: Beside | None = None,
        extra: ExtraColumns | None = None,
    ) -> None:
        self.name = name or ledger_table.name
        self.beside = beside or Beside()
        self._tells_claims = self.beside.listens("claimed")
        self._tells_settled = self.beside.listens("settled")
        self.table = ledger_table
        self.database = database
        self._statements = Statements(
            ledger_table, table, database.dialect, server_clock=database.server_clock, extra=extra
        )
        self.conditions = Conditions(self.name, self._statements.rows)
        """What rows must fulfil to match a filter."""
        self._reader = RowReader(ledger_table, table.columns)
        self._claim_reader = RowReader(ledger_table, self._statements.claim_columns)
        self._adds = Gather(self._add_gathered)
        self._adder = f"add:{uuid4()}"
        self._actor = f"act:{uuid4()}"
        key = self._statements.rows.column("key").type
        self._key_from_text: Callable[[str], Any] = (
            int if isinstance(key, Integer) else UUID if isinstance(key, Uuid) else str
        )
        self._turn = 0

    @property
    def predicates(self) -> Predicates:
        """Which rows of the table are in which state."""
        return self._statements.rows

    @property
    def sql_table(self) -> Table:
        """The table as SQLAlchemy knows it."""
        return self._statements.table

    def count_added(self, connection: Connection, amount: int, *, worker: str) -> None:
        """Write down that tasks were added, where `add` did not do it."""
        self._count_flow(connection, "added", amount, worker, self._now())

    def _now(self) -> datetime | None:
        """The instant, where the database does not take its own."""
        return None if self.database.server_clock else self.database.now()

    def _times(self, **spans: timedelta | None) -> dict[str, Any]:
        return self._statements.times(self._now(), **spans)

    # --- add --------------------------------------------------------------------------------------------------------

    async def add(self, tasks: Sequence[NewTask], *, within: Within | None = None) -> list[Added]:
        """See `Ledger.add`."""
        self._check_addable()
        if not tasks:
            return []
        if within is not None:
            return await run_within(within, self._add, tasks)
        added = await self._adds(tasks)
        if any(task.delay <= ANNOUNCE_HORIZON for task in tasks):
            self.database.wake(self.name)
        return added

    def add_sync(self, tasks: Sequence[NewTask], *, within: Within, soon: bool = False) -> list[Added]:
        """The same for code without an event loop, in the caller's `Connection` or `Session`.

        `soon` says that the commit follows at once, so that one announcement may stand for several.
        """
        self._check_addable()
        return self._add(sync_connection(within), tasks, soon=soon) if tasks else []

    async def _add_gathered(self, tasks: Sequence[NewTask]) -> list[Added]:
        return await self.database.write(self._add, tasks, soon=True)

    def _add(self, connection: Connection, tasks: Sequence[NewTask], *, soon: bool = False) -> list[Added]:
        statements = self._statements
        now = self._now()
        keys = [self._key_to_store(task.key) for task in tasks]
        rows = [self._add_row(task, key, now) for task, key in zip(tasks, keys, strict=True)]
        if statements.makes_ids:
            begun = self.database.now()
            rows = [(self._new_id(begun, serial), *row) for serial, row in enumerate(rows)]
        parameters = statements.add_batch.parameters(rows) | statements.times(now)
        new = {key: id_ for id_, key in connection.execute(statements.add, parameters)}
        there: dict[Any, tuple[TaskId, str | None, Any]] = {}
        missing = [key for key in keys if key not in new]
        for start in range(0, len(missing), IDS_MAX):
            found = connection.execute(statements.find_keys, {"keys": missing[start : start + IDS_MAX]})
            there |= {key: (id_, kind, payload) for id_, key, kind, payload in found}
        added = []
        for task, key in zip(tasks, keys, strict=True):
            if key in new and key not in there:
                there[key] = (new[key], task.kind, task.payload)
                added.append(Added(id=new[key], key=task.key, new=True))
            elif key in there:
                id_, kind, payload = there[key]
                if kind is not None and kind != task.kind:
                    # All or nothing also for a caller who goes on with its transaction after the error.
                    for start in range(0, len(new), IDS_MAX):
                        connection.execute(statements.take_back, {"ids": list(new.values())[start : start + IDS_MAX]})
                    raise KeyTakenError(
                        f"key {task.key!r} belongs to a task of kind {kind!r}, not {task.kind!r}; "
                        f"keys are unique in a ledger: put the kind into it, such as '{task.kind}:{task.key}'"
                    )
                added.append(Added(id=id_, key=task.key, new=False, same_payload=same_json(task.payload, payload)))
            else:
                raise LedgerError(
                    f"the task with key {task.key!r} was deleted while it was added again: add it once more"
                )
        if new:
            # In a transaction of the caller's a row of its own: nobody may wait for a counter until they commit.
            self._count_flow(connection, "added", len(new), self._adder if soon else f"add:{uuid4()}", now)
            if any(one.new and task.delay <= ANNOUNCE_HORIZON for task, one in zip(tasks, added, strict=True)):
                self.database.announce(connection, self.name, soon=soon)
        return added

    def _count_flow(self, connection: Connection, name: str, amount: int, worker: str, now: datetime | None) -> None:
        parameters: dict[str, Any] = {"ledger": self.name, "worker": worker, "amount": amount}
        if now is not None:
            parameters["minute"] = _minute(now)
        connection.execute(self._statements.count_flow(name), parameters)

    def _add_row(self, task: NewTask, key: Any, now: datetime | None) -> tuple[Any, ...]:
        due: Any = task.delay
        deadline: Any = task.deadline
        if now is not None:
            due = now + task.delay
            deadline = None if task.deadline is None else now + task.deadline
        return (
            key, task.kind, task.payload_json, due, self.table.count_max_to_store(task.failures_max), deadline, task.trace
        )  # fmt: skip

    def _new_id(self, now: datetime, serial: int) -> TaskId:
        made = uuid7(now, serial)
        return made if isinstance(self._statements.id.type, Uuid) else str(made)

    def _key_to_store(self, key: str) -> Any:
        try:
            return self._key_from_text(key)
        except ValueError:
            column = self._statements.rows.column("key")
            raise UsageError(f"key {key!r} does not fit the column {column.name!r}, which is {column.type}") from None

    def _check_addable(self) -> None:
        if self.table.payload is None:
            raise UsageError(
                f"rows of {self.name!r} are yours to insert: its LedgerTable names no payload column for redrive to fill"
            )

    # --- claim ------------------------------------------------------------------------------------------------------

    async def claim(self, limit: int, lease: timedelta, *, kinds: Sequence[str] | None = None) -> list[Claim]:
        """See `Ledger.claim`."""
        known = await self._known(kinds)
        if limit < 1 or known == []:
            return []
        self._turn += 1
        run = self.database.write if self._tells_claims else self.database.statement
        return await run(self._claim, limit, lease, known and self._in_turn(known), self._turn)

    def _claim(
        self, connection: Connection, limit: int, lease: timedelta, kinds: list[str] | None, turn: int
    ) -> list[Claim]:
        fence = uuid4()
        parameters = {
            "limit": limit,
            # A single place cannot be shared, so every fourth is for a first try.
            "retry_share": limit * 3 // 4 if limit > 1 else int(turn % 4 != 0),
            "fence": fence,
            **self._times(lease=lease),
            **self._kind_parameters(kinds),
        }
        rows = connection.execute(self._statements.claim(len(kinds or ())), parameters)
        claims = self._claim_reader.claims(rows, fence, lease)
        if self._tells_claims and claims:
            self.beside.claimed(connection, claims)
        return claims

    async def _known(self, kinds: Sequence[str] | None) -> list[str] | None:
        """The kinds to look for; None where the table has none."""
        if self.table.kind is None:
            return None
        return list(kinds) if kinds is not None else await self.open_kinds()

    def _in_turn(self, kinds: list[str]) -> list[str]:
        """Every kind gets its turn at the front, so that none is starved by another.

        Drawn, not counted: a count in step with the calls of another worker could pass a kind over for ever.
        """
        start = random.randrange(len(kinds))
        return (kinds[start:] + kinds[:start])[:KINDS_PER_CLAIM_MAX]

    @staticmethod
    def _kind_parameters(kinds: list[str] | None) -> dict[str, str]:
        return {f"kind_{position}": kind for position, kind in enumerate(kinds or ())}

    async def reclaim(self, limit: int, lease: timedelta, *, kinds: Sequence[str] | None = None) -> list[Claim]:
        """See `Ledger.reclaim`."""
        if kinds is not None and not kinds and self.table.kind is not None:
            return []
        return await self.database.write(self._reclaim, limit, lease, kinds)

    async def take_lost(self, kind: str, limit: int, lease: timedelta) -> list[Claim]:
        """The claims of a kind that were lost, and nothing that waits: for a system that gives up what nobody handles."""
        return await self.reclaim(limit, lease, kinds=[kind])

    def _reclaim(
        self, connection: Connection, limit: int, lease: timedelta, kinds: Sequence[str] | None
    ) -> list[Claim]:
        of_kinds = kinds is not None and self.table.kind is not None
        found = connection.execute(
            self._statements.expired_of_kinds if of_kinds else self._statements.expired,
            {"limit": limit, **self._times(), **({"kinds": list(kinds or ())} if of_kinds else {})},
        )
        abandoned = {id_: Abandoned(claim_id=claim_id, claimed_at=claimed_at) for id_, claim_id, claimed_at in found}
        if not abandoned:
            return []
        fence = uuid4()
        parameters = {"ids": list(abandoned), "fence": fence, **self._times(lease=lease)}
        rows = connection.execute(self._statements.take_over, parameters)
        return self._claim_reader.claims(rows, fence, lease, abandoned)

    # --- settle and extend ------------------------------------------------------------------------------------------

    async def settle(
        self, settlements: Sequence[Settlement], *, worker: str, within: Within | None = None
    ) -> list[ClaimLost]:
        """See `Ledger.settle`."""
        if not settlements:
            return []
        # In the order of ids, as every batch here: two batches that lock the same rows then never wait in a circle.
        ordered = sorted(settlements, key=lambda one: one.claim.task.id)
        for state in {one.state for one in ordered}:
            check_transition(Act.SETTLE, State.CLAIMED, state)
            self.table.words.settled(state)  # raises where the table has no word for it
        if within is not None:
            return await run_within(within, self._settle, ordered, worker)
        alone = self._statements.one_statement and not self._tells_settled
        run = self.database.statement if alone else self.database.write
        return await run(self._settle, ordered, worker)

    def _settle(self, connection: Connection, settlements: list[Settlement], worker: str) -> list[ClaimLost]:
        if len({one.claim.task.id for one in settlements}) == len(settlements):
            return self._settle_each(connection, settlements, worker)
        # Several claims of one task, all but one of them lost: what was written is told by id, so they must not meet.
        lost, rest = [], settlements
        while rest:
            first = {one.claim.task.id: one for one in reversed(rest)}
            lost += self._settle_each(connection, list(reversed(first.values())), worker)
            rest = [one for one in rest if first[one.claim.task.id] is not one]
        return lost

    def _settle_each(self, connection: Connection, settlements: list[Settlement], worker: str) -> list[ClaimLost]:
        statements = self._statements
        now = self._now()
        rows = [self._settlement_row(settlement, now) for settlement in settlements]
        parameters = statements.settle_batch.parameters(rows) | statements.times(now)
        if statements.one_statement:
            parameters |= self._rollup(settlements, worker, now) | {"amount": len(settlements)}
        written = set(connection.execute(statements.settle, parameters).scalars())
        all_written = len(written) == len(settlements)
        settled = settlements if all_written else [one for one in settlements if one.claim.task.id in written]
        if not statements.one_statement and settled:
            assert now is not None
            ended_at = (now - EPOCH) // MICROSECOND
            history = [self._attempt_row(one, worker, ended_at) for one in settled]
            connection.exec_driver_sql(statements.record_attempts, history)
        if settled and not (statements.one_statement and all_written):
            connection.execute(statements.roll_up, self._rollup(settled, worker, now) | statements.times(now))
        if self._tells_settled and settled:
            self.beside.settled(connection, settled)
        if all_written:
            return []
        return [ClaimLost(one.claim) for one in settlements if one.claim.task.id not in written]

    def _settlement_row(self, settlement: Settlement, now: datetime | None) -> tuple[Any, ...]:
        claim, outcome, state, failures, delay, error, explained, elapsed, _ = settlement
        if (delay is None) is (state is State.WAITING):
            raise UsageError(
                f"a settlement has a delay if its task waits again, and only then, not {delay} and {state}"
            )
        task, statements = claim.task, self._statements
        count = self.table.count_to_store(settlement)
        word = () if statements.same_words else (self.table.words.settled(state, failures=failures),)
        extra = () if statements.extra is None else statements.extra.row(settlement)
        if not statements.one_statement:
            due = None if delay is None or now is None else now + delay
            return (task.id, claim.claim_id, state.value, count, due, outcome, error, *word, *extra)
        began = () if statements.keeps_start else (_started_at(claim),)
        error_class = explanation = None
        if explained is not None:
            error_class, explanation = explained.error_class, explained.json_text()
        return (
            task.id, claim.claim_id, state.value, count, delay, outcome, error, *word,
            task.failures + 1, elapsed.total_seconds(), error_class, explanation, *began, *extra,
        )  # fmt: skip

    def _attempt_row(self, settlement: Settlement, worker: str, now: int) -> tuple[Any, ...]:
        """The history of a settlement in the order and the form of SQLite's columns."""
        claim, outcome, state, _, delay, error, explained, elapsed, _ = settlement
        started_at = _started_at(claim)
        return (
            self.name,
            str(claim.task.id),
            claim.claim_id.hex,
            claim.task.failures + 1,
            None if started_at is None else (started_at - EPOCH) // MICROSECOND,
            now,
            outcome,
            state.value,
            worker,
            elapsed.total_seconds(),
            None if delay is None else delay.total_seconds(),
            None if explained is None else explained.error_class.value,
            error,
            None if explained is None else explained.json_text(),
        )

    def _rollup(self, settled: list[Settlement], worker: str, now: datetime | None) -> dict[str, Any]:
        """The parameters of `Statements.roll_up`."""
        amounts = rolled_up(settled)
        named = {"ledger": self.name, "worker": worker}
        if self._statements.one_statement:
            counted = [amounts[name] for name in COUNTED]
            return {"amounts": counted, "run_seconds": amounts["run_seconds"], **named}
        assert now is not None
        return {**amounts, **named, "minute": _minute(now)}

    async def extend(self, claims: Sequence[Claim], lease: timedelta) -> list[ClaimLost]:
        """See `Ledger.extend`."""
        if not claims:
            return []
        ordered = sorted(claims, key=lambda claim: claim.task.id)
        return await self.database.statement(self._extend, ordered, lease)

    def _extend(self, connection: Connection, claims: list[Claim], lease: timedelta) -> list[ClaimLost]:
        batch = self._statements.extend_batch.parameters((claim.task.id, claim.claim_id) for claim in claims)
        rows = connection.execute(self._statements.extend, batch | self._times(lease=lease))
        extended = {tuple(row) for row in rows}
        return [ClaimLost(claim) for claim in claims if (claim.task.id, claim.claim_id) not in extended]

    # --- what is due ------------------------------------------------------------------------------------------------

    async def next_due(self, *, kinds: Sequence[str] | None = None) -> timedelta | None:
        """See `Ledger.next_due`."""
        known = await self._known(kinds)
        if known == []:
            return None
        return await self.database.read(self._next_due, known)

    def _next_due(self, connection: Connection, kinds: list[str] | None) -> timedelta | None:
        soonest = self._seconds_left(connection, kinds)
        return None if soonest is None else timedelta(seconds=min(soonest, 1e9))

    async def oldest_due(self) -> timedelta | None:
        """How long the oldest due task has been waiting; None where none is due."""
        known = await self._known(None)
        if known == []:
            return None
        return await self.database.read(self._oldest_due, known)

    def _oldest_due(self, connection: Connection, kinds: list[str] | None) -> timedelta | None:
        left = self._seconds_left(connection, kinds, signed=True)
        return None if left is None or left > 0 else timedelta(seconds=min(-left, 1e9))

    def _seconds_left(self, connection: Connection, kinds: list[str] | None, *, signed: bool = False) -> float | None:
        """The seconds until the next task is due; below zero, if signed, where it has been due."""
        size = KINDS_PER_CLAIM_MAX
        parts = [[]] if kinds is None else [kinds[start : start + size] for start in range(0, len(kinds), size)]
        times, left = self._times(), []
        for part in parts:
            statement = self._statements.next_due(len(part), signed=signed)
            left.append(connection.execute(statement, times | self._kind_parameters(part)).scalar())
        return min((float(one) for one in left if one is not None), default=None)

    async def open_kinds(self) -> list[str]:
        """See `Ledger.open_kinds`."""
        if self.table.kind is None:
            return []
        return await self.database.read(self._open_kinds)

    def _open_kinds(self, connection: Connection) -> list[str]:
        return sorted(connection.execute(self._statements.open_kinds).scalars())

    def waiter(self) -> AbstractContextManager[Waiter]:
        """See `Ledger.waiter`."""
        return self.database.waiter(self.name)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """See `Ledger.transaction`."""
        return self.database.transaction()

    # --- what is open, for people ------------------------------------------------------------------------------------

    def open_branches(
        self,
        connection: Connection,  # noqa: ARG002 - where the rows wait in queues, one must be asked for
        state: State,
        kind: str | None,
        conditions: Sequence[ColumnElement[bool]],
    ) -> list[Branch]:
        """The rows that wait or are held, of a kind, by the indexes that claims use: in the order of their instants."""
        rows = self._statements.rows
        if kind is not None:
            conditions = [self._column("kind") == kind, *conditions]
        by_index = (
            [(rows.first_tries(), rows.first_due()), (rows.retries(), rows.retry_due())]
            if state is State.WAITING
            else [(rows.held(), rows.lease_end())]
        )
        return [Branch(self._statements.id, at, self.sql_table, and_(held, *conditions)) for held, at in by_index]

    def count_held(self, connection: Connection, counted_max: int) -> int:
        """How many tasks are held now, up to so many."""
        held: Select[Any] = select(literal_column("1")).select_from(self.sql_table).where(self._statements.rows.held())
        few = held.limit(counted_max).subquery()
        return int(connection.execute(select(func.count()).select_from(few)).scalar_one())

    # --- acts of people and systems ---------------------------------------------------------------------------------

    async def redrive(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """See `Ledger.redrive`."""
        changed = await self._act(Act.REDRIVE, State.WAITING, ids, actor)
        if changed:
            self.database.wake(self.name)
        return changed

    async def cancel(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """See `Ledger.cancel`."""
        return await self._act(Act.CANCEL, State.CANCELLED, ids, actor)

    def cancel_sync(self, ids: Sequence[TaskId], actor: Actor, *, within: Within) -> list[TaskId]:
        """The same for code without an event loop, in the caller's `Connection` or `Session`."""
        connection, ordered = sync_connection(within), sorted(set(ids))
        changed: list[TaskId] = []
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

    async def overdue(self, kind: str, age: timedelta, *, limit: int = IDS_MAX) -> list[TaskId]:
        """Waiting tasks of a kind that have been due for so long, oldest first."""
        return await self.database.read(self._overdue, kind, age, limit)

    def _overdue(self, connection: Connection, kind: str, age: timedelta, limit: int) -> list[TaskId]:
        statements, due = self._statements, self._statements.rows.column("due")
        found = select(statements.id).where(
            statements.rows.state(State.WAITING), self._column("kind") == kind, statements.older_than(due)
        )
        parameters = statements.age(self._now(), age)
        return list(connection.execute(found.order_by(due).limit(limit), parameters).scalars())

    async def _act(self, act: Act, state: State, ids: Sequence[TaskId], actor: Actor, note: Any = None) -> list[TaskId]:
        changed: list[TaskId] = []
        ordered = sorted(set(ids))
        for start in range(0, len(ordered), IDS_MAX):
            some = ordered[start : start + IDS_MAX]
            changed += await self.database.write(self._act_on, act, state, some, actor, note)
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
        statement = self._statements.act(act, state)
        changed: list[TaskId] = list(connection.execute(statement, {"ids": ids, **self._times()}).scalars())
        self._record(connection, act, changed, actor)
        if act is not Act.CANCEL:
            self._forget(connection, [str(id_) for id_ in changed], schema.dead)
        if changed and act in ENDING_ACTS:
            worker = self._actor if alone else f"act:{uuid4()}"
            self._count_flow(connection, ENDING_ACTS[act], len(changed), worker, self._now())
        if changed:
            self.beside.acted(connection, act, state, changed, actor, note)
        if changed and state is State.WAITING:
            self.database.announce(connection, self.name, soon=True)
        return changed

    def _record(self, connection: Connection, act: Act, ids: Sequence[TaskId], actor: Actor) -> None:
        if not ids:
            return
        at = self.present(connection)
        deeds = [
            {"ledger": self.name, "task_id": str(id_), "at": at, "act": act.value, "actor": actor.name, "reason": actor.reason}
            for id_ in ids
        ]  # fmt: skip
        connection.execute(self._statements.record_deeds, deeds)

    def present(self, connection: Connection) -> datetime:
        """The instant, as this ledger's statements see it."""
        return self.database.present(connection)

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
        return self._return(sync_connection(within), returns, actor) if returns else []

    def _return(
        self, connection: Connection, returns: Sequence[Return], actor: Actor, *, soon: bool = False
    ) -> list[TaskId]:
        # By id, as every batch here; of a task that is named twice the larger count stays.
        largest = {one.id: one for one in sorted(returns, key=lambda one: (one.id, one.failures))}
        now = self._now()
        rows = [
            (one.id, one.failures, one.delay if now is None else now + one.delay, one.failures > 0, one.error)
            for one in largest.values()
        ]
        parameters = self._statements.return_batch.parameters(rows) | self._statements.times(now)
        changed: list[TaskId] = list(connection.execute(self._statements.return_, parameters).scalars())
        self._record(connection, Act.RETURN, changed, actor)
        self._forget(connection, [str(id_) for id_ in changed], schema.dead)
        if any(largest[id_].delay <= ANNOUNCE_HORIZON for id_ in changed):
            self.database.announce(connection, self.name, soon=soon)
        return changed

    async def prune(self, states: Sequence[State], older_than: timedelta, *, limit: int = 1000) -> int:
        """See `Ledger.prune`."""
        if not states:
            return 0
        return await self.database.write(self._prune, self._statements.prune(states), older_than, limit)

    def _prune(self, connection: Connection, statement: Any, older_than: timedelta, limit: int) -> int:
        parameters = {"limit": limit, **self._statements.age(self._now(), older_than)}
        gone = [str(id_) for id_ in connection.execute(statement, parameters).scalars()]
        self._forget(connection, gone, schema.attempt, schema.deed, schema.dead)
        if gone:
            self._count_flow(connection, "pruned", len(gone), self._adder, self._now())
        return len(gone)

    def _forget(self, connection: Connection, ids: Sequence[str], *tables: Table) -> None:
        """Delete what some of our tables hold about tasks."""
        for start in range(0, len(ids), IDS_MAX):
            named = {"ledger": self.name, "task_ids": ids[start : start + IDS_MAX]}
            for table in tables:
                connection.execute(self._statements.forget(table), named)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def find(
        self, filter: Filter, *, cursor: TaskId | None = None, limit: int = 100, newest_first: bool = False
    ) -> Page[Task]:
        """See `LedgerReader.find`."""
        if not 1 <= limit <= PAGE_MAX:
            raise UsageError(f"limit must lie between 1 and {PAGE_MAX}, not {limit!r}")
        return await self.database.read(self._find, filter, cursor, limit, newest_first=newest_first)

    def _find(
        self, connection: Connection, filter: Filter, cursor: TaskId | None, limit: int, *, newest_first: bool
    ) -> Page[Task]:
        id_ = self._statements.id
        where = self.conditions.of(filter, lambda: self.present(connection))
        statement = select(*self._statements.table.c).where(*where)
        if cursor is not None:
            statement = statement.where(id_ < cursor if newest_first else id_ > cursor)
        statement = statement.order_by(id_.desc() if newest_first else id_).limit(limit + 1)
        tasks = [self._reader.task(row) for row in connection.execute(statement)]
        return Page(items=tasks[:limit], cursor=tasks[limit - 1].id if len(tasks) > limit else None)

    def _column(self, role: str) -> Any:
        if not self._statements.has(role):
            raise UsageError(f"{self.name!r} has no column for {role}: name it in its LedgerTable to filter by it")
        return self._statements.rows.column(role)

    def read_id(self, text: str) -> TaskId:
        """The id that a person wrote, in the type of the id column."""
        read: Callable[[str], TaskId]
        match self._statements.id.type:
            case Integer():
                read, kind = _number, "a number"
            case Uuid():
                read, kind = UUID, "a UUID"
            case _:
                read, kind = _text, "text without NUL"
        try:
            return read(text)
        except ValueError:
            raise UsageError(f"an id of {self.name!r} is {kind}, not {text!r:.80}") from None

    async def get(self, id: TaskId) -> Task | None:
        """See `LedgerReader.get`."""
        page = await self.find(Filter(ids=[id]), limit=1)
        return page.items[0] if page.items else None

    async def get_by_key(self, key: str) -> Task | None:
        """See `LedgerReader.get_by_key`."""
        page = await self.find(Filter(key=key), limit=1)
        return page.items[0] if page.items else None

    async def attempts(self, id: TaskId) -> list[Attempt]:
        """See `LedgerReader.attempts`."""
        return await self.database.read(self._attempts, id)

    def _attempts(self, connection: Connection, id: TaskId) -> list[Attempt]:
        t = schema.attempt
        found = select(t).where(t.c.ledger == self.name, t.c.task_id == str(id)).order_by(t.c.ended_at, t.c.number)
        return [
            Attempt(
                claim_id=row.claim_id, number=row.number, started_at=row.started_at, ended_at=row.ended_at,
                outcome=row.outcome, state=State(row.state), worker=row.worker,
                duration=timedelta(seconds=row.duration_seconds),
                delay=None if row.delay_seconds is None else timedelta(seconds=row.delay_seconds),
                error_class=row.error_class, error=row.error, explanation=row.explanation,
            )
            for row in connection.execute(found)
        ]  # fmt: skip

    async def deeds(self, id: TaskId) -> list[Deed]:
        """See `LedgerReader.deeds`."""
        return await self.database.read(self._deeds, id)

    def _deeds(self, connection: Connection, id: TaskId) -> list[Deed]:
        t = schema.deed
        found = select(t).where(t.c.ledger == self.name, t.c.task_id == str(id)).order_by(t.c.id)
        return [Deed(at=row.at, act=row.act, actor=row.actor, reason=row.reason) for row in connection.execute(found)]

    async def counts(self, *, counted_max: int = 100_000) -> Mapping[State, int]:
        """See `LedgerReader.counts`."""
        return await self.database.read(self._counts, counted_max)

    def _counts(self, connection: Connection, counted_max: int) -> dict[State, int]:
        counted = {}
        for state in State:
            few: Select[Any] = select(literal_column("1")).where(self._statements.rows.state(state)).limit(counted_max)
            rows = few.select_from(self._statements.table).subquery()
            counted[state] = connection.execute(select(func.count()).select_from(rows)).scalar_one()
        return counted


def _minute(now: datetime) -> datetime:
    return now.replace(second=0, microsecond=0)


def _number(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError("no database column holds it")
    return number


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL takes none in a text")
    return text


def _started_at(claim: Claim) -> datetime | None:
    """The start of the run that ended: of the lost one, if this claim only buries it."""
    return claim.claimed_at if claim.abandoned is None else claim.abandoned.claimed_at
