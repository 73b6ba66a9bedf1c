"""What is written in the same commit when somebody acts on messages: who sent them out again, and when."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from redrive import State
from redrive.errors import UsageError
from redrive.events import Act
from redrive.extend import Beside
from redrive.lane import Actor
from redrive.operator.json_views import instant_json
from redrive.operator.words import safe_text
from redrive.systems.relay import headers as amqp
from redrive.systems.relay.tables import RETRY_QUEUE, retry_queue

NAME_CHARS_MAX = 200
_WORDS = RETRY_QUEUE.words
_c = retry_queue.c

_MARK = (
    update(retry_queue)
    .where(_c.id == bindparam("marked_id"))
    .values(headers=bindparam("marked", type_=_c.headers.type))
)


class ActsOnMessages(Beside):
    """Writes beside every act on the table of the relay; see `Beside`."""

    refused_ends = frozenset({State.DONE})
    refused_edit = "a message goes out byte for byte as it came in: publish a corrected one instead, and close this one"

    def acted(
        self, connection: Connection, act: Act, state: State, ids: Sequence[Any], actor: Actor, note: Any
    ) -> None:
        """Say in the headers of what goes out again who wanted it and when."""
        del act, note
        if state in self.refused_ends:
            raise UsageError(
                f"a message is {_WORDS.done!r} when the broker has confirmed it, not because somebody says so: "
                f"resolve it as cancelled, which is {_WORDS.cancelled!r} in this table"
            )
        if state is not State.WAITING:
            return
        # Read and written, not changed by SQL: PostgreSQL's functions refuse a NUL in any of them. The rows are ours until the
        # commit, and the act has just set when they changed.
        by = safe_text(actor.name)[:NAME_CHARS_MAX]
        found = connection.execute(select(_c.id, _c.headers, _c.updated_at).where(_c.id.in_(ids)))
        marked = [
            {
                "marked_id": row.id,
                "marked": (row.headers or {})
                | {amqp.RESUBMITTED_BY: by, amqp.RESUBMITTED_AT: instant_json(row.updated_at)},
            }
            for row in found
        ]
        connection.execute(_MARK, marked)
