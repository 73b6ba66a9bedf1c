"""Who gets in: every route of the whole service, asked by every scope and by every kind of stranger; and where it can be sent out to."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator

import httpx

from proof.ground import STORES, ground_on
from proof.scenario import NOT_TRIED, Found, scenario
from redrive import Redrive
from redrive.observe.logs import configure_logs
from redrive.running import Service
from redrive.settings import SYSTEMS, Settings
from redrive.systems.triggers import Triggers, TriggerSettings
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.values import NewEvent
from redrive.testing import drain
from redrive.web.app import make_web
from tests.http.test_outgoing import HOSTILE
from tests.systems.triggers.receiver import Receiver
from tests.web.walk import FOREIGN, THERE, faults, walk

NOT_TRIED.append(
    "Where alerts and forwarded webhooks are sent to: an operator names those addresses in the settings, and no stranger does."
)
KEEPS_SECRETS = {"REDRIVE_SECRET_KEY": "A" * 43 + "="}


@scenario("nobody gets in who may not")
def nobody_gets_in(short: bool) -> Iterator[Found]:
    """Routes are found by walking the router: one without a line of what it needs fails the walk."""
    os.environ.update(KEEPS_SECRETS)
    configure_logs(level="error")
    for store in STORES[1:] if short else STORES:
        with ground_on(store, [name for name in SYSTEMS if name != "relay"], in_memory=True) as ground:
            asked = asyncio.run(walk(ground.url))
        wrong = faults(asked)
        for one in wrong[:10]:
            print("  ", one)
        routes, people = {(one.method, one.path) for one in asked}, {one.who for one in asked}
        ids = Counter(one.ids for one in asked)
        yield Found(
            tried=f"{store}: {len(routes)} routes, {len(people)} scopes and strangers; ids that nobody has, ids of what is there ({ids[THERE]:,} requests) "
            f"and of what is somebody else's ({ids[FOREIGN]:,})",
            figure=f"{len(asked):,} requests, {len(wrong)} answered as they should not",
            holds=not wrong,
        )


@scenario("nobody is sent where they should not be: no address inside is ever connected to")
def nobody_is_sent_inside(short: bool) -> Iterator[Found]:
    """Hostile addresses as new endpoints, as changes of endpoints, and as endpoints that are there: tested and delivered to."""
    os.environ.update(KEEPS_SECRETS)
    configure_logs(level="error")
    targets = HOSTILE[::5] if short else HOSTILE
    for store in STORES[1:] if short else STORES:
        with ground_on(store, ["triggers"], in_memory=True) as ground:
            wrong, connections = asyncio.run(try_hostile_targets(ground.url, targets))
        for one in wrong[:10]:
            print("  ", one)
        yield Found(
            tried=f"{store}: {len(targets)} hostile addresses, each named, changed to, tested and delivered to",
            figure=f"{connections} connections were made, {len(wrong)} answers were not what they should be",
            holds=not wrong and not connections,
        )


async def try_hostile_targets(url: str, targets: list[str]) -> tuple[list[str], int]:
    """What was let through, and how many connections came to a port of this machine that all of them could mean."""
    app = Redrive(url, durable=False)
    triggers = Triggers(app, TriggerSettings(_env_file=None))
    wrong: list[str] = []
    async with app, Receiver() as receiver:
        service = Service(app, Settings(_env_file=None))
        service.is_open = True
        transport = httpx.ASGITransport(make_web(service), client=("192.0.2.7", 1), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://redrive.example", timeout=60) as client:
            for number, target in enumerate(targets):
                hostile, owner = target.replace("{port}", str(receiver.port)), f"user-{number}"
                key = await service.keys.create(owner, ["endpoints", "events:write"])
                headers = {"X-API-Key": key.secret}
                # One that is there, as if its name had led elsewhere when it was made.
                values = {"url": hostile, "event_types": ["*"], "secret": new_secret(), "policy": {}, "enabled": True}
                made = await triggers.endpoints.create({"user_id": owner, **values})
                asks = {
                    "made": client.post("/v1/endpoints", json={"url": hostile}, headers=headers),
                    "changed": client.patch(f"/v1/endpoints/{made.id}", json={"url": hostile}, headers=headers),
                }
                for what, ask in asks.items():
                    if (answer := await ask).status_code not in (400, 422):
                        wrong.append(f"{hostile[:80]!r} was {what}: {answer.status_code}")
                tested = await client.post(f"/v1/endpoints/{made.id}/test", headers=headers)
                if tested.status_code >= 500 or tested.json().get("status_code") is not None:
                    wrong.append(f"{hostile[:80]!r} was tested: {tested.text[:200]}")
                await triggers.intake.take(
                    [NewEvent(user_id=owner, event_type="order.made", payload="{}", correlation_id="c")]
                )
            ended = await drain(app)  # each was refused for good, or its name has no address
        if ended.outcomes["done"]:
            wrong.append(f"{ended.outcomes['done']} deliveries were made")
        return wrong, receiver.connections
