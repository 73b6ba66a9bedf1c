"""Sessions in items. DynamoDB deletes those that have ended by itself, but late, up to days: therefore the time is looked at too."""

import math
from datetime import datetime

from redrive.access.aws.keys import KEYS, key_of_item, key_place
from redrive.access.keys import ApiKey, digest
from redrive.ledgers.aws.attributes import Key, from_iso, from_item, to_iso
from redrive.ledgers.aws.expressions import delete, put
from redrive.ledgers.aws.on_table import OnTable
from redrive.ledgers.aws.table import TTL


class ItemSessions(OnTable):
    """The sessions of one table; see `Sessions`."""

    async def start(self, token: str, key_id: str, now: datetime, expires_at: datetime) -> None:  # noqa: ARG002
        """See `Sessions.start`."""
        key = await self._dynamo.get((KEYS, key_id))
        values = {
            "key_id": key_id,
            "sha256": None if key is None else key["sha256"]["S"],  # so that a request asks twice, not three times
            "ends_at": to_iso(expires_at),
            TTL: math.ceil(expires_at.timestamp()),
        }
        await self._dynamo.write([put(_place(token), values)])

    async def find(self, token: str) -> tuple[ApiKey, datetime] | None:
        """See `Sessions.find`."""
        item = await self._dynamo.get(_place(token))
        if item is None or "sha256" not in item:
            return None
        session = from_item(item)
        ends = from_iso(session["ends_at"])
        key = await self._dynamo.get(key_place(session["sha256"])) if self._now() < ends else None
        return None if key is None else (key_of_item(key), ends)

    async def end(self, token: str) -> None:
        """See `Sessions.end`."""
        await self._dynamo.write([delete(_place(token))])


def _place(token: str) -> Key:
    return f"SE#{digest(token)}", "SE"
