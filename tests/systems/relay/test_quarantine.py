"""Bad input on its way to a queue of its own."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redrive.systems.relay import quarantine as quarantining
from redrive.systems.relay.message import InvalidMessageError

from .kit import delivered

PROPERTIES = {"message_id": "m-1", "correlation_id": "c-1", "reply_to": "answers", "content_encoding": "gzip"}


async def quarantine(publish: Callable[[Any], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put one message into quarantine; what was published."""
    monkeypatch.setattr(quarantining, "PAUSE_CAP_SECONDS", 0.001)
    sent: list[Any] = []

    class Publisher:
        async def deliver(self, message: Any, queue: str) -> None:
            sent.append(message)
            await publish(message)

    message = delivered(b"bad", headers={"theirs": 1}, content_type="text/x", **PROPERTIES)
    await quarantining.quarantine(message, InvalidMessageError("unparsable", "no"), Publisher(), "q")  # type: ignore[arg-type]
    return sent


async def test_a_passing_error_costs_the_quarantine_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails once may succeed: the second try still has all that came."""
    tries = 0

    async def publish(message: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("a moment")

    last = (await quarantine(publish, monkeypatch))[-1]
    assert (last.headers["theirs"], last.content_type, tries) == (1, "text/x", 2)
    assert {name: getattr(last, name) for name in PROPERTIES} == PROPERTIES


async def test_what_cannot_even_be_built_goes_without_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers that break the making of the message are left out after two tries; the body arrives and the session lives."""
    build, tries = quarantining.quarantined_message, 0

    def fragile(body: bytes, headers: Any, *given: Any, **named: Any) -> Any:
        nonlocal tries
        tries += 1
        if headers:
            raise RecursionError("too deep")
        return build(body, headers, *given, **named)

    async def publish(message: Any) -> None:
        pass

    monkeypatch.setattr(quarantining, "quarantined_message", fragile)
    [only] = await quarantine(publish, monkeypatch)
    assert (only.body, only.headers["x-invalid-reason"], tries) == (b"bad", "unparsable", 3)
    assert "theirs" not in only.headers
    assert {getattr(only, name) for name in PROPERTIES} == {None}
