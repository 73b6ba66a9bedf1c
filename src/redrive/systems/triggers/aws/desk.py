"""The endpoints of all users, for operators: by lists of those in a state, with what they owe by the index of failed deliveries."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from heapq import merge
from uuid import uuid4

from redrive.items import DynamoLedger, Item, act_action, audit_action, from_iso, from_item, query, split_id, to_iso
from redrive.lane import Actor
from redrive.operator.cursors import Position
from redrive.operator.whole_acts import as_one_act
from redrive.operator.words import redact
from redrive.systems.triggers.aws import places
from redrive.systems.triggers.aws.endpoints import ItemEndpoints, notice_action
from redrive.systems.triggers.endpoints import (
    BY_OPERATOR,
    SWITCHED_ON,
    shown_url,
    state_of,
    switch_notice,
    switched_off,
)
from redrive.systems.triggers.ledger import ENDPOINTS
from redrive.systems.triggers.ports import StoreClock
from redrive.systems.triggers.values import (
    COUNTED_MAX,
    Endpoint,
    EndpointState,
    GivenUp,
    LatestFailure,
    SeenEndpoint,
    Switched,
)

AT_ONCE_MAX = 10
"""How many endpoints are looked into at once."""
LISTS = {"enabled": ("enabled",), "failing": ("failing",), "disabled": ("disabled", places.GIVEN_UP)}
"""On which lists the endpoints in a state are."""
RETRYING, DEAD = "w", "x"
LATEST = {"ScanIndexForward": False, "Limit": 1}


class ItemEndpointBook:
    """See `EndpointBook`."""

    def __init__(self, ledger: DynamoLedger, endpoints: ItemEndpoints, clock: StoreClock) -> None:
        self._ledger = ledger
        self._dynamo = ledger.dynamo
        self._endpoints = endpoints
        self._clock = clock

    async def seen(
        self, *, user: str | None, state: EndpointState | None, after: Position | None, limit: int
    ) -> tuple[list[SeenEndpoint], bool]:
        """See `EndpointBook.seen`."""
        if after is not None and state in ("failing", "disabled"):
            after.check(datetime)
        if user is not None:
            found = _sorted_page(await self._endpoints.of_user(user), state, after)[: limit + 1]
        elif state is None:
            found = await self._all(after, limit + 1)
        else:
            found = await self._in_state(state, after, limit + 1)
        room = asyncio.Semaphore(AT_ONCE_MAX)

        async def looked_into(endpoint: Endpoint) -> SeenEndpoint:
            async with room:
                return await self._seen(endpoint)

        return list(await asyncio.gather(*map(looked_into, found[:limit]))), len(found) > limit

    async def _all(self, after: Position | None, amount: int) -> list[Endpoint]:
        """Newest first, by their ids."""
        behind = None if after is None else ("listing_at", "<", str(after.id))
        asked = query(("listing", places.ENDPOINTS), behind, index="ListIndex", backwards=True, limit=amount)
        found = await self._dynamo.query(asked, items_max=amount)
        return list((await self._endpoints.by_ids([item["listing_at"]["S"] for item in found])).values())

    async def _in_state(self, state: EndpointState, after: Position | None, amount: int) -> list[Endpoint]:
        """Those on the lists of a state, the latest first. One that has left it since the index heard of it is left out."""
        behind = None
        if after is not None:
            # Of enabled ones the list is in the order of their making, which is that of their ids.
            behind = ("listing_at", "<", f"{to_iso(after.at)}#{after.id}")
        asked = [
            query(("listing", places.endpoints_listing(name)), behind, index="ListIndex", backwards=True, limit=amount)
            for name in LISTS[state]
        ]
        lists = await asyncio.gather(*(self._dynamo.query(one, items_max=amount) for one in asked))
        newest = list(merge(*lists, key=_place, reverse=True))[:amount]
        items = await self._dynamo.get_many((item["pk"]["S"], item["sk"]["S"]) for item in newest)
        there = [items.get((item["pk"]["S"], item["sk"]["S"])) for item in newest]
        endpoints = [places.read_endpoint(item) for item in there if item is not None]
        return [one for one in endpoints if _state(one) == state]

    async def _seen(self, endpoint: Endpoint) -> SeenEndpoint:
        state, since = state_of(endpoint.created_at, endpoint.failing_since, endpoint.disabled_at)
        owed = [
            query(("endpoint_key", f"F#{endpoint.id}#{letter}"), index="EndpointIndex") for letter in (RETRYING, DEAD)
        ]
        (retrying, failed), latest = await asyncio.gather(
            asyncio.gather(*(self._dynamo.count(one, counted_max=COUNTED_MAX) for one in owed)),
            asyncio.gather(*(self._dynamo.query(one | LATEST, items_max=1) for one in owed)),
        )
        failures = [await self._failure(items[0]) for items in latest if items]
        return SeenEndpoint(
            id=endpoint.id, user=endpoint.user_id, url=shown_url(endpoint.url), description=endpoint.description,
            event_types=endpoint.event_types, state=state, since=since, disabled_reason=endpoint.disabled_reason,
            disabled_by=endpoint.disabled_by, created_at=endpoint.created_at, retrying=retrying, failed=failed,
            latest_failure=max(failures, key=lambda one: one.at, default=None),
        )  # fmt: skip

    async def _failure(self, item: Item) -> LatestFailure:
        """A failure from its item; when it was last tried stands in the head."""
        values = from_item(item)
        id_ = values["endpoint_at"]
        head_id, number = split_id(id_) or ("", "")
        head = (await self._ledger.heads([head_id])).get(head_id)
        part = None if head is None else head.parts.get(number)
        tried = None if part is None else part.claimed_at or part.updated_at
        return LatestFailure(id_, tried or from_iso(values["since"]), redact(values.get("last_error", "")))

    async def given_up(self, limit: int) -> tuple[list[GivenUp], int]:
        """See `EndpointBook.given_up`."""
        asked = query(("listing", places.endpoints_listing(places.GIVEN_UP)), index="ListIndex", limit=limit)
        places_ = await self._dynamo.query(asked, items_max=limit)
        items = await self._dynamo.get_many((item["pk"]["S"], item["sk"]["S"]) for item in places_)
        there = [items.get((item["pk"]["S"], item["sk"]["S"])) for item in places_]
        found = [
            GivenUp(one.id, one.user_id, one.url, one.disabled_at, one.disabled_reason)
            for one in (places.read_endpoint(item) for item in there if item is not None)
            if one.disabled_at is not None and one.disabled_by is None
        ]
        more = await self.amount_given_up() - len(places_) if len(places_) == limit else 0
        return found, max(0, more)

    async def amount_given_up(self) -> int:
        """See `EndpointBook.amount_given_up`."""
        return await self._dynamo.count(
            query(("listing", places.endpoints_listing(places.GIVEN_UP)), index="ListIndex")
        )

    async def switch(self, ids: Sequence[str], *, enabled: bool, actor: str, reason: str) -> Switched:
        """See `EndpointBook.switch`. Each endpoint stands for itself."""
        there = await self._endpoints.by_ids(ids)
        room, changed = asyncio.Semaphore(AT_ONCE_MAX), set[str]()
        act, by = "enable" if enabled else "disable", Actor(name=actor, reason=reason)
        if len(there) > 1:  # the audit shows them as one act
            by = as_one_act(by, act)
            assert by.whole is not None
            await self._dynamo.write([act_action(ENDPOINTS, act, by, by.whole, self._clock.now())])

        async def switch(endpoint: Endpoint) -> None:
            async with room:
                if await self._switch(endpoint, act, by, enabled=enabled):
                    changed.add(endpoint.id)

        await asyncio.gather(*map(switch, there.values()))
        return Switched(set(there), changed)

    async def _switch(self, endpoint: Endpoint, act: str, by: Actor, *, enabled: bool) -> bool:
        now, deed, done = self._clock.now(), uuid4().hex, list[bool]()
        off = switched_off(now, BY_OPERATOR.format(by.reason), by=by.name)

        def switched(seen: Endpoint) -> Endpoint | None:
            done.clear()
            if seen.enabled == enabled and (enabled or seen.disabled_by is not None):
                return None
            done.append(True)
            return replace(seen, **(SWITCHED_ON if enabled else off), updated_at=now)

        told = notice_action(endpoint, switch_notice(endpoint.url, by.reason, enabled=enabled), now)
        place = (f"EP#{endpoint.id}", f"H#{to_iso(now)}#{deed}")
        noted = audit_action(place, ENDPOINTS, endpoint.id, deed, act, by, now)
        await self._endpoints.revise(endpoint.user_id, endpoint.id, switched, beside=[told, noted])
        return bool(done)

    async def states(self, ids: Sequence[str]) -> dict[str, bool]:
        """See `EndpointBook.states`."""
        return {id_: endpoint.enabled for id_, endpoint in (await self._endpoints.by_ids(ids)).items()}

    async def dead(self, endpoint_id: str, after: str, limit: int) -> list[str]:
        """See `EndpointBook.dead`."""
        behind = ("endpoint_at", ">", after) if after else None
        asked = query(("endpoint_key", f"F#{endpoint_id}#{DEAD}"), behind, index="EndpointIndex", limit=limit)
        return [item["endpoint_at"]["S"] for item in await self._dynamo.query(asked, items_max=limit)]


def _place(item: Item) -> str:
    place: str = item["listing_at"]["S"]
    return place


def _state(endpoint: Endpoint) -> EndpointState:
    return state_of(endpoint.created_at, endpoint.failing_since, endpoint.disabled_at)[0]


def _sorted_page(endpoints: Sequence[Endpoint], state: EndpointState | None, after: Position | None) -> list[Endpoint]:
    """Those of a user's endpoints that are asked for, behind a position: a user has a hundred at most."""

    def place(one: Endpoint) -> tuple[datetime | str, str]:
        since = state_of(one.created_at, one.failing_since, one.disabled_at)[1]
        return (since, one.id) if state in ("failing", "disabled") else ("", one.id)

    wanted = [one for one in endpoints if state is None or _state(one) == state]
    if after is not None:
        last = (after.at if state in ("failing", "disabled") else "", str(after.id))
        wanted = [one for one in wanted if place(one) < last]
    return sorted(wanted, key=place, reverse=True)
