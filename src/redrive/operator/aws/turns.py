"""Turns in items: whoever writes first has it. A mark of our own tells, after a lost answer, that it was us."""

from datetime import datetime, timedelta
from uuid import uuid4

from redrive.ledgers.aws.attributes import Item, Key, from_micros, to_micros
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Action, Update, put_new
from redrive.ledgers.aws.on_table import OnTable


class ItemTurns(OnTable):
    """The turns of one table; see `Turns`."""

    async def take(self, name: str, lasts: timedelta) -> datetime | None:
        """See `Turns.take`. Most turns were taken before, by somebody: only the first one of all is another write."""
        now, mark = self._now(), uuid4().hex
        until, place = to_micros(now + lasts), _place(name)
        again = Update(place).require("until", "<=", to_micros(now)).set("until", until).set("taker", mark)
        taken, there = await self._write(again.action(), mark)
        if not taken and there is None:
            taken, _ = await self._write(put_new(place, {"until": until, "taker": mark}), mark)
        return from_micros(until) if taken else None

    async def give_back(self, name: str, until: datetime) -> None:
        """See `Turns.give_back`."""
        ours = Update(_place(name)).require("until", "=", to_micros(until)).set("until", to_micros(self._now()))
        await self._write(ours.action(), "")

    async def forget(self) -> int:
        """See `Turns.forget`: there are few, one for each chore and for each service that ever ran."""
        return 0

    async def _write(self, action: Action, mark: str) -> tuple[bool, Item | None]:
        """Whether it was written, by this call; otherwise what is there."""
        try:
            await self._dynamo.write([action])
        except RefusedError as error:
            item = error.reasons[0].item
            ours = error.uncertain and item is not None and item["taker"]["S"] == mark
            return ours, item
        return True, None


def _place(name: str) -> Key:
    return f"T#{name}", "T"
