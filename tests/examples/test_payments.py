"""The story of the guide "Pay exactly once", and that the provider of the example behaves as documented."""

import asyncio

import httpx
import pytest

from examples.payments.__main__ import main
from examples.payments.provider import Provider
from redrive import hours
from redrive.testing import VirtualClock


async def test_each_invoice_is_paid_once() -> None:
    """Also the one whose answer was lost, and the one that never arrived at first; a refusal needs no probe."""
    lines = list[str]()
    await main(lines.append)
    assert lines == [
        "ada: {'payment': 'pi_1'} after done",
        "ben: {'payment': 'pi_2'} after failed, done",
        "cyd: {'payment': 'pi_3'} after failed, snoozed, done",
        "declined: task 'invoice-declined' is dead: HTTPStatusError: Client error '402 Payment Required' for url "
        "'https://payments.test/v1/payment_intents'\nFor more information check: "
        "https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/402 after failed",
        "the provider was paid 3 times, for 3 invoices",
    ]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def provider(clock: VirtualClock) -> Provider:
    return Provider(clock)


async def ask(provider: Provider, *, key: str, customer: str = "ada", amount: int = 700) -> httpx.Response:
    """Ask the provider for a payment."""
    async with httpx.AsyncClient(transport=httpx.MockTransport(provider), base_url="https://payments.test") as client:
        asked = {"amount": amount, "customer": customer, "metadata[effect]": key}
        return await client.post("/v1/payment_intents", data=asked, headers={"Idempotency-Key": key})


async def test_a_key_gets_its_first_answer_again_for_a_day(provider: Provider, clock: VirtualClock) -> None:
    """Errors too; after 24 hours the same key is a new request, and other parameters are refused."""
    first = await ask(provider, key="a")
    clock.advance(hours(23))
    again = await ask(provider, key="a")
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
    assert (await ask(provider, key="a", amount=701)).status_code == 400
    clock.advance(hours(1))
    assert (await ask(provider, key="a")).json()["id"] == "pi_2"
    declined = [await ask(provider, key="b", customer="declined") for _ in range(2)]
    assert [(one.status_code, "Idempotent-Replayed" in one.headers) for one in declined] == [(402, False), (402, True)]


async def test_a_key_in_use_is_a_conflict_and_is_not_saved(provider: Provider) -> None:
    """409 while the first is executed; afterwards its answer. What does not pass validation is not saved either."""
    provider.hold = asyncio.Event()
    first = asyncio.create_task(ask(provider, key="a"))
    while not provider.in_use:
        await asyncio.sleep(0)
    assert (await ask(provider, key="a")).status_code == 409
    provider.hold.set()
    assert (await first).status_code == 200
    assert (await ask(provider, key="a")).json() == (await first).json()
    assert (await ask(provider, key="b", amount=0)).status_code == 400
    assert (await ask(provider, key="b")).status_code == 200
