"""Secrets of endpoints in items: how they stand, and sealing all of them anew with the first key.

A rotation goes through the list of all endpoints, a page at a time. What is sealed with the first key already is left alone, so one that
was broken off is just begun again; an endpoint that somebody changes meanwhile is not touched, and is met by the next rotation.
"""

from dataclasses import replace
from uuid import uuid4

from redrive.access.kept_secrets import KeptSecrets, Progress
from redrive.access.keys import PROGRAM, SECRETS_AUDITED
from redrive.access.secret_box import SecretBox
from redrive.items import Dynamo, Item, RefusedError, Update, audit_action, from_item, query, to_iso
from redrive.lane import Actor
from redrive.systems.triggers.aws import places

SECRETS = ("secret", "old_secret")
ENDPOINTS_AT_ONCE = 100


async def look_at_item_secrets(dynamo: Dynamo, box: SecretBox | None) -> KeptSecrets:
    """How all secrets of endpoints are kept. Nothing is changed."""
    return await _walk(dynamo, box, change=False, progress=None)


async def rotate_item_secrets(
    dynamo: Dynamo, box: SecretBox, progress: Progress | None = None, *, by: Actor = PROGRAM
) -> KeptSecrets:
    """Seal all secrets of endpoints with the first key, those that were kept in the clear as well."""
    standing = await _walk(dynamo, box, change=True, progress=progress)
    if standing.changed:
        mark, now, said = uuid4().hex, dynamo.clock.now(), replace(by, reason=f"{standing.changed} secrets")
        place = ("SECRETS", f"H#{to_iso(now)}#{mark}")
        await dynamo.write([audit_action(place, SECRETS_AUDITED, "endpoints", mark, "rotated", said, now)])
    return standing


async def _walk(dynamo: Dynamo, box: SecretBox | None, *, change: bool, progress: Progress | None) -> KeptSecrets:
    standing = KeptSecrets()
    listed = query(("listing", places.ENDPOINTS), index="ListIndex", limit=ENDPOINTS_AT_ONCE)
    async for page in dynamo.pages(listed):
        before = standing.total
        for item in await _endpoints(dynamo, [one["listing_at"]["S"] for one in page]):
            stored = from_item(item)
            due = [name for name in SECRETS if stored.get(name) is not None and standing.judge(stored[name], box)]
            if change and box is not None and due:
                standing.changed += await _seal(dynamo, item, {name: box.seal(box.open(stored[name])) for name in due})
        if progress is not None:
            progress(standing.total - before)
    return standing


async def _endpoints(dynamo: Dynamo, ids: list[str]) -> list[Item]:
    holders = await dynamo.get_many(map(places.holder_key, ids))
    keys = [
        places.endpoint_key(item["holder"]["S"], id_) for id_ in ids if (item := holders.get(places.holder_key(id_)))
    ]
    return list((await dynamo.get_many(keys)).values())


async def _seal(dynamo: Dynamo, item: Item, sealed: dict[str, str]) -> int:
    """Write what was sealed, unless somebody has changed the endpoint; how many secrets that were."""
    mark = uuid4().hex
    update = Update((item["pk"]["S"], item["sk"]["S"])).require("mark", "=", item["mark"]["S"]).set("mark", mark)
    for name, text in sealed.items():
        update.set(name, text)
    try:
        await dynamo.write([update.action()])
    except RefusedError as error:
        there = error.reasons[0].item
        if not (error.uncertain and there is not None and there["mark"]["S"] == mark):
            return 0
    return len(sealed)
