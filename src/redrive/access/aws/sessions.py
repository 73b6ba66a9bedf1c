"""Sessions in items. DynamoDB deletes those that have ended by itself, but late, up to days: therefore the time is looked at too."""

import math
from datetime import datetime
from uuid import uuid4

from redrive.access.aws.keys import KEYS, key_of_item, key_place
from redrive.access.keys import PROGRAM, SESSIONS_AUDITED, ApiKey, digest
from redrive.ledgers.aws.attributes import Key, from_iso, from_item, to_iso
from redrive.ledgers.aws.expressions import Action, delete, put
from redrive.ledgers.aws.history import audit_action
from redrive.ledgers.aws.on_table import OnTable
from redrive.ledgers.aws.table import TTL
from redrive.ports import Actor


class ItemSessions(OnTable):
    """The sessions of one table; see `Sessions`."""

    async def start(self, token: str, key_id: str, now: datetime, expires_at: datetime, *, by: Actor = PROGRAM) -> None:
        """See `Sessions.start`."""
        key = await self._dynamo.get((KEYS, key_id))
        values = {
            "key_id": key_id,
            "sha256": None if key is None else key["sha256"]["S"],  # so that a request asks twice, not three times
            "ends_at": to_iso(expires_at),
            TTL: math.ceil(expires_at.timestamp()),
        }
        await self._dynamo.write([put(_place(token), values), _record(key_id, "logged in", now, by)])

    async def find(self, token: str) -> tuple[ApiKey, datetime] | None:
        """See `Sessions.find`."""
        item = await self._dynamo.get(_place(token))
        if item is None or "sha256" not in item:
            return None
        session = from_item(item)
        ends = from_iso(session["ends_at"])
        key = await self._dynamo.get(key_place(session["sha256"])) if self._now() < ends else None
        return None if key is None else (key_of_item(key), ends)

    async def end(self, token: str, *, by: Actor = PROGRAM) -> None:
        """See `Sessions.end`."""
        item = await self._dynamo.get(_place(token))
        if item is not None:
            key_id = from_item(item)["key_id"]
            await self._dynamo.write([delete(_place(token)), _record(key_id, "logged out", self._now(), by)])


def _record(key_id: str, act: str, now: datetime, by: Actor) -> Action:
    """Write down who did it, in the same transaction."""
    mark = uuid4().hex
    return audit_action((f"KH#{key_id}", f"S#{to_iso(now)}#{mark}"), SESSIONS_AUDITED, key_id, mark, act, by, now)


def _place(token: str) -> Key:
    return f"SE#{digest(token)}", "SE"
