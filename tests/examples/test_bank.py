"""The story of the guide "When a destination is down", in virtual time."""

from datetime import timedelta
from typing import Any

from examples.bank import DOWN_FOR, TRANSFERS, Bank, build, watch
from redrive.testing import VirtualClock, drain, temporary_url


async def lived(*, gates: bool) -> tuple[Bank, list[str], dict[str, int]]:
    """The whole outage, without waiting for it."""
    bank, clock, lines = Bank(), VirtualClock(), list[str]()
    async with build(temporary_url(), bank, gates=gates, clock=clock) as app:

        async def pass_time(span: timedelta) -> Any:
            for _ in range(4):
                await drain(app)
                clock.advance(span / 4)

        return bank, lines, await watch(app, bank, pass_time, lines.append)


async def test_behind_a_gate_an_outage_costs_nothing() -> None:
    """All transfers are made, though the bank was down for longer than three retries last, and it was hardly asked meanwhile."""
    bank, lines, counts = await lived(gates=True)
    assert (counts["done"], counts["dead"]) == (TRANSFERS, 0)
    assert any("holding, next probe" in line for line in lines)
    assert any("returning" in line for line in lines)
    assert bank.asked <= TRANSFERS + 10 + DOWN_FOR / 2 + 1


async def test_without_one_it_kills_what_meets_it() -> None:
    """The same outage without a gate: every transfer spends its retries against it."""
    bank, lines, counts = await lived(gates=False)
    assert counts["dead"] > TRANSFERS / 2
    assert all("no gate" in line for line in lines)
    assert bank.asked > 2 * TRANSFERS
