"""Taking events in: each is one transaction of its own, with its deliveries, its payload and its idempotency key."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from redrive.errors import LedgerAwayError
from redrive.items import Dynamo, DynamoLedger, Head, Part, RefusedError, part_number, put, put_new
from redrive.systems.triggers.aws import places
from redrive.systems.triggers.aws.endpoints import ItemEndpoints
from redrive.systems.triggers.aws.follow import EventFollower
from redrive.systems.triggers.aws.payloads import TAKING_MAX, Payloads
from redrive.systems.triggers.changes import Who, taken
from redrive.systems.triggers.endpoints import matches
from redrive.systems.triggers.ids import new_id
from redrive.systems.triggers.ports import StoreClock
from redrive.systems.triggers.settings import RETRIES_MAX
from redrive.systems.triggers.status import Standing
from redrive.systems.triggers.values import Endpoint, NewEvent, NotTaken, Taken

AT_ONCE_MAX = 25
"""How many events of a batch are stored at once."""
IDEMPOTENCY = 2
"""Where the idempotency item stands among the actions of a transaction, the head first."""


class ItemIntake:
    """See `Intake`."""

    def __init__(
        self,
        ledger: DynamoLedger,
        endpoints: ItemEndpoints,
        payloads: Payloads,
        follower: EventFollower,
        clock: StoreClock,
        *,
        retries_max: int = RETRIES_MAX,
    ) -> None:
        self._ledger = ledger
        self._dynamo: Dynamo = ledger.dynamo
        self._endpoints = endpoints
        self._payloads = payloads
        self.payload_bytes_max: int | None = payloads.bytes_max
        self._order = follower.order
        self._clock = clock
        self._retries_max = retries_max

    async def take(self, events: Sequence[NewEvent]) -> list[Taken | NotTaken]:
        """See `Intake.take`: each event stands for itself."""
        users = sorted({event.user_id for event in events})
        found = await asyncio.gather(*(self._endpoints_of(user) for user in users))
        endpoints = dict(zip(users, found, strict=True))
        room, results = asyncio.Semaphore(AT_ONCE_MAX), dict[int, Taken | NotTaken]()

        async def take(place: int) -> None:
            async with room:
                results[place] = await self._take(events[place], endpoints[events[place].user_id])

        # Of two with the same key the first one is the event, and the other one its repetition.
        firsts, seconds = _in_turn(events)
        await asyncio.gather(*map(take, firsts))
        for place in seconds:
            await take(place)
        reasons = [one.why for one in results.values() if isinstance(one, NotTaken)]
        if reasons and len(reasons) == len(events):
            raise LedgerAwayError(reasons[0])
        return [results[place] for place in range(len(events))]

    async def _endpoints_of(self, user_id: str) -> list[Endpoint]:
        await self._endpoints.ensure_user(user_id)
        return [endpoint for endpoint in await self._endpoints.of_user(user_id) if endpoint.enabled]

    async def _take(self, event: NewEvent, endpoints: Sequence[Endpoint]) -> Taken | NotTaken:
        now = self._clock.now()
        head = self._head(event, endpoints, now)
        self._order.expect([head.id])
        try:
            return await self._store(event, head)
        except LedgerAwayError as error:
            return NotTaken(str(error))
        finally:
            self._order.heard([head.id])

    def _head(self, event: NewEvent, endpoints: Sequence[Endpoint], now: datetime) -> Head:
        wanting = [endpoint for endpoint in endpoints if matches(endpoint.event_types, event.event_type)]
        parts = {
            part_number(place): Part(
                target=endpoint.id, due_at=now, updated_at=now,
                retries_max=min(endpoint.policy.get("max_retries", RETRIES_MAX), self._retries_max),
            )
            for place, endpoint in enumerate(wanting)
        }  # fmt: skip
        id_ = new_id(now)
        facts = places.standing_facts(Standing("received"), id_, now) | {
            "event_type": event.event_type,
            "correlation_id": event.correlation_id,
            "payload_bytes": len(event.payload),
            "idem": None if event.idempotency_key is None else places.hash_key(event.idempotency_key),
        }
        told = {name: value for name, value in facts.items() if value is not None}
        return Head(id=id_, user_id=event.user_id, created_at=now, parts=parts, facts=told)

    async def _store(self, event: NewEvent, head: Head) -> Taken:
        kept = await self._payloads.keep(head.id, event.payload)
        if self._clock.now() - head.created_at > TAKING_MAX:  # its payload may be taken for one that nobody wants
            raise LedgerAwayError("the event could not be stored in time: send it again")
        beside = [put(places.payload_key(head.id), kept)]
        if "idem" in head.facts:
            beside.append(put_new(places.idempotency_key(head.user_id, head.facts["idem"]), {"event_id": head.id}))
        try:
            await self._ledger.take(head, beside=beside, counts={"received": 1})
        except RefusedError as error:
            await self._payloads.discard(head.id)
            return await self._taken_before(error)
        self._order.tell([taken(Who(head.id, head.user_id, event.correlation_id), head.created_at)])
        return Taken(head.id, "received", head.created_at, True, len(head.parts))

    async def _taken_before(self, error: RefusedError) -> Taken:
        named = error.reasons[IDEMPOTENCY].item
        id_ = None if named is None else named["event_id"]["S"]
        head = None if id_ is None else (await self._ledger.heads([id_])).get(id_)
        if head is None:
            raise LedgerAwayError("the event of this idempotency key was deleted meanwhile: send it again")
        return Taken(head.id, head.facts["status"], head.created_at, False)


def _in_turn(events: Sequence[NewEvent]) -> tuple[list[int], list[int]]:
    """The places of events that may be stored side by side, and of those that must come after them."""
    seen: set[tuple[str, str]] = set()
    firsts, seconds = list[int](), list[int]()
    for place, event in enumerate(events):
        if event.idempotency_key is None:
            firsts.append(place)
            continue
        known = (event.user_id, event.idempotency_key)
        (seconds if known in seen else firsts).append(place)
        seen.add(known)
    return firsts, seconds
