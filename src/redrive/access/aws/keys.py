"""Keys in items. A key has two, written in one transaction: one by its hash, for requests, and one by its id, for people.

Each change leaves its own mark, the deed that the audit shows. It is the lock, since a change requires the one that was seen; and
after a lost answer it tells whether the write was our own.
"""

import hmac
from builtins import list as list_
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from redrive.access.keys import (
    AUDITED,
    ENVIRONMENT_PREFIX,
    KEYS_LISTED_MAX,
    PROGRAM,
    ApiKey,
    NewKey,
    deed_of,
    digest,
    environment_key,
    known_scopes,
    make_first_key,
    make_key,
    read_scopes,
)
from redrive.errors import LedgerAwayError, LedgerError
from redrive.ledgers.aws.attributes import Item, Key, from_iso, from_item, to_iso
from redrive.ledgers.aws.client import Dynamo, RefusedError
from redrive.ledgers.aws.expressions import Action, Delete, Update, put_new, query
from redrive.ledgers.aws.history import audit_action
from redrive.ledgers.aws.on_table import OnTable, fits_key
from redrive.ports import Actor

KEYS = "KEYS"
TRIES_MAX = 20
"""Each refusal is somebody else's change of the same key; as many of them mean that something is wrong."""


class ItemKeys(OnTable):
    """The keys of one table; see `Keys`."""

    async def create(
        self, owner: str, scopes: Iterable[str], *, expires: timedelta | None = None, by: Actor = PROGRAM
    ) -> NewKey:
        """See `Keys.create`."""
        now = self._now()
        made, deed = make_key(owner, scopes, now, expires=expires), uuid4().hex
        if not await self._store(made.key, digest(made.secret), deed, _record(made.key, "created", deed, now, by)):
            raise LedgerError(f"there is a key with the id {made.key.id} already: try again")
        return made

    async def list(self) -> list_[ApiKey]:
        """See `Keys.list`."""
        named = await self._dynamo.query(query(("pk", KEYS)), items_max=KEYS_LISTED_MAX)
        found = await self._read(named)
        return sorted(found, key=lambda key: (key.created_at, key.id))

    async def revoke(self, id: str, *, by: Actor = PROGRAM) -> ApiKey | None:
        """See `Keys.revoke`."""
        return await self._change(id, {"revoked_at": to_iso(self._now())}, "revoked", by)

    async def find(self, secret: str) -> ApiKey | None:
        """See `Keys.find`."""
        hashed = digest(secret)
        item = await self._dynamo.get(key_place(hashed))
        if item is None or not hmac.compare_digest(item["pk"]["S"], key_place(hashed)[0]):
            return None
        key = key_of_item(item)
        return key if key.is_valid(self._now()) else None

    async def page(self, *, owner: str | None = None, after: str | None = None, limit: int = 100) -> Sequence[ApiKey]:
        """See `Keys.page`. Those of one owner are looked for among all, of which a page of the table holds some thousands."""
        found: list_[ApiKey] = []
        behind = ("sk", ">", after) if after else None
        async for some in self._dynamo.pages(query(("pk", KEYS), behind, limit=limit if owner is None else None)):
            named = [item for item in some if owner is None or item["holder"]["S"] == owner]
            found += [key for key in await self._read(named) if key.revoked_at is None]
            if len(found) >= limit:
                break
        return sorted(found, key=lambda key: key.id)[:limit]

    async def get(self, id: str) -> ApiKey | None:
        """See `Keys.get`."""
        item = await self._by_id(id)
        key = None if item is None else key_of_item(item)
        return None if key is None or key.revoked_at is not None else key

    async def change(
        self,
        id: str,
        *,
        scopes: Iterable[str] | None = None,
        expires_at: datetime | None = None,
        forever: bool = False,
        by: Actor = PROGRAM,
    ) -> ApiKey | None:
        """See `Keys.change`."""
        values: dict[str, Any] = {}
        if scopes is not None:
            values["scopes"] = [scope.value for scope in read_scopes(scopes)]
        if expires_at is not None or forever:
            values["valid_until"] = None if forever or expires_at is None else to_iso(expires_at)
        changed = await self._change(id, values, "changed", by)
        return None if changed is None or changed.revoked_at is not None else changed

    async def ensure_first(self, given: str | None = None) -> str | None:
        """See `Keys.ensure_first`."""
        now = self._now()
        if given is not None:
            await self._store(environment_key(given, now), digest(given), uuid4().hex)
            await self._forget_earlier(digest(given))
            return None
        if await self._dynamo.query(query(("pk", KEYS), limit=1), items_max=1):
            return None
        # Two processes that start at once both find no key; the fixed id lets only one of them store its own.
        made = make_first_key(now)
        return made.secret if await self._store(made.key, digest(made.secret), uuid4().hex) else None

    async def read_keys(self, hashes: Iterable[str]) -> dict[str, ApiKey]:
        """The keys with these hashes, whether valid or not, by their hash: one call for up to a hundred that ask at once."""
        return await read_keys(self._dynamo, hashes)

    async def _read(self, named: Iterable[Item]) -> list_[ApiKey]:
        return list_((await self.read_keys(item["sha256"]["S"] for item in named)).values())

    async def _by_id(self, id: str) -> Item | None:
        named = await self._dynamo.get((KEYS, id)) if fits_key(id) else None
        return None if named is None else await self._dynamo.get(key_place(named["sha256"]["S"]))

    async def _store(self, key: ApiKey, hashed: str, deed: str, *beside: Action) -> bool:
        """Store a key; whether it is new."""
        by_hash = put_new(key_place(hashed), _values(key) | {"deed": deed})
        by_id = put_new((KEYS, key.id), {"sha256": hashed, "holder": key.owner})
        try:
            await self._dynamo.write([by_hash, by_id, *beside])
        except RefusedError as error:
            return error.uncertain and _deed_of(error.reasons[0].item) == deed
        return True

    async def _change(self, id: str, values: Mapping[str, Any], act: str, by: Actor) -> ApiKey | None:
        """The key, changed so unless it is revoked or there is nothing to change; None if there is no such key."""
        item, deed, now = await self._by_id(id), uuid4().hex, self._now()
        for _ in range(TRIES_MAX):
            if item is None:
                return None
            old = key_of_item(item)
            if old.revoked_at is not None or not values:
                return old
            new = _key_of({**from_item(item), **values})
            update = Update((item["pk"]["S"], item["sk"]["S"])).require("deed", "=", _deed_of(item)).set("deed", deed)
            for name, value in values.items():
                update.set(name, value)
            try:
                await self._dynamo.write([update.action(), _record(new, act, deed, now, by)])
            except RefusedError as error:
                item = error.reasons[0].item
                if not (error.uncertain and _deed_of(item) == deed):
                    continue
            return new
        raise LedgerAwayError(f"the key {id} was changed by others {TRIES_MAX} times in a row: try again")

    async def _forget_earlier(self, hashed: str) -> None:
        """Delete the keys of earlier environments. Not revoked: who sets one again means it. What a person revoked stays so."""
        for item in await self._dynamo.query(query(("pk", KEYS), ("sk", "begins_with", ENVIRONMENT_PREFIX))):
            named = from_item(item)
            if named["sha256"] == hashed:
                continue
            by_hash = Delete(key_place(named["sha256"])).require_absent("revoked_at").action()
            try:
                await self._dynamo.write([by_hash, Delete((KEYS, named["sk"])).action()])
            except RefusedError:
                continue


async def read_keys(dynamo: Dynamo, hashes: Iterable[str]) -> dict[str, ApiKey]:
    """The keys with these hashes, whether valid or not, by their hash."""
    items = await dynamo.get_many(map(key_place, hashes))
    return {place[0].removeprefix("K#"): key_of_item(item) for place, item in items.items()}


def key_place(hashed: str) -> Key:
    """Where the key with this hash is."""
    return f"K#{hashed}", "K"


def key_of_item(item: Item) -> ApiKey:
    """The key that an item stands for."""
    return _key_of(from_item(item))


def _key_of(values: Mapping[str, Any]) -> ApiKey:
    valid_until, revoked_at = values.get("valid_until"), values.get("revoked_at")
    return ApiKey(
        id=values["key_id"],
        owner=values["holder"],
        scopes=known_scopes(values["scopes"]),
        created_at=from_iso(values["created_at"]),
        expires_at=None if valid_until is None else from_iso(valid_until),
        revoked_at=None if revoked_at is None else from_iso(revoked_at),
    )


def _values(key: ApiKey) -> dict[str, Any]:
    return {
        "key_id": key.id,
        "holder": key.owner,
        "scopes": [scope.value for scope in key.scopes],
        "created_at": to_iso(key.created_at),
        "valid_until": None if key.expires_at is None else to_iso(key.expires_at),
    }


def _deed_of(item: Item | None) -> str | None:
    return None if item is None else item["deed"]["S"]


def _record(key: ApiKey, act: str, deed: str, now: datetime, by: Actor) -> Action:
    """Write down who did it, in the same transaction."""
    said = replace(by, reason=deed_of(key, by))
    return audit_action((f"KH#{key.id}", f"H#{to_iso(now)}#{deed}"), AUDITED, key.id, deed, act, said, now)
