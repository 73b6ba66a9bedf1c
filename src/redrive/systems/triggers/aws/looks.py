"""Keys and heads in one question, and events with their endpoints in another: what is asked with every request and every delivery."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from redrive.access.keys import ApiKey
from redrive.items import Dynamo, DynamoLedger, Gather, Item, Key, head_from, head_key
from redrive.systems.triggers.aws import places
from redrive.systems.triggers.aws.payloads import Payloads
from redrive.systems.triggers.ports import Found
from redrive.systems.triggers.values import Address, DueEvent, Endpoint

TOGETHER_MAX = 50
"""How many are read at once: one question brings a hundred items."""

ReadKeys = Callable[[Iterable[str]], Awaitable[Mapping[str, ApiKey]]]


class _Ask(NamedTuple):
    hashed: str
    event_id: str | None


class ItemLooks:
    """See `Looks`."""

    def __init__(self, ledger: DynamoLedger, read_keys: ReadKeys) -> None:
        self._ledger = ledger
        self._read_keys = read_keys
        self._looks: Gather[_Ask, Found] = Gather(self._look, items_max=TOGETHER_MAX)

    async def look(self, hashed: str, event_id: str | None) -> Found:
        """See `Looks.look`."""
        [found] = await self._looks([_Ask(hashed, event_id)])
        return found

    async def _look(self, asks: Sequence[_Ask]) -> list[Found]:
        keys = await self._read_keys({ask.hashed for ask in asks})
        ids = {ask.event_id for ask in asks if ask.event_id is not None}
        heads = await self._ledger.heads(ids) if ids else {}
        found = []
        for ask in asks:
            head = heads.get(ask.event_id or "")
            found.append(
                Found(keys.get(ask.hashed), None if head is None else (head.user_id, places.read_status(head)))
            )
        return found


class ItemLoads:
    """See `Loads`."""

    def __init__(self, ledger: DynamoLedger, payloads: Payloads) -> None:
        self._dynamo: Dynamo = ledger.dynamo
        self._payloads = payloads
        self._loads: Gather[Address, tuple[DueEvent | None, Endpoint | None]] = Gather(
            self._load, items_max=TOGETHER_MAX
        )

    async def load(self, address: Address) -> tuple[DueEvent | None, Endpoint | None]:
        """See `Loads.load`."""
        [found] = await self._loads([address])
        return found

    async def _load(self, asked: Sequence[Address]) -> list[tuple[DueEvent | None, Endpoint | None]]:
        items = await self._dynamo.get_many(key for one in asked for key in _keys(one))
        payloads = await self._payloads.read(items, (one.event_id for one in asked))
        return [(_event(items, payloads, one), _endpoint(items, one)) for one in asked]


def _keys(address: Address) -> tuple[Key, Key, Key]:
    return (
        head_key(address.event_id),
        places.payload_key(address.event_id),
        places.endpoint_key(address.user_id, address.endpoint_id),
    )


def _event(items: Mapping[Key, Item], payloads: Mapping[str, str], address: Address) -> DueEvent | None:
    item, payload = items.get(head_key(address.event_id)), payloads.get(address.event_id)
    head = None if item is None else head_from(item)
    if head is None or head.tombstone or payload is None:
        return None
    return places.read_due(head, payload)


def _endpoint(items: Mapping[Key, Item], address: Address) -> Endpoint | None:
    item = items.get(places.endpoint_key(address.user_id, address.endpoint_id))
    return None if item is None else places.read_endpoint(item)
