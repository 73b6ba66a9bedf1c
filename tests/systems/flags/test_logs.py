"""The log lines of schedules, field by field."""

from typing import Any

import pytest
import structlog

from redrive.observe.logs import LogObserver

from .conftest import MINUTE, Home, of


@pytest.fixture
def said(home: Home):
    """The log lines of the lane, without the level of detail that only debugging needs."""
    home.app.observers.append(LogObserver())
    with structlog.testing.capture_logs() as lines:
        yield lines


async def test_log_lines_of_a_schedule_that_fails(home: Home, said: list[Any]) -> None:
    """Each planned retry with the raised count and its time, then the limit; each with the fields that were promised."""
    made = await home.plan_broken()
    named = {"scheduleId": made.id, "flagKey": "broken", "system": "flags"}
    for number in (1, 2, 3):
        await home.drain(until=(await home.schedule(made.id)).due_at)
        planned = (await home.schedule(made.id)).next_retry_at
        assert planned is not None
        assert of(said, "Retrying failed schedule")[-1] == {
            "event": "Retrying failed schedule", "log_level": "info", **named, "retryCount": number,
            "nextRetryAt": planned.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }  # fmt: skip
    await home.drain()
    assert len(of(said, "Retrying failed schedule")) == 3
    last = (await home.schedule(made.id)).last_error
    assert of(said, "Schedule retry limit exceeded") == [
        {"event": "Schedule retry limit exceeded", "log_level": "error", **named, "retryCount": 3, "lastError": last}
    ]
    assert last is not None and "the disk says no" in last


async def test_log_lines_of_schedules_that_are_applied(home: Home, said: list[Any]) -> None:
    """At once, and on a retry with the count; one line each."""
    plain, again = await home.plan("promo"), await home.plan_broken()
    await home.drain(until=MINUTE)
    await home.mend()
    await home.drain()
    assert of(said, "Schedule applied") == [
        {
            "event": "Schedule applied",
            "log_level": "info",
            "scheduleId": plain.id,
            "flagKey": "promo",
            "system": "flags",
        }
    ]
    assert of(said, "Schedule applied on retry") == [
        {"event": "Schedule applied on retry", "log_level": "info", "scheduleId": again.id, "flagKey": "broken",
         "retryCount": 1, "system": "flags"}
    ]  # fmt: skip


async def test_log_lines_of_what_can_never_work(home: Home, said: list[Any]) -> None:
    """A deleted flag is no exceeded limit, also where there are no retries: an error of its own, with the reason."""
    ids = [(await home.plan(max_retries=retries)).id for retries in (3, 0)]
    await home.flags.delete("promo", actor="ada")
    await home.drain()
    lines = of(said, "Schedule failed for good")
    assert sorted(line["scheduleId"] for line in lines) == ids
    assert {(line["log_level"], line["reason"], line["retryCount"]) for line in lines} == {
        ("error", "permanent", 0), ("error", "permanent", 1),
    }  # fmt: skip
    assert of(said, "Schedule retry limit exceeded") == []


async def test_log_line_of_one_without_retries_that_fails(home: Home, said: list[Any]) -> None:
    """What might have passed and was not to be tried again has exceeded its limit of none."""
    made = await home.plan_broken(max_retries=0)
    await home.drain()
    [line] = of(said, "Schedule retry limit exceeded")
    assert (line["scheduleId"], line["retryCount"]) == (made.id, 0)
    assert of(said, "Schedule failed for good") == []


async def test_retry_metadata_that_cannot_be_written_is_logged(
    home: Home, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error names the schedule, its flag and what was wrong."""
    made = await home.plan_broken()
    home.clock.advance(MINUTE)
    ledger = await home.flags.lane.ledger()

    async def settle(settlements: Any, **options: Any) -> Any:
        raise ValueError("this row cannot be written")

    monkeypatch.setattr(ledger, "settle", settle)
    await home.flags.process()
    [line, *_] = of(said, "Schedule could not be settled")
    assert (line["log_level"], line["scheduleId"], line["flagKey"]) == ("error", made.id, "broken")
    assert "this row cannot be written" in line["error"]
