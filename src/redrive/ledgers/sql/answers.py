"""People who answer: whether an effect happened, and that a task which runs be cancelled."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, Text, bindparam, delete, select

from redrive.core.effect_mark import EffectAnswer
from redrive.core.states import Act, State
from redrive.core.stop import Stop
from redrive.core.task import TaskId
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.acts import Acting
from redrive.ledgers.sql.audit_lines import record
from redrive.ledgers.sql.base import IDS_MAX
from redrive.ledgers.sql.reader import Reading
from redrive.ledgers.sql.upsert import upsert
from redrive.ports import Actor

CANCEL_RUNNING = "cancel running"
"""How the audit calls it: what becomes of it is for the run to say."""
STOPS_MAX = 1000
"""How many are looked at in one go."""
ENDS = {
    EffectAnswer.HAPPENED: (Act.RESOLVE, State.DONE, "it happened"),
    EffectAnswer.NOT_HAPPENED: (Act.REDRIVE, State.WAITING, "it did not happen"),
    EffectAnswer.CLOSED: (Act.RESOLVE, State.CANCELLED, "closed without an answer"),
}
"""What follows from an answer: the act, where it leads, and what the history says."""

_s = schema.stop
_STOPS = select(_s).where(_s.c.ledger == bindparam("its_ledger", type_=Text)).limit(STOPS_MAX)
_GONE = delete(_s).where(
    _s.c.ledger == bindparam("its_ledger", type_=Text),
    _s.c.task_id == bindparam("its_task", type_=Text),
    _s.c.claim_id == bindparam("its_claim", type_=_s.c.claim_id.type),
)


class Answering(Acting, Reading):
    """The part of a ledger through which people answer."""

    async def answer(self, ids: Sequence[TaskId], answer: EffectAnswer, actor: Actor) -> list[TaskId]:
        """See `OperatorLedger.answer`."""
        if self.effects is None:
            raise UsageError(f"{self.name!r} keeps no marks of effects: there is nothing to answer")
        changed: list[TaskId] = []
        for start in range(0, len(ids), IDS_MAX):
            changed += await self.database.write(self._answer, ids[start : start + IDS_MAX], answer, actor)
        if changed and answer is EffectAnswer.NOT_HAPPENED:
            self.database.wake(self.name)
        return changed

    def _answer(
        self, connection: Connection, ids: Sequence[TaskId], answer: EffectAnswer, actor: Actor
    ) -> list[TaskId]:
        assert self.effects is not None
        act, state, said = ENDS[answer]
        asked = self.effects.open_among(connection, sorted(set(ids)))
        dead = select(self._mapped.id).where(self._mapped.id.in_(asked), self._mapped.rows.state(State.DEAD))
        locked = list(connection.execute(dead.order_by(self._mapped.id).with_for_update()).scalars()) if asked else []
        if not locked:
            return []
        self.effects.answer(connection, locked, answer, actor)
        return self._act_on(connection, act, state, locked, replace(actor, reason=f"{said}: {actor.reason}"))

    async def ask_to_stop(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """See `OperatorLedger.ask_to_stop`."""
        if self.table.words.cancelled is None:
            raise UsageError(f"{self.name!r} has no word for cancelled: its tasks cannot end as cancelled")
        asked: list[TaskId] = []
        for start in range(0, len(ids), IDS_MAX):
            asked += await self.database.write(self._ask_to_stop, sorted(set(ids[start : start + IDS_MAX])), actor)
        if asked:
            self.database.wake(self.name)
        return asked

    def _ask_to_stop(self, connection: Connection, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        fence = self._mapped.rows.column("claim_id")
        held = select(self._mapped.id, fence).where(self._mapped.id.in_(ids), fence.is_not(None))
        runs = connection.execute(held.order_by(self._mapped.id)).all()
        if not runs:
            return []
        at = self.present(connection)
        rows = [
            {
                "ledger": self.name, "task_id": str(id_), "claim_id": claim_id,
                "actor": actor.name, "reason": actor.reason, "at": at,
            }
            for id_, claim_id in runs
        ]  # fmt: skip
        connection.execute(upsert(self.database, _s), rows)
        record(
            connection, ledger=self.name, act=CANCEL_RUNNING, things=[str(id_) for id_, _ in runs], actor=actor, at=at
        )
        self.database.announce(connection, self.name, soon=True)
        return [id_ for id_, _ in runs]

    async def stops_asked(self) -> list[Stop]:
        """See `Ledger.stops_asked`. What has ended since is forgotten."""
        stops = await self.database.read(self._read_stops)
        if not stops:
            return []
        held = await self.database.read(self._stops_held, stops)
        if gone := [stop for stop in stops if stop not in held]:
            await self.database.write(self._forget_stops, gone)
        return [stop for stop in stops if stop in held]

    def _read_stops(self, connection: Connection) -> list[Stop]:
        rows = connection.execute(_STOPS, {"its_ledger": self.name})
        return [Stop(self.read_id(row.task_id), row.claim_id, row.actor, row.reason) for row in rows]

    def _stops_held(self, connection: Connection, stops: Sequence[Stop]) -> set[Stop]:
        """Those whose runs still hold their claims."""
        fence = self._mapped.rows.column("claim_id")
        asked = select(self._mapped.id, fence).where(self._mapped.id.in_([stop.task_id for stop in stops]))
        fences = {id_: str(claim_id) for id_, claim_id in connection.execute(asked)}
        return {stop for stop in stops if fences.get(stop.task_id) == str(stop.claim_id)}

    def _forget_stops(self, connection: Connection, stops: Sequence[Stop]) -> None:
        rows = [{"its_ledger": self.name, "its_task": str(one.task_id), "its_claim": one.claim_id} for one in stops]
        connection.execute(_GONE, rows)
