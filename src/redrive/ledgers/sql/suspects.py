"""Suspects: tasks whose last run was lost with its worker. Each is run again alone, so that the next loss names the culprit.

The history says which they are: its last attempt that came to an end is a lost one. Only a row whose last error is that of a lost
worker can be one, so a claim without such rows asks nothing more; a table without a column for errors is asked every time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, Text, and_, bindparam, case, func, or_, select

from redrive.core.decide import LEASE_EXPIRED_ERROR
from redrive.core.task import Claim, TaskId, is_alone
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.predicates import quoted


class Suspects:
    """What the history knows of lost workers, for the tasks of one ledger."""

    def __init__(self, ledger: str, mapped: Mapped) -> None:
        self._ledger = ledger
        self._has_errors = mapped.has("last_error")
        self._batch = Batch(mapped.dialect, {"task_id": Text()})

    def marked(self, connection: Connection, claims: list[Claim]) -> list[Claim]:
        """The claims of a batch, suspects marked as such."""
        doubted = self.doubted(claims)
        if not doubted:
            return claims
        found = set(self._ask(connection, self._lost_last, [claim.task.id for claim in doubted]).scalars())
        return [claim._replace(suspect=True) if str(claim.task.id) in found else claim for claim in claims]

    def doubted(self, claims: list[Claim]) -> list[Claim]:
        """Those of which only the history knows whether they are."""
        return [one for one in claims if one.task.last_error == LEASE_EXPIRED_ERROR] if self._has_errors else claims

    def lost_alone(self, connection: Connection, ids: Sequence[TaskId]) -> Counter[str]:
        """How many runs of each task were lost while nothing ran beside them, by the text of its id."""
        lost: Iterable[tuple[str, UUID]] = self._ask(connection, self._losses, ids) if ids else ()
        return Counter(task_id for task_id, claim_id in lost if is_alone(claim_id))

    def _ask(self, connection: Connection, question: Select[Any], ids: Sequence[TaskId]) -> Any:
        batch = self._batch.parameters((str(id_),) for id_ in ids)
        return connection.execute(question, batch | {"ledger": self._ledger})

    @cached_property
    def _lost_last(self) -> Select[Any]:
        """Those of a batch of tasks whose last end is a lost worker. A release is no end: the run was only put off."""
        t = schema.attempt
        lost = t.c.outcome == quoted("lease_expired")
        lost_at = func.max(case((lost, t.c.ended_at)))
        ended_at = func.max(case((and_(~lost, t.c.outcome != quoted("released")), t.c.ended_at)))
        # A run cannot be lost in the instant in which the one before it ended, but it can end in the instant of a loss.
        found = self._of_batch(t.c.task_id).group_by(t.c.task_id)
        return found.having(and_(lost_at.is_not(None), or_(ended_at.is_(None), lost_at > ended_at)))

    @cached_property
    def _losses(self) -> Select[Any]:
        """The lost runs of a batch of tasks."""
        t = schema.attempt
        return self._of_batch(t.c.task_id, t.c.claim_id).where(t.c.outcome == quoted("lease_expired"))

    def _of_batch(self, *columns: Any) -> Select[Any]:
        t = schema.attempt
        mine = self._batch.match("task_id", t.c.task_id)
        return select(*columns).join(self._batch.rows, mine).where(t.c.ledger == bindparam("ledger", type_=Text))
