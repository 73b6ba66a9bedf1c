"""What one round of an operation does to tasks: see what has ended of those that are out, and release the next ones."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, and_, insert, select, update

from redrive.core.operation import Course, Fate, FateTally, fate_of
from redrive.core.task import TaskId
from redrive.errors import EditError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.acts import UNANSWERED
from redrive.operator.operations import Operation, read_asked
from redrive.ports import Actor, WholeAct

FOLLOWED_AT_ONCE = 500
LOOKED_AT_MIN = 20
"""How many of the set one round looks at for those that can still be released."""
CHANGED_SINCE = "it has changed since the set was frozen"
_t, _e = schema.operation_task, schema.edit


def follow(
    connection: Connection, ledger: SqlLedger, operation: Operation, after: int | None, now: datetime
) -> tuple[FateTally, int]:
    """See what has become of some tasks that are out, mark those that have ended, and count them; and where to go on."""
    if not operation.tally.out or after is None:
        return operation.tally, -1
    are_out = and_(_t.c.operation == operation.id, _t.c.fate == Fate.RELEASED.value)
    some = select(_t.c.position, _t.c.task_id).where(are_out, _t.c.position > after).order_by(_t.c.position)
    rows = connection.execute(some.limit(FOLLOWED_AT_ONCE)).all()
    ids = {row.position: ledger.read_id(row.task_id) for row in rows}
    standing = ledger.standing(connection, list(ids.values()))
    met: dict[Fate, list[int]] = {}
    for position, id_ in ids.items():
        fate = fate_of(*standing.get(id_, (None, 0)))
        if fate is not Fate.RELEASED:
            met.setdefault(fate, []).append(position)
    tally = operation.tally
    for fate, positions in met.items():
        marked = update(_t).where(are_out, _t.c.position.in_(positions)).values(fate=fate.value, ended_at=now)
        connection.execute(marked)
        tally = replace(tally, **{fate.value: getattr(tally, fate.value) + len(positions)})
    return tally, rows[-1].position if len(rows) == FOLLOWED_AT_ONCE else -1


def release(
    connection: Connection,
    ledger: SqlLedger,
    operation: Operation,
    course: Course,
    tally: FateTally,
    amount: int,
    now: datetime,
) -> tuple[list[TaskId], FateTally]:
    """Redrive the next of the set that are still as they were frozen; the others on the way are skipped, and counted."""
    some = select(_t.c.position, _t.c.task_id).where(_t.c.operation == operation.id, _t.c.fate == Fate.FROZEN.value)
    rows = connection.execute(some.order_by(_t.c.position).limit(max(amount, LOOKED_AT_MIN))).all()
    ids = {row.position: ledger.read_id(row.task_id) for row in rows}
    frozen = ledger.unchanged(connection, read_asked({}, operation.until, None), list(ids.values()))
    actor = Actor(
        name=operation.started_by,
        reason=f"operation {operation.id}: {operation.reason}",
        whole=WholeAct(id=operation.id, asked=operation.asked),
    )
    unanswered = (
        set[TaskId]() if ledger.effects is None else set(ledger.effects.open_among(connection, [*ids.values()]))
    )
    chosen: dict[TaskId, int] = {}
    skipped: dict[int, str] = {}
    unfit: dict[int, str] = {}
    for position, id_ in ids.items():
        if len(chosen) == amount:
            break
        if id_ not in frozen:
            skipped[position] = CHANGED_SINCE
        elif id_ in unanswered:
            skipped[position] = UNANSWERED
        elif (
            operation.edit is not None
            and (wrong := _edited(connection, ledger, operation, id_, actor, now)) is not None
        ):
            unfit[position] = wrong
        else:
            chosen[id_] = position
    changed = ledger.redrive_on(connection, list(chosen), actor) if chosen else []
    skipped |= dict.fromkeys(set(chosen.values()) - {chosen[id_] for id_ in changed}, CHANGED_SINCE)
    of_set = _t.c.operation == operation.id
    if changed:
        out = update(_t).where(of_set, _t.c.position.in_([chosen[id_] for id_ in changed]))
        connection.execute(out.values(fate=Fate.RELEASED.value, step=course.step, released_at=now))
    for fate, positions in ((Fate.SKIPPED, skipped), (Fate.UNFIT, unfit)):
        for why in set(positions.values()):
            these = [position for position, said in positions.items() if said == why]
            left = update(_t).where(of_set, _t.c.position.in_(these))
            connection.execute(left.values(fate=fate.value, step=course.step, ended_at=now, why=why))
    tally = replace(
        tally,
        released=tally.released + len(changed),
        skipped=tally.skipped + len(skipped),
        unfit=tally.unfit + len(unfit),
    )
    return changed, tally


def _edited(
    connection: Connection, ledger: SqlLedger, operation: Operation, id_: TaskId, actor: Actor, now: datetime
) -> str | None:
    """Change the payload of a dead task, and keep the old one; why it does not fit, if it does not."""
    assert operation.edit is not None
    before = ledger.payload_of(connection, id_)
    try:
        after = operation.edit.apply(before)
    except EditError as error:
        return str(error)
    ledger.set_payload(connection, id_, after)
    row = {
        "ledger": ledger.name, "task_id": str(id_), "at": now, "operation": operation.id,
        "actor": actor.name, "reason": operation.reason, "before": before, "after": after,
    }  # fmt: skip
    connection.execute(insert(_e), row)
    return None
