"""Results in a database: what handlers returned, written in the commit that says that their tasks are done.

A task without a result has no row, and costs one look at a value that is None.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, select

from redrive.core.decide import Settlement
from redrive.core.payload_types import as_json
from redrive.core.states import State
from redrive.core.task import TaskId, encode_payload
from redrive.errors import PayloadError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.upsert import upsert

RESULT_BYTES_MAX = 64 * 1024
WARNED_KINDS_MAX = 1000

_log = logging.getLogger("redrive")


class Results:
    """Writes the results of one ledger."""

    def __init__(self, database: Database, ledger: str) -> None:
        self._database = database
        self._ledger = ledger
        self._warned: set[str] = set()

    @staticmethod
    def any_in(settlements: Iterable[Settlement]) -> bool:
        """Whether there is a result to be kept."""
        return any(one.result is not None and one.state is State.DONE for one in settlements)

    def write(self, connection: Connection, settled: Sequence[Settlement]) -> None:
        """Keep the results of these, which are written."""
        texts = [(one, self._text(one)) for one in settled if one.result is not None and one.state is State.DONE]
        at = self._database.present(connection)
        rows = [
            {"ledger": self._ledger, "task_id": str(one.claim.task.id), "result": text, "at": at}
            for one, text in texts
            if text is not None
        ]
        if rows:
            connection.execute(upsert(self._database, schema.result), rows)

    def read(self, connection: Connection, id_: TaskId) -> Any:
        """The result of a task; None where it has none."""
        r = schema.result
        asked = select(r.c.result).where(r.c.ledger == self._ledger, r.c.task_id == str(id_))
        text = connection.execute(asked).scalar()
        return None if text is None else json.loads(text)

    def _text(self, settlement: Settlement) -> str | None:
        """What cannot be kept is no reason to do the task again: it is done, and the log says once for each kind what is missing."""
        try:
            return encode_payload(as_json(settlement.result), RESULT_BYTES_MAX, called="result")
        except PayloadError as error:
            kind = settlement.claim.task.kind
            if kind not in self._warned and len(self._warned) < WARNED_KINDS_MAX:
                self._warned.add(kind)
                _log.warning("the result of %r tasks is not kept: %s", kind, error)
            return None
