"""Every route of the whole service, asked by everybody who must not come in, and by everybody who may: for ids that nobody has, for
ids of what is there, and for ids of what is somebody else's.

The routes are found by walking the router; what each of them needs stands in `NEEDS`, line by line. A route without a line fails the walk.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from redrive import Filter, Redrive
from redrive.access.keys import IMPLIED, Scope
from redrive.running import Service
from redrive.settings import SYSTEMS, Settings
from redrive.systems.triggers import Triggers
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.values import NewEvent, Taken
from redrive.web.app import make_web
from redrive.wiring import attach_systems

UNKNOWN = "00000000-0000-7000-8000-000000000000"
STRANGERS: dict[str, dict[str, str]] = {
    "nobody": {},
    "a wrong key": {"X-API-Key": "rdk_" + "x" * 43},
    "a forged session": {"Cookie": "redrive_session=" + "x" * 43},
    "a key in the wrong header": {"Authorization": "Basic YTpi"},
    "somebody who says that they are local": {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
}

NEEDS: dict[str, str] = {
    "": """
        /api/config/flags GET
        /api/config/flags/{key} GET
        /health GET
        /login GET POST
        /logout POST
        /openapi.json GET
        /ready GET
        /static/{name} GET
        /webhooks/in/{source} POST
    """,
    "admin": """
        /v1/keys GET POST
        /v1/keys/{key_id} DELETE GET PATCH
    """,
    "endpoints": """
        /v1/endpoints GET POST
        /v1/endpoints/{endpoint_id} DELETE GET PATCH
        /v1/endpoints/{endpoint_id}/attempts GET
        /v1/endpoints/{endpoint_id}/test POST
        /v1/notices GET
    """,
    "events:read": """
        /v1/events/{event_id} GET
        /v1/events/{event_id}/attempts GET
        /v1/events/{event_id}/status GET
        /v1/inbox GET
    """,
    "events:write": """
        /v1/events POST
        /v1/events/batch POST
        /v1/events/retry POST
        /v1/events/{event_id} DELETE
        /v1/events/{event_id}/ack POST
        /v1/events/{event_id}/retry POST
    """,
    "operator": """
        /api/admin/flags GET
        /api/admin/flags/{key} DELETE GET POST PUT
        /api/admin/flags/{key}/schedule GET POST
        /api/admin/flags/{key}/schedule/bulk POST
        /api/admin/flags/{key}/schedule/preview GET
        /api/admin/flags/{key}/schedule/{id} DELETE
        /api/admin/flags/{key}/schedule/{id}/retries GET
        /api/admin/flags/{key}/schedule/{id}/retry POST
        /api/admin/flags/{key}/users DELETE GET POST
        /api/commands/troubleshooting/cancel POST
        /api/commands/troubleshooting/complete POST
        /api/commands/troubleshooting/retry POST
        /api/effects/answer POST
        /api/flags/schedules/cancel POST
        /api/flags/schedules/retry POST
        /api/flags/switch POST
        /api/gates/pause POST
        /api/gates/resume POST
        /api/gates/set POST
        /api/operations POST
        /api/operations/{id}/change POST
        /api/operations/{id}/{act} POST
        /api/tasks/cancel POST
        /api/tasks/cancel-running POST
        /api/tasks/redrive POST
        /api/tasks/resolve POST
        /api/triggers/endpoints/disable POST
        /api/triggers/endpoints/enable POST
        /api/triggers/endpoints/retry POST
        /webhooks/cancel POST
        /webhooks/redrive POST
    """,
    "viewer": """
        / GET
        /api/alerts GET
        /api/audit GET
        /api/audit/{id:path} GET
        /api/commands GET
        /api/commands/batches/{domain}/{batch_id:path} GET
        /api/commands/troubleshooting GET
        /api/commands/{domain}/{command_id:path} GET
        /api/effects GET
        /api/flags/schedules GET
        /api/gates GET
        /api/gates/{ledger}/{name:path} GET
        /api/groups GET
        /api/operations GET
        /api/operations/{id} GET
        /api/operations/{id}/edits GET
        /api/operations/{id}/tasks GET
        /api/overview GET
        /api/preview POST
        /api/searches POST
        /api/searches/{id} DELETE GET
        /api/series GET
        /api/session GET
        /api/status GET
        /api/tasks GET
        /api/tasks/{ledger}/{id:path} GET
        /api/triggers/endpoints GET
        /api/workers GET
        /audit GET
        /audit/{id:path} GET
        /causes/{ledger}/{cause} GET
        /charts GET
        /dead GET
        /docs GET
        /effects GET
        /gates GET
        /kinds/{ledger}/{kind:path} GET
        /metrics GET
        /operations GET
        /operations/{id} GET
        /operations/{id}/tasks GET
        /systems GET
        /systems/{name} GET
        /tasks GET
        /tasks/{ledger}/{id:path} GET
        /webhooks GET
        /webhooks/unhandled GET
        /webhooks/{id} GET
        /workers GET
    """,
    "webhooks:write": """
        /webhooks POST
    """,
}
"""What each route needs: a scope, or nothing; each with its methods. The relay's are left out, which needs a broker."""
REFUSED = (401, 403, 429)
"""Who tries many wrong keys has to wait."""
UNKNOWN_IDS, THERE, FOREIGN = "ids that nobody has", "ids of what is there", "ids of somebody else's"
STRANGER = "bob"
OWNED = ("endpoint_id", "event_id")
"""Parameters of things that belong to somebody."""
THERE_IS = {"ledger": "redrive_task", "id": "1", "kind": "mail", "name": "flags", "domain": "shop", "act": "pause"}
"""Of the others, what is there in the service of the walk; what is asked for in vain is asked for all the same."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the walk, and its answer."""

    method: str
    path: str
    who: str
    status: int
    ids: str = UNKNOWN_IDS
    said: str = ""
    """The answer, without what is new in each."""


class Walked(list[Asked]):
    """All requests, and what has become of things of somebody whom nobody asked for them."""

    harmed: list[str]


def all_routes(router: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every method and path that the router knows."""
    for route in router.routes:
        if hasattr(route, "original_router"):
            yield from all_routes(route.original_router, prefix + route.include_context.prefix)
        else:
            for method in getattr(route, "methods", None) or ():
                if method not in ("HEAD", "OPTIONS"):
                    yield method, prefix + route.path


async def walk(url: str) -> Walked:
    """Ask every route as everybody."""
    app = Redrive(url, durable=False)
    attach_systems(app, [name for name in SYSTEMS if name != "relay"])
    async with app:
        service = Service(app, Settings(_env_file=None))
        service.is_open = True
        web = make_web(service)
        people = dict(STRANGERS)
        for scope in Scope:  # each owns what the walk asks for with its key
            people[str(scope)] = {"X-API-Key": (await app.store.keys.create(str(scope), [scope])).secret}
        revoked = await app.store.keys.create("who was sent away", [Scope.ADMIN])
        await app.store.keys.revoke(revoked.key.id)
        people["a revoked key"] = {"X-API-Key": revoked.secret}
        triggers = app.systems["triggers"]
        assert isinstance(triggers, Triggers)
        await app.add("mail", {"n": 1})
        bobs = await _belongings(triggers, STRANGER)
        before = await _standing(triggers, bobs)
        transport = httpx.ASGITransport(web, client=("192.0.2.7", 1234), raise_app_exceptions=False)
        asked = Walked()
        async with httpx.AsyncClient(transport=transport, base_url="http://redrive.example") as client:
            for method, path in sorted(set(all_routes(web.router))):
                named = re.findall(r"{(\w+)[^}]*}", path)
                for who, headers in people.items():
                    mine = await _belongings(triggers, who) if {*named} & {*OWNED} else {}
                    ways: dict[str, Mapping[str, str]] = {UNKNOWN_IDS: {}}
                    if named:
                        ways[THERE] = THERE_IS | mine
                    if mine:
                        ways[FOREIGN] = bobs
                    for ids, given in ways.items():
                        concrete = re.sub(
                            r"{(\w+)[^}]*}", lambda found, given=given: given.get(found[1], UNKNOWN), path
                        )
                        answer = await client.request(
                            method, concrete, headers=headers, json={} if method != "GET" else None
                        )
                        asked.append(Asked(method, path, who, answer.status_code, ids, _said(answer, given)))
        after = await _standing(triggers, bobs)
        asked.harmed = [f"{name} of somebody else was changed" for name in before if before[name] != after[name]]
        return asked


async def _belongings(triggers: Triggers, owner: str) -> dict[str, str]:
    """An endpoint and an event of somebody, new ones each time: the last question may have been to remove them."""
    endpoint = await triggers.endpoints.create(
        {
            "user_id": owner, "url": "http://127.0.0.1:9/", "event_types": ["order.made"], "secret": new_secret(), "policy": {},
            "enabled": True,
        }
    )  # fmt: skip
    new = NewEvent(user_id=owner, event_type="order.made", payload="{}", correlation_id="c-1")
    [taken] = await triggers.intake.take([new])
    assert isinstance(taken, Taken)
    return {"endpoint_id": endpoint.id, "event_id": taken.id}


async def _standing(triggers: Triggers, things: Mapping[str, str]) -> dict[str, str]:
    """All that can be changed about the things of somebody."""
    event = await triggers.inbox.get(STRANGER, things["event_id"])
    endpoint = await triggers.endpoints.get(STRANGER, things["endpoint_id"])
    found = await triggers.lane.find(Filter(), limit=1000)
    deliveries = [one for one in found.items if one.payload["event_id"] == things["event_id"]]
    return {"an event": repr(event), "an endpoint": repr(endpoint), "a delivery": repr(deliveries)}


def _said(answer: httpx.Response, given: Mapping[str, str]) -> str:
    """What an answer says, without the ids that were asked for and those of the request."""
    text = answer.text
    for id_ in (*given.values(), UNKNOWN):
        text = text.replace(id_, "ID") if len(id_) > 8 else text
    try:
        read = json.loads(text)
    except ValueError:
        return text
    if isinstance(read, dict) and isinstance(read.get("error"), dict):
        return f"{read['error'].get('code')}: {read['error'].get('message')}"
    return str(read)


def lines() -> dict[tuple[str, str], str]:
    """The scope that each method and path needs."""
    return {
        (method, path): scope
        for scope, text in NEEDS.items()
        for path, *methods in (line.split() for line in text.split("\n") if line.strip())
        for method in methods
    }


def faults(asked: list[Asked]) -> list[str]:
    """What is wrong: a route without a line or a line without a route, a stranger who came in, somebody who was kept out, a 5xx."""
    needs, found = lines(), {(one.method, one.path) for one in asked}
    wrong = [f"{method} {path} has no line in NEEDS" for method, path in sorted(found - needs.keys())]
    wrong += [
        f"{method} {path} is in NEEDS, and there is no such route" for method, path in sorted(needs.keys() - found)
    ]
    for one in asked:
        needed = needs.get((one.method, one.path))
        if needed is None:
            continue
        may = not needed or (one.who in set(map(str, Scope)) and may_do(Scope(one.who), Scope(needed)))
        if (one.status in REFUSED) == may and one.path != "/login":
            wrong.append(
                f"{one.method} {one.path} answered {one.who} with {one.status}, and it needs {needed or 'nothing'}"
            )
        if one.status >= 500 and one.path != "/ready":
            wrong.append(f"{one.method} {one.path} answered {one.who} with {one.status}")
    unknown = {(one.method, one.path, one.who): one for one in asked if one.ids == UNKNOWN_IDS}
    for one in asked:
        if one.ids != FOREIGN:
            continue
        of_nobody = unknown[one.method, one.path, one.who]
        if one.status in REFUSED and of_nobody.status in REFUSED:
            continue  # they did not even come in; some must wait by now
        if one.status < 300 or (one.status, one.said) != (of_nobody.status, of_nobody.said):
            wrong.append(
                f"{one.method} {one.path} tells {one.who} that somebody else has it: {one.status} {one.said:.80}, "
                f"and of an id that nobody has {of_nobody.status} {of_nobody.said:.80}"
            )
    return wrong + getattr(asked, "harmed", [])


def may_do(held: Scope, needed: Scope) -> bool:
    """Whether a key with one scope is good for another."""
    return needed is held or needed in IMPLIED.get(held, ())
