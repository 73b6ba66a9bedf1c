"""Progress in a database: written under the fence of the claim, so that a late worker changes nothing of the next try's."""

import json

from sqlalchemy import Connection, func, select

from redrive.core.progress import Progress
from redrive.core.task import Claim, TaskId
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.fences import Fences

_p = schema.progress


class SqlProgress:
    """The progress of the tasks of one ledger: see `ProgressNotes`."""

    def __init__(self, database: Database, ledger: str, fences: Fences) -> None:
        self._database = database
        self._ledger = ledger
        self._fences = fences

    async def write(self, claim: Claim, share: float | None, words: str | None, checkpoint: str | None) -> bool:
        """See `ProgressNotes.write`."""
        return await self._database.write(self._write, claim, share, words, checkpoint)

    def _write(
        self, connection: Connection, claim: Claim, share: float | None, words: str | None, checkpoint: str | None
    ) -> bool:
        if not self._fences.hold(connection, claim):
            return False
        row = {
            "ledger": self._ledger, "task_id": str(claim.task.id), "claim_id": claim.claim_id,
            "at": self._database.present(connection), "share": share, "words": words, "checkpoint": checkpoint,
        }  # fmt: skip
        adding = self._database.insert(_p)
        values = {name: adding.excluded[name] for name in ("claim_id", "at", "share", "words")}
        values["checkpoint"] = func.coalesce(adding.excluded.checkpoint, _p.c.checkpoint)
        connection.execute(adding.on_conflict_do_update(index_elements=[_p.c.ledger, _p.c.task_id], set_=values), row)
        return True

    async def read(self, id_: TaskId) -> Progress | None:
        """See `ProgressNotes.read`."""
        return await self._database.read(self._read, id_)

    def _read(self, connection: Connection, id_: TaskId) -> Progress | None:
        asked = select(_p).where(_p.c.ledger == self._ledger, _p.c.task_id == str(id_))
        row = connection.execute(asked).first()
        if row is None:
            return None
        checkpoint = None if row.checkpoint is None else json.loads(row.checkpoint)
        return Progress(at=row.at, share=row.share, words=row.words, checkpoint=checkpoint)
