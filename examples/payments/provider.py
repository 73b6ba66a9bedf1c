"""A payment provider, as Stripe documents the idempotent requests of its API v1, without a network.

The status and the body of the first request with a key are saved once it has begun to be executed, errors included, and every other
request with the key gets them again for 24 hours. A request with the key of one that is still being executed is a 409, one with
other parameters a 400; neither is saved, nor is one that does not pass validation.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

import httpx

from redrive import hours
from redrive.ports import Clock

KEY_WINDOW = hours(24)
KEY_CHARS_MAX = 255


@dataclass(slots=True)
class SavedAnswer:
    """What is known of a key."""

    at: datetime
    parameters: dict[str, str]
    answer: tuple[int, dict[str, Any]] | None = None
    """None while the request is being executed."""


@dataclass(slots=True)
class Provider:
    """It takes payments, and may lose its answers: give it to `httpx.MockTransport`."""

    clock: Clock
    payments: list[dict[str, Any]] = field(default_factory=list)
    lost_answers: int = 0
    """So many answers are lost from now on, after what was asked for is done."""
    lost_requests: int = 0
    """So many requests never arrive."""
    hold: asyncio.Event | None = None
    """Requests are executed when it is set."""
    _saved: dict[str, SavedAnswer] = field(default_factory=dict)

    @property
    def in_use(self) -> bool:
        """Whether a request is being executed."""
        return any(one.answer is None for one in self._saved.values())

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """One request and its answer."""
        if request.method == "GET":
            found = [one for one in self.payments if one["customer"] == request.url.params["customer"]]
            return httpx.Response(200, json={"data": found})
        if self.lost_requests:
            self.lost_requests -= 1
            raise httpx.ConnectError("the network is down", request=request)
        status, body, replayed = await self._pay(request)
        if self.lost_answers:
            self.lost_answers -= 1
            raise httpx.ReadTimeout("no answer came", request=request)
        return httpx.Response(status, json=body, headers={"Idempotent-Replayed": "true"} if replayed else {})

    async def _pay(self, request: httpx.Request) -> tuple[int, dict[str, Any], bool]:
        key, asked = request.headers.get("Idempotency-Key", ""), dict(parse_qsl(request.content.decode()))
        if len(key) > KEY_CHARS_MAX or int(asked.get("amount", 0)) <= 0:
            return 400, {"error": {"type": "invalid_request_error"}}, False
        saved = self._saved.get(key)
        if saved is not None and saved.answer is not None and self.clock.now() - saved.at >= KEY_WINDOW:
            saved = None  # pruned: the same key is a new request
        if saved is not None:
            if saved.parameters != asked:
                return 400, {"error": {"type": "idempotency_error"}}, False
            if saved.answer is None:
                return 409, {"error": {"type": "idempotency_error", "code": "idempotency_key_in_use"}}, False
            return *saved.answer, True
        saved = SavedAnswer(self.clock.now(), asked)
        if key:
            self._saved[key] = saved
        if self.hold is not None:
            await self.hold.wait()
        saved.answer = self._execute(asked)
        return *saved.answer, False

    def _execute(self, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if asked["customer"] == "declined":
            return 402, {"error": {"type": "card_error", "code": "card_declined"}}
        payment = {
            "id": f"pi_{len(self.payments) + 1}",
            "amount": int(asked["amount"]),
            "customer": asked["customer"],
            "metadata": {"effect": asked["metadata[effect]"]},
        }
        self.payments.append(payment)
        return 200, payment
