"""Redrive operations in tables of SQL, beside the tasks that they bring back.

Every round of an operation is one transaction under the lock of its row: what has ended is counted, what follows is decided
(`core.operation`), and what is released is redriven and marked. A process that is killed at any line leaves the last commit. Only
rounds and people's acts lock the row of an operation, and before all else: no claim and no settlement ever waits for it.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, update

from redrive.core.gate_rules import read_rate
from redrive.core.operation import (
    AFTER,
    ENDED,
    Course,
    Fate,
    FateTally,
    Finish,
    Halt,
    OperationAct,
    OperationState,
    Release,
    Wait,
    after_release,
    check_act,
    decide_next,
    let_go_on,
    next_slot,
    read_share,
)
from redrive.core.task import Attempt, TaskId
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.on_database import OnDatabase, looks, reads, writes
from redrive.ledgers.sql.reader import attempt_of_row
from redrive.operator.cursors import Position, read_cursor, write_cursor
from redrive.operator.failed_again import FailedAgain, failed_again
from redrive.operator.operations import (
    BY_ITSELF,
    KEPT,
    DeadSet,
    EditedTask,
    LatelyMoved,
    Moved,
    NewOperation,
    Operation,
    SetTask,
    StepTally,
    asked_json,
)
from redrive.operator.ports import OperatorLedger
from redrive.operator.sql.cursors import behind
from redrive.operator.sql.dead_set import dead_set
from redrive.operator.sql.operation_rounds import CHANGED_SINCE, follow, release
from redrive.operator.sql.operation_rows import get_row, locked, read_row, read_task, record, write_row
from redrive.operator.sql.reads import LOOK_WITHIN, Reads
from redrive.ports import Actor, Filter, Page

HOLD = timedelta(seconds=10)
"""So long an operation is one holder's; each round begins it anew. A holder that dies holds it up no longer than that."""
LOCKED_WAIT = timedelta(seconds=1)
LOOK_AGAIN = timedelta(milliseconds=250)
"""How soon somebody looks again what has ended."""
FORGOTTEN_AT_ONCE = 2000
OPEN_MAX = 200
MOVED_SHOWN_MAX = 3000
TRIES_LOOKED_AT_MAX = 5000
_o, _t, _e = schema.operation, schema.operation_task, schema.edit
_TALLIED = schema.FATES_COUNTED
_MET = ("done", "failed", "ended", "skipped", "unfit")
# What is open is said to the letter as in the index, which holds nothing else.
_OPEN = (
    select(_o)
    .where(or_(_o.c.ended_at.is_(None), _o.c.released > _o.c.done + _o.c.failed + _o.c.ended))
    .order_by(_o.c.id)
    .limit(OPEN_MAX)
)


class SqlOperations(OnDatabase):
    """The operations of one database; see `Operations`."""

    note: str | None = None

    # --- people ---------------------------------------------------------------------------------------------------------

    @writes
    def start(self, connection: Connection, new: NewOperation) -> Operation:
        """See `Operations.start`."""
        now, id_ = self._database.present(connection), secrets.token_hex(4)
        row = {
            "id": id_, "ledger": new.ledger, "state": OperationState.GATHERING.value, "asked": asked_json(new.asked),
            "until": new.asked.until or now, "steps": list(new.ramp.steps), "rate": new.ramp.rate,
            "rate_seconds": new.ramp.per.total_seconds(), "halt": new.ramp.halt,
            "edit": None if new.edit is None else new.edit.as_json(),
            "started_by": new.actor, "reason": new.reason, "started_at": now, "approval_over": new.approval_over,
            "step": 0, "in_step": 0, "braked_ended": 0, "braked_failed": 0, "why": new.reason,
            "changed_by": new.actor, "changed_at": now, **dict.fromkeys(_TALLIED, 0),
        }  # fmt: skip
        connection.execute(insert(_o), row)
        operation = read_row(connection.execute(select(_o).where(_o.c.id == id_)).one())
        record(connection, operation, "started", Actor(name=new.actor, reason=new.reason), now)
        return operation

    @writes
    def act(self, connection: Connection, id: str, act: OperationAct, actor: Actor) -> Operation:
        """See `Operations.act`."""
        operation, now = locked(connection, id), self._database.present(connection)
        after = AFTER[act]
        check_act(act, operation.state, after)
        course = replace(operation.course, state=after)
        changes: dict[str, Any] = {}
        if act is OperationAct.APPROVE:
            if actor.name == operation.started_by:
                raise UsageError(f"{actor.name} has started this operation: somebody else must approve it")
            changes = {"approved_by": actor.name, "approved_at": now}
        if act is OperationAct.RESUME and operation.state is OperationState.HALTED:
            course = let_go_on(course, operation.tally)
        if after in ENDED:
            changes["ended_at"] = now
        write_row(
            connection,
            operation,
            course,
            operation.tally,
            why=actor.reason,
            changed_by=actor.name,
            changed_at=now,
            **changes,
        )
        record(connection, operation, _PAST[act], actor, now)
        return get_row(connection, id)

    @writes
    def change(
        self,
        connection: Connection,
        id: str,
        actor: Actor,
        *,
        rate: str | int | None = None,
        halt: float | str | None = None,
    ) -> Operation:
        """See `Operations.change`."""
        operation, now = locked(connection, id), self._database.present(connection)
        if operation.state in ENDED:
            raise UsageError(f"the operation is {operation.state}: there is nothing left to change")
        ramp = operation.course.ramp
        if rate is not None:
            amount, per = read_rate(rate)
            ramp = replace(ramp, rate=amount, per=per)
        if halt is not None:
            ramp = replace(ramp, halt=read_share(halt))
        values = {"rate": ramp.rate, "rate_seconds": ramp.per.total_seconds(), "halt": ramp.halt}
        connection.execute(update(_o).where(_o.c.id == id).values(**values))
        record(connection, operation, f"changed to {ramp.rate_words}", actor, now)
        return get_row(connection, id)

    # --- looking --------------------------------------------------------------------------------------------------------

    @reads
    def get(self, connection: Connection, id: str) -> Operation | None:
        """See `Operations.get`."""
        row = connection.execute(select(_o).where(_o.c.id == id)).one_or_none()
        return None if row is None else read_row(row)

    @looks(LOOK_WITHIN)
    def page(
        self,
        connection: Connection,
        *,
        ledger: str | None = None,
        state: OperationState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Operation]:
        """See `Operations.page`."""
        found = select(_o).order_by(_o.c.started_at.desc(), _o.c.id.desc()).limit(limit + 1)
        if ledger is not None:
            found = found.where(_o.c.ledger == ledger)
        if state is not None:
            found = found.where(_o.c.state == state.value)
        if cursor is not None:
            last = read_cursor(cursor, str)
            last.check(datetime)
            found = found.where(behind(_o.c.started_at, _o.c.id, last, connection, newest_first=True))
        rows = connection.execute(found).all()
        following = None
        if len(rows) > limit:
            edge = rows[limit - 1]
            following = write_cursor(Position(edge.started_at, edge.id))
        return Page(items=[read_row(row) for row in rows[:limit]], cursor=following)

    @reads
    def open(self, connection: Connection) -> list[Operation]:
        """See `Operations.open`."""
        return [read_row(row) for row in connection.execute(_OPEN)]

    @looks(LOOK_WITHIN)
    def steps(self, connection: Connection, id: str) -> list[StepTally]:
        """See `Operations.steps`. The first steps are counted; what they leave of the whole is the last one's."""
        operation = get_row(connection, id)
        last, tally = len(operation.course.ramp.steps), operation.tally
        first = sum(operation.course.ramp.steps) + tally.skipped + tally.unfit
        counted = (
            select(_t.c.step, _t.c.fate, func.count(), func.min(_t.c.released_at), func.max(_t.c.ended_at))
            .where(_t.c.operation == id, _t.c.position < first, _t.c.step < last)
            .group_by(_t.c.step, _t.c.fate)
        )
        found: dict[int, list[Any]] = {}
        for row in connection.execute(counted):
            found.setdefault(row[0], []).append(row)
        steps = [
            StepTally(
                number=step + 1,
                fates={Fate(row[1]): row[2] for row in rows},
                began_at=min((row[3] for row in rows if row[3] is not None), default=None),
                ended_at=max((row[4] for row in rows if row[4] is not None), default=None),
            )
            for step, rows in sorted(found.items())
        ]
        whole = {Fate.RELEASED: tally.out} | {Fate(name): getattr(tally, name) for name in _MET}
        rest = {fate: amount - sum(step.fates.get(fate, 0) for step in steps) for fate, amount in whole.items()}
        if any(rest.values()):
            steps.append(StepTally(number=last + 1, fates={fate: amount for fate, amount in rest.items() if amount}))
        return steps

    @looks(LOOK_WITHIN)
    def skipped(self, connection: Connection, id: str) -> dict[str, int]:
        """See `Operations.skipped`."""
        left_out = and_(_t.c.operation == id, _t.c.fate == Fate.SKIPPED.value)
        counted = select(_t.c.why, func.count()).where(left_out).group_by(_t.c.why)
        return {why or CHANGED_SINCE: amount for why, amount in connection.execute(counted)}

    @looks(LOOK_WITHIN)
    def moved_since(self, connection: Connection, id: str, since: datetime) -> LatelyMoved:
        """See `Operations.moved_since`. The last of each fate: what was released last stands last in the set."""
        released: list[datetime] = []
        ended: list[datetime] = []
        for fate in (Fate.RELEASED, Fate.DONE, Fate.FAILED, Fate.ENDED):
            last = select(_t.c.released_at, _t.c.ended_at).where(_t.c.operation == id, _t.c.fate == fate.value)
            for row in connection.execute(last.order_by(_t.c.position.desc()).limit(MOVED_SHOWN_MAX)):
                released += [row.released_at] if row.released_at is not None and row.released_at >= since else []
                ended += [row.ended_at] if row.ended_at is not None and row.ended_at >= since else []
        return LatelyMoved(released=released, ended=ended)

    @looks(LOOK_WITHIN)
    def failed_again(self, connection: Connection, id: str, *, limit: int = 100) -> list[FailedAgain]:
        """See `Operations.failed_again`. Their tries are read in one statement, by the index of the history."""
        failed = select(_t).where(_t.c.operation == id, _t.c.fate == Fate.FAILED.value)
        rows = connection.execute(failed.order_by(_t.c.position.desc()).limit(limit)).all()
        if not rows:
            return []
        ledger, a = get_row(connection, id).ledger, schema.attempt
        told = select(a).where(
            a.c.ledger == ledger, a.c.task_id.in_([row.task_id for row in rows]), a.c.error.is_not(None)
        )
        tries: dict[str, list[Attempt]] = {}
        for row in connection.execute(told.order_by(a.c.ended_at.desc(), a.c.number.desc()).limit(TRIES_LOOKED_AT_MAX)):
            tries.setdefault(row.task_id, []).append(attempt_of_row(row))
        return [failed_again(read_task(row), tries.get(row.task_id, [])) for row in rows]

    @looks(LOOK_WITHIN)
    def tasks(
        self, connection: Connection, id: str, *, fate: Fate | None = None, cursor: int | None = None, limit: int = 50
    ) -> Page[SetTask]:
        """See `Operations.tasks`."""
        found = select(_t).where(_t.c.operation == id).order_by(_t.c.position).limit(limit + 1)
        if fate is not None:
            found = found.where(_t.c.fate == fate.value)
        if cursor is not None:
            found = found.where(_t.c.position > cursor)
        rows = connection.execute(found).all()
        items = [read_task(row) for row in rows[:limit]]
        return Page(items=items, cursor=items[-1].position if len(rows) > limit else None)

    @looks(LOOK_WITHIN)
    def edits(
        self,
        connection: Connection,
        *,
        operation: str | None = None,
        ledger: str | None = None,
        task_id: str | None = None,
        limit: int = 50,
    ) -> list[EditedTask]:
        """See `Operations.edits`."""
        found = select(_e).order_by(_e.c.id.desc()).limit(limit)
        if operation is not None:
            found = found.where(_e.c.operation == operation)
        if task_id is not None:
            found = found.where(_e.c.ledger == ledger, _e.c.task_id == task_id)
        names = ("task_id", "at", "operation", "actor", "reason", "before", "after")
        return [EditedTask(**{name: getattr(row, name) for name in names}) for row in connection.execute(found)]

    async def dead_set(self, ledger: OperatorLedger, asked: Filter, *, limited: bool) -> DeadSet:
        """See `Operations.dead_set`."""
        of_sql = _of_sql(ledger)
        of_sql.conditions.check(asked)
        return await Reads(await self._opened(), limited=limited).count(dead_set, of_sql, asked)

    # --- carrying on ----------------------------------------------------------------------------------------------------

    @writes
    def gather(self, connection: Connection, id: str, page: Page[TaskId], *, after: str | None) -> Operation:
        """See `Operations.gather`."""
        operation = locked(connection, id)
        if operation.state is not OperationState.GATHERING or operation.cursor != after:
            return operation
        first = operation.tally.total
        if page.items:
            rows = [
                {"operation": id, "position": first + number, "task_id": str(task_id), "fate": Fate.FROZEN.value}
                for number, task_id in enumerate(page.items)
            ]
            connection.execute(insert(_t), rows)
        tally = replace(operation.tally, total=first + len(page.items))
        if page.cursor is not None:
            write_row(connection, operation, operation.course, tally, cursor=str(page.cursor))
            return get_row(connection, id)
        now = self._database.present(connection)
        course, why = _begun(operation, tally)
        check_act(OperationAct.FREEZE, operation.state, course.state)
        ended = now if course.state in ENDED else None
        write_row(connection, operation, course, tally, cursor=None, frozen_at=now, ended_at=ended, why=why)
        return get_row(connection, id)

    async def advance(self, id: str, ledger: OperatorLedger, holder: str, *, after: int | None) -> Moved:
        """See `Operations.advance`."""
        database, of_sql = await self._opened(), _of_sql(ledger)
        moved = await database.stand_in_line(LOCKED_WAIT, self._advance, id, of_sql, holder, after)
        if moved.released:
            database.wake(of_sql.name)
        return moved

    def _advance(self, connection: Connection, id: str, ledger: SqlLedger, holder: str, after: int | None) -> Moved:
        row = connection.execute(select(_o).where(_o.c.id == id).with_for_update()).one()
        operation, now = read_row(row), self._database.present(connection)
        if row.held_by not in (None, holder) and row.held_until is not None and row.held_until > now:
            return Moved(operation=operation, wait=row.held_until - now, followed=-1)
        held: dict[str, Any] = {"held_by": holder, "held_until": now + HOLD}
        course = operation.course
        tally, followed = follow(connection, ledger, operation, after, now)
        released: Sequence[TaskId] = ()
        wait = LOOK_AGAIN
        match decide_next(course, tally, now):
            case Release(amount, course, _):
                released, tally = release(connection, ledger, operation, course, tally, amount, now)
                course = after_release(course, len(released), now) if released else course
                wait = (
                    min(LOOK_AGAIN, max(timedelta(0), next_slot(course, now) - now))
                    if course.ramp.rate
                    else timedelta(0)
                )
            case Wait(_, until):
                wait = LOOK_AGAIN if until is None else min(LOOK_AGAIN, until - now)
            case Halt(says):
                check_act(OperationAct.HALT, course.state, OperationState.HALTED)
                course = replace(course, state=OperationState.HALTED)
                held |= {"why": says, "changed_by": BY_ITSELF, "changed_at": now}
                record(connection, operation, "halted", Actor(name=BY_ITSELF, reason=says), now)
            case Finish(says):
                check_act(OperationAct.FINISH, course.state, OperationState.DONE)
                course = replace(course, state=OperationState.DONE)
                held |= {"why": says, "changed_by": BY_ITSELF, "changed_at": now, "ended_at": now}
                record(connection, operation, "done", Actor(name=BY_ITSELF, reason=says), now)
            case _:
                pass
        write_row(connection, operation, course, tally, **held)
        changed = course.state is not operation.state
        by = held.get("changed_by", operation.changed_by)
        operation = replace(operation, course=course, tally=tally, why=held.get("why", operation.why), changed_by=by)
        return Moved(operation=operation, released=released, wait=wait, changed=changed, followed=followed)

    @writes
    def let_go(self, connection: Connection, holder: str) -> None:
        """See `Operations.let_go`."""
        connection.execute(update(_o).where(_o.c.held_by == holder).values(held_by=None, held_until=None))

    @writes
    def forget(self, connection: Connection) -> int:
        """See `Operations.forget`."""
        old = _o.c.ended_at < self._database.present(connection) - KEPT
        id_ = connection.execute(select(_o.c.id).where(old).order_by(_o.c.ended_at).limit(1)).scalar()
        if id_ is None:
            return 0
        some = select(_t.c.position).where(_t.c.operation == id_).order_by(_t.c.position).limit(FORGOTTEN_AT_ONCE)
        gone = connection.execute(delete(_t).where(_t.c.operation == id_, _t.c.position.in_(some))).rowcount
        if gone < FORGOTTEN_AT_ONCE:
            connection.execute(delete(_o).where(_o.c.id == id_))
        return gone + 1


_PAST = {
    OperationAct.APPROVE: "approved",
    OperationAct.PAUSE: "paused",
    OperationAct.RESUME: "resumed",
    OperationAct.HALT: "halted",
    OperationAct.GIVE_BACK: "given back",
}


def _of_sql(ledger: OperatorLedger) -> SqlLedger:
    assert isinstance(ledger, SqlLedger), "a ledger of this database"
    return ledger


def _begun(operation: Operation, tally: FateTally) -> tuple[Course, str]:
    """Where an operation goes whose set is complete, and why."""
    if not tally.total:
        return replace(operation.course, state=OperationState.DONE), "no task matched"
    over = operation.approval_over
    if over is not None and tally.total > over:
        return replace(operation.course, state=OperationState.UNAPPROVED), operation.why
    return replace(operation.course, state=OperationState.RUNNING), operation.why
