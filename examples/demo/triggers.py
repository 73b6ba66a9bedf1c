"""Traffic for triggers: a shop's events for five endpoints, which all lie on a small server in this very process.

One is flaky, one goes out with the register and heals, one refuses what it does not like, and one is gone: it says so, and is
disabled. Deliveries may go to 127.0.0.1 here, which the service otherwise refuses.
"""

import asyncio
import contextlib
import json
import os
import secrets
from datetime import datetime
from ipaddress import ip_network

from sqlalchemy import Connection, select

from examples.demo.traffic import Traffic, chance, is_out, span
from redrive import Redrive
from redrive.settings import load
from redrive.systems.triggers import TriggerSettings
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.sql.tables import events
from redrive.systems.triggers.system import Triggers
from redrive.systems.triggers.values import NewEvent

OWNER = "demo shop"
HERE = "127.0.0.1"
ENDPOINTS = {
    "warehouse": ("order.*", "The warehouse: a quarter of the tries fail."),
    "register": ("*", "The customer register: out for a while every two minutes."),
    "analytics": ("order.*", "Analytics: always there."),
    "tax-office": ("refund.*", "The tax office: does not take every refund."),
    "old-shop": ("order.cancelled", "The old shop: it is gone, and is disabled when it says so."),
}
"""By the path: which events they want, and what they are."""
SWEPT_MAX = 500
KEY = "A" * 43 + "="
"""A demo on a server has no secrets worth a better one, and its endpoints must still open in the next demo there."""
ANSWER_SECONDS_MAX = 15


class Sink:
    """A server that answers deliveries, badly on purpose."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen on a free port; returns the URL of its root."""
        self._server = await asyncio.start_server(self._serve, HERE, 0)
        return f"http://{HERE}:{self._server.sockets[0].getsockname()[1]}/"

    def close(self) -> None:
        """Stop listening. What is under way is cut, and tried again when the demo comes back."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):  # TimeoutError is an OSError
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = next(
                    (line.split(":")[1] for line in head.splitlines() if line.startswith("content-length")), "0"
                )
                await reader.readexactly(int(length))
                status = answer(head.split(" ")[1].strip("/"))
                writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
        writer.close()


def answer(path: str) -> int:
    """The status that an endpoint answers with this time."""
    match path:
        case "warehouse" if chance.random() < 0.25:
            return 503
        case "register" if is_out():
            return 503
        case "tax-office" if chance.random() < 0.4:
            return 422
        case "old-shop":
            return 410
        case _:
            return 204


class TriggerTraffic(Traffic):
    """The events of one shop."""

    every_seconds = 2.0

    def __init__(self, app: Redrive) -> None:
        settings = load(TriggerSettings)
        changed = {
            "retry_delays": tuple(f"{span(wait).total_seconds():g}" for wait in (2, 4, 6)),
            "delivery_allow_networks": (*settings.delivery_allow_networks, ip_network(f"{HERE}/32")),
        }
        if app.database.file is None:
            os.environ.setdefault("REDRIVE_SECRET_KEY", KEY)
        self._triggers = Triggers(app, settings.model_copy(update=changed))
        self._database = app.database
        self._sink = Sink()
        self._run = secrets.token_hex(3)

    async def begin(self) -> None:
        """Make the endpoints; those of an earlier demo lead nowhere now."""
        for old in await self._triggers.endpoints.of_user(OWNER):
            await self._triggers.endpoints.delete(OWNER, old.id)
        root = await self._sink.start()
        for path, (pattern, description) in ENDPOINTS.items():
            values = {
                "user_id": OWNER, "url": f"{root}{path}", "event_types": [pattern], "description": description,
                "secret": new_secret(), "policy": {}, "enabled": True,
            }  # fmt: skip
            await self._triggers.endpoints.create(values)

    async def beat(self, number: int) -> None:
        """One event."""
        kinds = ("order.created", "order.paid", "refund.made", "customer.changed", "order.cancelled")
        kind = kinds[number % len(kinds)]
        payload = json.dumps({"number": number, "total": chance.randint(5, 500)})
        event = NewEvent(user_id=OWNER, event_type=kind, payload=payload, correlation_id=f"demo-{self._run}-{number}")
        await self._triggers.intake.take([event])

    async def end(self) -> None:
        """See `Traffic.end`."""
        self._sink.close()

    async def sweep(self, before: datetime) -> None:
        """Events go with their deliveries and the history of these; whatever became of them."""
        for id_ in await self._database.read(_old, before):
            await self._triggers.inbox.delete(OWNER, id_)


def _old(connection: Connection, before: datetime) -> list[str]:
    old = select(events.c.id).where(events.c.user_id == OWNER, events.c.created_at < before)
    return list(connection.execute(old.order_by(events.c.id).limit(SWEPT_MAX)).scalars())
