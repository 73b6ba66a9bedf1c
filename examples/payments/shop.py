"""The application: invoices that are paid once, whatever becomes of the answer."""

from dataclasses import dataclass
from typing import Any

import httpx

from redrive import Context, Redrive, Task, minutes
from redrive.effects import Effect, Happened, NotHappened
from redrive.ports import Clock

from .provider import KEY_WINDOW, Provider


@dataclass
class Invoice:
    """What is to be paid."""

    customer: str
    cents: int


def build(url: str, provider: Provider, *, clock: Clock | None = None) -> Redrive:
    """An application that pays at this provider."""
    app = Redrive(url, clock=clock)
    client = httpx.AsyncClient(transport=httpx.MockTransport(provider), base_url="https://payments.test")

    async def was_paid(task: Task[Invoice], context: Context) -> Happened | NotHappened:
        """What the provider's own list says: each payment carries the key of the task that asked for it."""
        listed = await client.get("/v1/payment_intents", params={"customer": task.payload.customer})
        listed.raise_for_status()
        for payment in listed.json()["data"]:
            if payment["metadata"]["effect"] == context.effect_key:
                return Happened({"payment": payment["id"]})
        return NotHappened("the provider lists no such payment")

    # A refusal (400, 402) is an answer. No answer, a 409 or a 5xx is none: nobody knows, so the probe is asked.
    @app.handler(
        "pay",
        retries=5,
        wait=minutes(1),
        permanent=[400, 402],
        timeout=minutes(1),
        effect=Effect(probe=was_paid, key_window=KEY_WINDOW),
    )
    async def pay(task: Task[Invoice], context: Context) -> dict[str, Any]:
        async with context.effect():
            paid = await client.post(
                "/v1/payment_intents",
                data={
                    "amount": task.payload.cents,
                    "customer": task.payload.customer,
                    "metadata[effect]": context.effect_key,
                },
                headers={"Idempotency-Key": context.effect_key},
            )
            paid.raise_for_status()
        return {"payment": paid.json()["id"]}

    return app
