"""Why something was not written: the claim was lost, or it holds and somebody has locked its row.

Only a write that came back short asks, so this costs nothing as long as nothing is wrong.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, Text, Uuid, and_, bindparam, select

from redrive.core.task import Claim, ClaimLocked, ClaimLost, Unwritten
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.mapped import Mapped


class Fences:
    """The claims of one ledger, by id and fence."""

    def __init__(self, mapped: Mapped) -> None:
        fence = mapped.rows.column("claim_id")
        self._batch = Batch(mapped.dialect, {"id": mapped.id.type, "claim_id": fence.type})
        still = and_(self._batch.match("id", mapped.id), fence == self._batch.rows.c.claim_id)
        unlocked = mapped.dialect.unlocked(mapped.id, select(mapped.id).where(still))
        self.free = still if unlocked is None else unlocked
        """Which rows an update finds: of the claims that hold those that nobody else has locked."""
        self._held = select(mapped.id, fence).where(still)
        self._locked = self._held.with_for_update(of=mapped.table)
        self._endings = Batch(mapped.dialect, {"task_id": Text(), "claim_id": Uuid()})
        a, ended = schema.attempt.c, self._endings.rows.c
        self._ended_by = select(a.task_id, a.claim_id).where(
            a.ledger == bindparam("ledger", type_=Text),
            self._endings.match("task_id", a.task_id),
            a.claim_id == ended.claim_id,
            a.worker == bindparam("worker", type_=Text),
        )

    def parameters(self, claims: Iterable[Claim]) -> dict[str, object]:
        """These claims, for `free`."""
        return self._batch.parameters((claim.task.id, claim.claim_id) for claim in claims)

    def hold(self, connection: Connection, claim: Claim) -> bool:
        """Whether the claim holds, and until the commit nobody can take it: what is written meanwhile is written under its fence."""
        return connection.execute(self._locked, self.parameters([claim])).first() is not None

    def why(self, connection: Connection, claims: Sequence[Claim]) -> list[Unwritten]:
        """Why these were not written."""
        if not claims:
            return []
        held = {tuple(row) for row in connection.execute(self._held, self.parameters(claims))}
        return [ClaimLocked(claim) if (claim.task.id, claim.claim_id) in held else ClaimLost(claim) for claim in claims]

    def ended_by(self, connection: Connection, claims: Sequence[Claim], ledger: str, worker: str) -> list[Claim]:
        """Those of the claims that ended in an attempt of this worker."""
        ended = self._endings.parameters((str(claim.task.id), claim.claim_id) for claim in claims)
        found = connection.execute(self._ended_by, ended | {"ledger": ledger, "worker": worker})
        mine = {(task_id, claim_id) for task_id, claim_id in found}
        return [claim for claim in claims if (str(claim.task.id), claim.claim_id) in mine]
