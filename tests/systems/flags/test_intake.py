"""Schedules as they come in: what is refused, what is written, and how many may wait."""

import pytest

from redrive.systems.flags import InvalidChangeError, NewSchedule

from .conftest import MINUTE, Home


@pytest.mark.parametrize("retries", [11, -1, True, "3"])
async def test_other_numbers_are_refused(home: Home, retries: object) -> None:
    """Between 0 and 10, and a number."""
    with pytest.raises(InvalidChangeError, match="maxRetries must be a whole number from 0 to 10"):
        await home.plan(max_retries=retries)
    assert await home.flags.schedules("promo") == []


async def test_default_is_written_when_it_is_made(make_home) -> None:
    """The default of the settings stands in the row: later settings do not change it."""
    home = await make_home(flag_schedule_max_retries=1)
    made = await home.plan_broken()
    other = await make_home(flag_schedule_max_retries=7)
    assert made.max_retries == 1
    await other.drain()
    assert len(await other.flags.lane.attempts(made.id)) == 2


async def test_more_than_can_wait_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag has a limit of schedules that wait."""
    monkeypatch.setattr("redrive.systems.flags.intake.OPEN_MAX", 3)
    await home.plan()
    new = NewSchedule(scheduled_at=home.now + MINUTE, updates={"enabled": True})
    with pytest.raises(ValueError, match="waiting already"):
        await home.flags.schedule("promo", new, new, new, actor="ada")
    assert len(await home.flags.schedule("promo", new, new, actor="ada")) == 2
