"""EndpointStore in items: under their user, so that one question brings all of a user's, and on lists by state for operators.

Every change of an endpoint leaves its own mark. It is the lock, since a change requires the one that was seen; and after a lost answer
it tells whether the write was our own.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

from redrive.errors import LedgerAwayError
from redrive.items import (
    Action,
    Delete,
    Dynamo,
    DynamoLedger,
    Gather,
    Item,
    RefusedError,
    Update,
    delete,
    from_iso,
    from_item,
    put,
    put_new,
    put_over,
    query,
    to_iso,
)
from redrive.lane import Actor
from redrive.systems.kit.secret_keeper import SecretKeeper
from redrive.systems.triggers import endpoints as rules
from redrive.systems.triggers.aws import places
from redrive.systems.triggers.endpoints import (
    BY_OWNER,
    ENDPOINTS_PER_USER_MAX,
    OLD_SECRET_LASTS,
    SWITCHED_ON,
    TooManyEndpointsError,
    disable_notice,
    switched_off,
)
from redrive.systems.triggers.ids import new_id
from redrive.systems.triggers.ports import StoreClock
from redrive.systems.triggers.values import Endpoint, Notice

NOTICE_LASTS = timedelta(days=90)
CANCELLED_MAX = 1000
"""How many deliveries to an endpoint that is deleted are cancelled with it; the others when they are due."""
CANCELLED_AT_ONCE = 100
TRIES_MAX = 50
"""Each refusal is somebody else's change of the same endpoint; as many of them mean that something is wrong."""
USERS_REMEMBERED_MAX = 100_000
GONE = "the endpoint was deleted"


class _Note(NamedTuple):
    endpoint: Endpoint
    delivered: bool


class ItemEndpoints:
    """See `EndpointStore`."""

    def __init__(self, ledger: DynamoLedger, clock: StoreClock, keeper: SecretKeeper) -> None:
        self._ledger = ledger
        self._dynamo: Dynamo = ledger.dynamo
        self._clock = clock
        self._keeper = keeper
        self._users: set[str] = set()
        self._healths: Gather[_Note, None] = Gather(self._note)

    async def ensure_user(self, user_id: str) -> None:
        """See that a user is listed. Nobody is ever taken off the list, so each process does it once."""
        if user_id not in self._users:
            listed = Update(places.user_key(user_id)).set("listing", places.USERS).set("listing_at", user_id)
            await self._dynamo.write([listed.add("endpoints", 0).action()])
            if len(self._users) >= USERS_REMEMBERED_MAX:
                self._users.clear()
            self._users.add(user_id)

    async def create(self, values: Mapping[str, Any]) -> Endpoint:
        """See `EndpointStore.create`."""
        now = self._clock.now()
        blank: dict[str, Any] = dict.fromkeys(Endpoint.__dataclass_fields__) | {"description": ""}
        given = {**values, "secret": self._keeper.seal(values["secret"]), "event_types": tuple(values["event_types"])}
        made = Endpoint(**blank | given | {"id": new_id(now), "created_at": now, "updated_at": now})
        if not made.enabled:
            made = replace(made, **switched_off(now, BY_OWNER, by=made.user_id))
        await self.ensure_user(made.user_id)
        user = Update(places.user_key(made.user_id)).require("endpoints", "<", ENDPOINTS_PER_USER_MAX)
        listed = {"holder": made.user_id, "listing": places.ENDPOINTS, "listing_at": made.id}
        actions = [
            put_new(places.endpoint_key(made.user_id, made.id), _written(made, uuid4().hex)),
            put(places.holder_key(made.id), listed),
            user.add("endpoints", 1).action(),
        ]
        try:
            await self._dynamo.write(actions)
        except RefusedError as error:
            # Its id is of our own making: if it is there, the write whose answer was lost was made.
            if not (error.uncertain and error.reasons[0].refused):
                raise TooManyEndpointsError from None
        return replace(made, secret=values["secret"])

    async def some_secret(self) -> str | None:
        """See `EndpointStore.some_secret`."""
        found = await self._dynamo.query(query(("listing", places.ENDPOINTS), index="ListIndex", limit=1), items_max=1)
        endpoints = await self.by_ids([item["listing_at"]["S"] for item in found])
        return next((endpoint.secret for endpoint in endpoints.values()), None)

    async def of_user(self, user_id: str) -> list[Endpoint]:
        """See `EndpointStore.of_user`."""
        pk, sk = places.endpoint_key(user_id, "")
        return [
            places.read_endpoint(item)
            for item in await self._dynamo.query(query(("pk", pk), ("sk", "begins_with", sk)))
        ]

    async def get(self, user_id: str, id: str) -> Endpoint | None:
        """See `EndpointStore.get`."""
        item = await self._dynamo.get(places.endpoint_key(user_id, id))
        return None if item is None else places.read_endpoint(item)

    async def by_ids(self, ids: Sequence[str]) -> dict[str, Endpoint]:
        """EndpointStore of any users, in the order of the ids."""
        holders = await self._dynamo.get_many([places.holder_key(id_) for id_ in ids])
        whose = {id_: holders.get(places.holder_key(id_)) for id_ in ids}
        keys = {id_: places.endpoint_key(item["holder"]["S"], id_) for id_, item in whose.items() if item is not None}
        items = await self._dynamo.get_many(keys.values())
        return {id_: places.read_endpoint(items[key]) for id_, key in keys.items() if key in items}

    async def change(self, user_id: str, id: str, values: Mapping[str, Any], *, rotate: bool) -> Endpoint | None:
        """See `EndpointStore.change`."""
        now = self._clock.now()
        given = dict(values)
        if "secret" in given:
            given["secret"] = self._keeper.seal(given["secret"])
        if "event_types" in given:
            given["event_types"] = tuple(given["event_types"])
        if "enabled" in given:
            given |= SWITCHED_ON if given["enabled"] else switched_off(now, BY_OWNER, by=user_id)

        def changed(seen: Endpoint) -> Endpoint:
            changed = replace(seen, **given, updated_at=now)
            until = now + OLD_SECRET_LASTS
            return replace(changed, old_secret=seen.secret, old_secret_until=until) if rotate else changed

        made = await self.revise(user_id, id, changed)
        return replace(made, secret=values["secret"]) if made is not None and "secret" in values else made

    async def delete(self, user_id: str, id: str) -> bool:
        """See `EndpointStore.delete`."""
        user = Update(places.user_key(user_id)).add("endpoints", -1)
        there = Delete(places.endpoint_key(user_id, id)).require_there().action()
        try:
            await self._dynamo.write([there, delete(places.holder_key(id)), user.action()])
        except RefusedError as error:
            if not error.uncertain:
                return False
        waiting = list(dict.fromkeys([*await self._failed_before(id), *await self._never_tried(user_id, id)]))
        for start in range(0, len(waiting), CANCELLED_AT_ONCE):
            block = waiting[start : start + CANCELLED_AT_ONCE]
            await self._ledger.cancel(block, Actor(name=user_id, reason=GONE))
        return True

    async def _failed_before(self, endpoint_id: str) -> list[str]:
        """Deliveries to an endpoint that have failed and wait for another try."""
        asked = query(("endpoint_key", f"F#{endpoint_id}#w"), index="EndpointIndex", limit=CANCELLED_MAX)
        return [item["endpoint_at"]["S"] for item in await self._dynamo.query(asked, items_max=CANCELLED_MAX)]

    async def _never_tried(self, user_id: str, endpoint_id: str) -> list[str]:
        """The latest of a user's deliveries to an endpoint that still wait for their first try."""
        asked = query(
            ("user_id", user_id), (places.INBOX_KEY, "begins_with", "received#"), index=places.INBOX, backwards=True,
            limit=CANCELLED_MAX,
        )  # fmt: skip
        found = await self._dynamo.query(asked, items_max=CANCELLED_MAX)
        heads = await self._ledger.heads([item["pk"]["S"].removeprefix("E#") for item in found])
        return [id_ for head in heads.values() for id_ in waiting_for(head, endpoint_id)]

    # --- how it is doing ------------------------------------------------------------------------------------------

    async def note(self, endpoint: Endpoint, *, delivered: bool) -> None:
        """See `EndpointStore.note`."""
        if delivered != (endpoint.failing_since is None):
            await self._healths([_Note(endpoint, delivered)])

    async def _note(self, notes: Sequence[_Note]) -> list[None]:
        now = self._clock.now()
        latest = {note.endpoint.id: note for note in notes}

        async def write(note: _Note) -> None:
            def noted(seen: Endpoint) -> Endpoint | None:
                if note.delivered == (seen.failing_since is None):
                    return None
                return replace(seen, failing_since=None if note.delivered else now)

            await self.revise(note.endpoint.user_id, note.endpoint.id, noted)

        await asyncio.gather(*map(write, latest.values()))
        return [None] * len(notes)

    async def disable(self, endpoint: Endpoint, reason: str, *, failing_since: datetime | None = None) -> bool:
        """See `EndpointStore.disable`."""
        now, done = self._clock.now(), list[bool]()

        def off(seen: Endpoint) -> Endpoint | None:
            since = seen.failing_since
            done.clear()
            if not seen.enabled or (failing_since is not None and (since is None or since > failing_since)):
                return None
            done.append(True)
            return replace(seen, **switched_off(now, reason), updated_at=now)

        told = notice_action(endpoint, disable_notice(endpoint.url, reason), now)
        return await self.revise(endpoint.user_id, endpoint.id, off, beside=[told]) is not None and bool(done)

    async def notices(self, user_id: str) -> list[Notice]:
        """See `EndpointStore.notices`. Older ones are forgotten by themselves."""
        most = rules.NOTICES_PER_USER_MAX
        asked = query(("pk", places.user_key(user_id)[0]), ("sk", "begins_with", "N#"), backwards=True, limit=most)
        found = [from_item(item) for item in await self._dynamo.query(asked, items_max=most)]
        return [Notice(one["endpoint_id"], from_iso(one["told_at"]), one["message"]) for one in found]

    # --- changing -----------------------------------------------------------------------------------------------------

    async def revise(
        self,
        user_id: str,
        id: str,
        change: Callable[[Endpoint], Endpoint | None],
        *,
        beside: Sequence[Action] = (),
    ) -> Endpoint | None:
        """Change an endpoint, with what belongs to it in one transaction; how it is then, None if there is none.

        Where the change, seeing how it is now, answers None, nothing is written.
        """
        key, mark = places.endpoint_key(user_id, id), uuid4().hex
        item = await self._dynamo.get(key)
        for _ in range(TRIES_MAX):
            if item is None:
                return None
            seen = places.read_endpoint(item)
            wanted = change(seen)
            if wanted is None:
                return seen
            write = put_over(key, _written(wanted, mark), "mark", item["mark"]["S"])
            try:
                await self._dynamo.write([write, *beside])
            except RefusedError as error:
                item = error.reasons[0].item
                if not (error.uncertain and _mark_of(item) == mark):
                    continue
            return wanted
        raise LedgerAwayError(f"the endpoint {id} was changed by others {TRIES_MAX} times in a row: try again")


def waiting_for(head: Any, endpoint_id: str) -> list[str]:
    """The deliveries of an event to an endpoint that wait."""
    return [
        f"{head.id}.{number}"
        for number, part in head.parts.items()
        if part.target == endpoint_id and part.state.value == "waiting"
    ]


def notice_action(endpoint: Endpoint, message: str, now: datetime) -> Action:
    """Tell the owner of an endpoint, who reads it at `/v1/notices`."""
    values = {
        "endpoint_id": endpoint.id,
        "told_at": to_iso(now),
        "message": message,
        "expires_at": int((now + NOTICE_LASTS).timestamp()),
    }
    return put((places.user_key(endpoint.user_id)[0], f"N#{to_iso(now)}#{new_id(now)}"), values)


def _written(endpoint: Endpoint, mark: str) -> dict[str, Any]:
    return places.endpoint_values(endpoint) | {"mark": mark}


def _mark_of(item: Item | None) -> str | None:
    return None if item is None else item["mark"]["S"]
