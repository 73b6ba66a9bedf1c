"""The marks of effects in a database: entered under the fence of a claim, and closed in the commit that says what became of it."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Text, and_, bindparam, case, select, update

from redrive.core.decide import Settlement
from redrive.core.effect_mark import OPEN, EffectAnswer, EffectMark, MarkState, read_then
from redrive.core.task import Claim, TaskId
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.fences import Fences
from redrive.ledgers.sql.predicates import quoted
from redrive.ports import Actor

_e = schema.effect
_OPEN = tuple(state.value for state in OPEN)
_UNANSWERED = ("error", "why", "came_to", "answer", "answered_by")
"""What a new try leaves empty."""


class SqlEffectMarks:
    """The marks of one ledger: see `EffectMarks`."""

    def __init__(self, database: Database, ledger: str, fences: Fences) -> None:
        self._database = database
        self._ledger = ledger
        self._fences = fences
        self.in_use = False
        """Whether a handler of this process has an effect; until then no settlement looks for marks."""

    # --- for the engine ---------------------------------------------------------------------------------------------

    async def enter(self, claim: Claim) -> EffectMark | None:
        """See `EffectMarks.enter`."""
        return await self._database.write(self._enter, claim)

    def _enter(self, connection: Connection, claim: Claim) -> EffectMark | None:
        if not self._fences.hold(connection, claim):
            return None
        now, by_probe = self._database.present(connection), _e.c.answered_by == "probe"
        row = {
            "ledger": self._ledger, "task_id": str(claim.task.id), "state": MarkState.INSIDE.value,
            "claim_id": claim.claim_id, "first_at": now, "entered_at": now, "changed_at": now, "probes": 0,
            **dict.fromkeys(_UNANSWERED),
        }  # fmt: skip
        adding = self._database.insert(_e)
        # Of a question that was answered for certain nothing is left: the key counts from this try on.
        anew = and_(_e.c.state == MarkState.ANSWERED.value, ~by_probe)
        values: dict[Any, Any] = {name: adding.excluded[name] for name in row if name not in ("ledger", "task_id")}
        values["first_at"] = case((anew, adding.excluded.first_at), else_=_e.c.first_at)
        entering = adding.on_conflict_do_update(index_elements=[_e.c.ledger, _e.c.task_id], set_=values)
        first_at = connection.execute(entering.returning(_e.c.first_at), row).scalar_one()
        return EffectMark(state=MarkState.INSIDE, claim_id=claim.claim_id, first_at=first_at, entered_at=now)

    async def of(self, ids: Sequence[TaskId]) -> dict[TaskId, EffectMark]:
        """See `EffectMarks.of`."""
        found = await self._database.read(self._read, [str(id_) for id_ in ids])
        return {id_: found[str(id_)] for id_ in ids if str(id_) in found}

    def _read(self, connection: Connection, ids: Sequence[str]) -> dict[str, EffectMark]:
        rows = connection.execute(select(_e).where(_e.c.ledger == self._ledger, _e.c.task_id.in_(ids)))
        return {row.task_id: read_mark(row) for row in rows}

    async def asked(
        self, state: MarkState, *, cursor: str | None = None, limit: int = 100
    ) -> list[tuple[str, EffectMark]]:
        """See `EffectMarks.asked`."""
        return await self._database.read(self._asked, state, cursor, limit)

    def _asked(
        self, connection: Connection, state: MarkState, cursor: str | None, limit: int
    ) -> list[tuple[str, EffectMark]]:
        # The state as a literal: only so a planner knows that the partial index serves.
        some = select(_e).where(_e.c.ledger == self._ledger, _e.c.state == quoted(state.value))
        if cursor is not None:
            some = some.where(_e.c.task_id > cursor)
        return [(row.task_id, read_mark(row)) for row in connection.execute(some.order_by(_e.c.task_id).limit(limit))]

    # --- in the commits of others -----------------------------------------------------------------------------------

    def any_in(self, settlements: Iterable[Settlement]) -> bool:
        """Whether one of them says something of an effect."""
        return self.in_use and any(one.claim.effect is not None for one in settlements)

    def write(self, connection: Connection, settled: Sequence[Settlement]) -> None:
        """Write the marks that come with these settlements, which are written."""
        now = self._database.present(connection)
        rows = [self._row(one.claim.task.id, one.claim.effect, now) for one in settled if one.claim.effect is not None]
        if rows:
            connection.execute(_WRITE, rows)

    def _row(self, id_: TaskId, mark: EffectMark, now: datetime) -> dict[str, Any]:
        return {
            "its_ledger": self._ledger, "its_task": str(id_), "its_claim": mark.claim_id,
            "state": mark.state.value, "probes": mark.probes, "error": mark.error, "why": mark.why,
            "came_to": None if mark.then is None else mark.then.as_json(),
            "answer": mark.answer, "answered_by": mark.answered_by, "changed_at": now,
        }  # fmt: skip

    def open_among(self, connection: Connection, ids: Sequence[TaskId]) -> list[TaskId]:
        """Those of the tasks whose question is open: nobody may let them run."""
        named = _e.c.task_id.in_([str(id_) for id_ in ids])
        asked = select(_e.c.task_id).where(_e.c.ledger == self._ledger, named, _e.c.state.in_(_OPEN))
        found = set(connection.execute(asked).scalars())
        return [id_ for id_ in ids if str(id_) in found] if found else []

    def answer(self, connection: Connection, ids: Sequence[TaskId], answer: EffectAnswer, actor: Actor) -> None:
        """Close the open questions of these tasks as a person has answered them; the key counts anew from here."""
        now = self._database.present(connection)
        named = _e.c.task_id.in_([str(id_) for id_ in ids])
        closed = update(_e).where(_e.c.ledger == self._ledger, named, _e.c.state.in_(_OPEN))
        values = {"state": MarkState.ANSWERED.value, "answer": answer.value, "answered_by": actor.name}
        connection.execute(closed.values(**values, why=actor.reason, came_to=None, changed_at=now))


_WRITE = (
    update(_e)
    .where(
        _e.c.ledger == bindparam("its_ledger", type_=Text),
        _e.c.task_id == bindparam("its_task", type_=Text),
        _e.c.claim_id == bindparam("its_claim", type_=_e.c.claim_id.type),
    )
    .values({name: bindparam(name) for name in ("state", "probes", *_UNANSWERED, "changed_at")})
)
"""Change marks, each only if no later try has entered since."""


def read_mark(row: Any) -> EffectMark:
    """The mark that a row holds."""
    return EffectMark(
        state=MarkState(row.state),
        claim_id=row.claim_id,
        first_at=row.first_at,
        entered_at=row.entered_at,
        probes=row.probes,
        error=row.error,
        why=row.why,
        then=None if row.came_to is None else read_then(row.came_to),
        answer=None if row.answer is None else EffectAnswer(row.answer),
        answered_by=row.answered_by,
    )
