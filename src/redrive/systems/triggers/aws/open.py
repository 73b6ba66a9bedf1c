"""All stores of triggers over one table and one queue, and the ledger of their deliveries."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redrive.items import Dynamo, DynamoLedger, Objects, Queue
from redrive.systems.kit.secret_keeper import SecretKeeper
from redrive.systems.triggers.aws.desk import ItemEndpointBook
from redrive.systems.triggers.aws.endpoints import ItemEndpoints
from redrive.systems.triggers.aws.flows import EventFlows
from redrive.systems.triggers.aws.follow import EventFollower
from redrive.systems.triggers.aws.inbox import ItemInbox
from redrive.systems.triggers.aws.intake import ItemIntake
from redrive.systems.triggers.aws.limits import ItemCursorSecret, ItemRateLimits
from redrive.systems.triggers.aws.looks import ItemLoads, ItemLooks, ReadKeys
from redrive.systems.triggers.aws.payloads import Payloads
from redrive.systems.triggers.ledger import TRIGGER_DELIVERIES
from redrive.systems.triggers.ports import StoreClock, Stores
from redrive.systems.triggers.values import COUNTED_MAX, Change


def open_item_stores(
    dynamo: Dynamo,
    queue: Queue,
    objects: Objects | None,
    clock: StoreClock,
    read_keys: ReadKeys,
    keeper: SecretKeeper,
    tell: Callable[[Sequence[Change]], None],
    *,
    retries_max: int,
    **how: Any,
) -> tuple[Stores, DynamoLedger]:
    """The stores and their ledger. What has changed is told after each write."""
    flows = EventFlows(dynamo)

    def tell_and_count(changes: Sequence[Change]) -> None:
        tell(changes)
        flows.add(changes)

    async def parked(endpoint_ids: Sequence[str]) -> dict[str, int]:
        amounts = (ledger.count_line(one, counted_max=COUNTED_MAX) for one in endpoint_ids)
        return dict(zip(endpoint_ids, await asyncio.gather(*amounts), strict=True))

    follower = EventFollower(tell_and_count)
    ledger = DynamoLedger(dynamo, queue, TRIGGER_DELIVERIES, clock=clock, follower=follower, objects=objects, **how)
    endpoints, payloads = ItemEndpoints(ledger, clock, keeper), Payloads(dynamo, objects)
    stores = Stores(
        clock=clock,
        intake=ItemIntake(ledger, endpoints, payloads, follower, clock, retries_max=retries_max),
        inbox=ItemInbox(ledger, payloads, clock),
        loads=ItemLoads(ledger, payloads),
        endpoints=endpoints,
        book=ItemEndpointBook(ledger, endpoints, clock),
        looks=ItemLooks(ledger, read_keys),
        limits=ItemRateLimits(dynamo),
        cursor_secret=ItemCursorSecret(dynamo),
        flushed=flows.flushed,
        parked=parked,
    )
    return stores, ledger
