"""What was given out of keys' minutes, each in an item that is forgotten by itself; and what signs cursors."""

from secrets import token_hex

from redrive.items import Dynamo, RefusedError, Update, decode, put_new

LASTS_SECONDS = 300
_SECRET = ("S#cursor", "S")


class ItemRateLimits:
    """See `RateLimits`."""

    def __init__(self, dynamo: Dynamo) -> None:
        self._dynamo = dynamo

    async def add(self, key_id: str, minute: int, amount: int) -> int:
        """See `RateLimits.add`. Where an answer is lost it is counted twice: better than not at all."""
        update = Update((f"L#{key_id}", str(minute))).add("used", amount)
        after = await self._dynamo.update(update.set("expires_at", minute * 60 + LASTS_SECONDS).action())
        return int(decode(after["used"]))


class ItemCursorSecret:
    """See `CursorSecret`. The first who needs it makes it."""

    def __init__(self, dynamo: Dynamo) -> None:
        self._dynamo = dynamo

    async def read(self) -> str:
        """See `CursorSecret.read`."""
        item = await self._dynamo.get(_SECRET)
        if item is not None:
            return str(decode(item["secret"]))
        made = token_hex(32)
        try:
            await self._dynamo.write([put_new(_SECRET, {"secret": made})])
        except RefusedError as error:
            there = error.reasons[0].item
            return made if there is None else str(decode(there["secret"]))
        return made
