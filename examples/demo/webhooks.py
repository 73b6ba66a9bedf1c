"""Traffic for the inbox: a shop that posts plainly, a forge and a bank that sign, and handlers that fail as handlers do."""

import hashlib
import hmac
import json
import secrets
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import httpx
from standardwebhooks import Webhook

from examples.demo.traffic import Traffic, chance, is_out, span, work
from redrive import PermanentError, Redrive, Task, TransientError
from redrive.settings import load
from redrive.systems.webhooks import Source, Webhooks, WebhookSettings


class WebhookTraffic(Traffic):
    """Three senders."""

    def __init__(self, app: Redrive) -> None:
        self._forge_secret = secrets.token_hex(16)
        self._bank_secret = f"whsec_{b64encode(secrets.token_bytes(32)).decode()}"
        waits = {"retry_base_delay": span(0.5), "retry_max_delay": span(8)}
        self._webhooks = Webhooks(
            app,
            load(WebhookSettings).model_copy(update=waits),
            sources=[
                Source.make("forge", "github", [self._forge_secret]),
                Source.make("bank", "standard", [self._bank_secret]),
            ],
        )
        self._webhooks.handler("order.*")(order)
        self._webhooks.handler("push")(push)
        self._webhooks.handler("payout.*")(payout)
        self._run = secrets.token_hex(3)
        self._client: httpx.AsyncClient | None = None

    async def beat(self, number: int) -> None:
        """One webhook a beat; the shop, which does not trust its network, sends every fifth twice."""
        if number % 4 == 1:
            await self._forge(number)
        elif number % 4 == 3:
            await self._bank(number)
        else:
            for _ in range(2 if number % 10 == 0 else 1):
                await self._shop(number)

    async def end(self) -> None:
        """See `Traffic.end`."""
        if self._client is not None:
            await self._client.aclose()

    async def _shop(self, number: int) -> None:
        kind = "order.imported" if number % 12 == 4 else chance.choice(("order.paid", "order.shipped"))
        key, payload = f"{self._run}-{number}", {"order": number, "total": chance.randint(5, 500)}
        if self.url is None:
            await self._webhooks.accept(kind, payload, idempotency_key=key)
            return
        await self._post("webhooks", {"idempotency_key": key, "event_type": kind, "payload": payload})

    async def _forge(self, number: int) -> None:
        payload = {"ref": "refs/heads/main", "commits": number % 7 + 1}
        key = f"forge-{self._run}-{number}"
        if self.url is None:
            await self._webhooks.accept("push", payload, idempotency_key=key)
            return
        signature = hmac.new(self._forge_secret.encode(), _body(payload), hashlib.sha256).hexdigest()
        headers = {"X-GitHub-Delivery": key, "X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={signature}"}
        await self._post("webhooks/in/forge", payload, headers)

    async def _bank(self, number: int) -> None:
        payload = {"type": "payout.settled", "account": f"acc-{number % 30}", "cents": chance.randint(100, 99_999)}
        key, now = f"bank-{self._run}-{number}", datetime.now(UTC)
        if self.url is None:
            await self._webhooks.accept("payout.settled", payload, idempotency_key=key)
            return
        headers = {
            "webhook-id": key,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(self._bank_secret).sign(key, now, _body(payload).decode()),
        }
        await self._post("webhooks/in/bank", payload, headers)

    async def _post(self, path: str, payload: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False, timeout=10)
        sent = {"Content-Type": "application/json", **(headers or {})}
        answer = await self._client.post(f"{self.url}{path}", content=_body(payload), headers=sent)
        if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:  # which a visitor may ask for with QUEUE_MAXSIZE
            answer.raise_for_status()


def _body(payload: dict[str, Any]) -> bytes:
    return json.dumps(payload).encode()


async def order(task: Task) -> None:
    """Flaky; but what was imported from the old shop can never be read."""
    await work(0.02, 0.2)
    if task.kind == "order.imported":
        raise ValueError(f"order {task.payload['order']} has no currency")
    if chance.random() < 0.3:
        raise TransientError("stock.example did not answer within 2 s")


async def push(task: Task) -> None:
    """Needs the register, and fails while that is out."""
    await work(0.02, 0.1)
    if is_out():
        raise ConnectionError(f"crm.example:443 refused the connection after {task.payload['commits']} commits")


async def payout(task: Task) -> None:
    """Works, unless the account is closed."""
    await work(0.02, 0.1)
    if chance.random() < 0.08:
        raise PermanentError(f"account {task.payload['account']!r} is closed")
