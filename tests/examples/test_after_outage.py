"""The story of the guide "After an outage", in virtual time."""

from datetime import timedelta
from typing import Any

from examples.after_outage import PAYMENTS, Bank, build, live
from redrive.operator.carrier import Carrier
from redrive.testing import VirtualClock, drain, temporary_url


async def test_an_operation_that_comes_too_early_costs_one_try_and_brings_all_back_later() -> None:
    """It halts itself after one task, and after the bank is mended the same operation ends with the others done."""
    bank, clock, lines = Bank(), VirtualClock(), list[str]()
    async with build(temporary_url(), bank, clock=clock) as app:
        carrier = Carrier(app.store.operations, lambda: app.lanes, "example")

        async def pass_time(span: timedelta) -> Any:
            ends = clock.now() + span
            while clock.now() < ends:
                wait = await carrier.round()
                await drain(app)
                clock.advance(max(wait, timedelta(milliseconds=5)))

        operation = await live(app, bank, pass_time, lines.append)
    assert (operation.tally.done, operation.tally.failed) == (PAYMENTS - 1, 1)
    assert bank.asked == 2 * PAYMENTS
    assert any("it stopped by itself" in line for line in lines)
    assert "the bank was asked 1 times more; 199 payments were not touched" in lines
