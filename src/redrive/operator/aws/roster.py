"""The roster in items: one for each worker, which goes by itself when nobody has seen it for long."""

from collections.abc import Sequence
from datetime import timedelta

from redrive.ledgers.aws.attributes import Item, from_iso, from_item, to_iso
from redrive.ledgers.aws.expressions import put, query
from redrive.ledgers.aws.on_table import OnTable
from redrive.ledgers.aws.table import TTL
from redrive.operator.roster import KEPT, SHOWN_MAX, WorkerSeen, WorkerSign

WORKERS = "W"


class ItemRoster(OnTable):
    """The roster of one table; see `Roster`."""

    async def sign(self, sign: WorkerSign) -> None:
        """See `Roster.sign`. DynamoDB has no clock, so nobody knows how far that of a worker is off."""
        now = self._now()
        values = {
            "host": sign.host, "pid": sign.pid, "version": sign.version, "started_at": to_iso(sign.started_at),
            "slots": sign.slots, "holds": {ledger: dict(kinds) for ledger, kinds in sign.holds.items()},
            "seen_at": to_iso(now), "stopped_at": to_iso(now) if sign.stops else None,
            "lease_seconds": None if sign.lease is None else int(sign.lease.total_seconds()),
            "tries_a_minute": sign.tries_a_minute,
            "held_since": None if sign.held_since is None else to_iso(sign.held_since),
            TTL: int((now + KEPT).timestamp()),
        }  # fmt: skip
        await self._dynamo.write([put((WORKERS, sign.name), values)])

    async def seen(self, *, limit: int = SHOWN_MAX) -> Sequence[WorkerSeen]:
        """See `Roster.seen`."""
        items = await self._dynamo.query(query(("pk", WORKERS)))
        return sorted(map(_seen, items), key=lambda one: (one.seen_at, one.name), reverse=True)[:limit]

    async def forget(self) -> int:
        """See `Roster.forget`. What is older than it is kept goes by itself."""
        return 0


def _seen(item: Item) -> WorkerSeen:
    values = from_item(item)
    stopped, lease, held = values.get("stopped_at"), values.get("lease_seconds"), values.get("held_since")
    return WorkerSeen(
        name=values["sk"], host=values["host"], pid=values["pid"], version=values.get("version"),
        slots=values["slots"], holds=values["holds"], started_at=from_iso(values["started_at"]),
        seen_at=from_iso(values["seen_at"]), stopped_at=None if stopped is None else from_iso(stopped),
        lease=None if lease is None else timedelta(seconds=int(lease)),
        tries_a_minute=values.get("tries_a_minute"), held_since=None if held is None else from_iso(held),
    )  # fmt: skip
