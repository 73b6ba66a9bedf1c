"""The log lines of schedules, field by field."""

from datetime import timedelta
from typing import Any

import pytest
import structlog

from redrive.core.decide import decide
from redrive.core.outcome import Released
from redrive.observe.logs import LogObserver
from redrive.systems.flags import POLICY, NewSchedule

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


async def test_the_time_of_a_retry_is_the_stored_one(
    home: Home, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much later the line is written: log and audit name the very instant that is in the row."""
    made = await home.plan_broken()
    ledger = await home.flags.lane.ledger()
    settle = ledger.settle

    async def slow(*arguments: Any, **options: Any) -> Any:
        unwritten = await settle(*arguments, **options)
        home.clock.advance(timedelta(seconds=5))
        return unwritten

    monkeypatch.setattr(ledger, "settle", slow)
    home.clock.advance(MINUTE)
    await home.flags.process()
    planned = (await home.schedule(made.id)).next_retry_at
    assert planned is not None
    stored = planned.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    [line] = of(said, "Retrying failed schedule")
    assert line["nextRetryAt"] == stored
    [entry] = await home.audit(made.id, "retried")
    assert entry.details["nextRetryAt"] == stored


async def test_log_lines_of_schedules_that_give_way(home: Home, said: list[Any]) -> None:
    """To an edit, to a schedule that is applied, or found out when it is tried: each with its flag and the reason, once."""
    edited, older, late = [await home.plan(f"broken-{number}") for number in (1, 2, 3)]
    await home.break_()
    newer = NewSchedule(scheduled_at=home.now + 2 * MINUTE, updates={"enabled": False})
    [other] = await home.flags.schedule("broken-2", newer, actor="ada")
    await home.drain(until=MINUTE)
    await home.mend()
    await home.flags.put("broken-1", enabled=False, actor="bob")
    await home.drain(until=MINUTE + timedelta(seconds=1))
    home.clock.advance(10 * MINUTE)
    ledger = await home.flags.lane.ledger()
    claims = {claim.task.id: claim for claim in await ledger.claim(10, MINUTE)}  # an edit cannot end what is held
    await home.flags.put("broken-3", enabled=False, actor="bob")
    await ledger.settle([decide(claim, Released(), POLICY) for claim in claims.values()], worker="w")
    ran = await home.flags.process()
    lines = {line["scheduleId"]: line for line in of(said, "Schedule superseded")}
    assert len(lines) == len(of(said, "Schedule superseded")) == 3
    named = {"event": "Schedule superseded", "log_level": "info", "system": "flags"}
    assert lines == {
        edited.id: named | {"scheduleId": edited.id, "flagKey": "broken-1",
                            "reason": "superseded: an edit has set enabled since"},
        older.id: named | {"scheduleId": older.id, "flagKey": "broken-2",
                           "reason": f"superseded: schedule {other.id} has set enabled since"},
        late.id: named | {"scheduleId": late.id, "flagKey": "broken-3",
                          "reason": "superseded: an edit has set enabled since"},
    }  # fmt: skip
    assert of(said, "task_cancelled") == []
    assert (ran.processed, ran.superseded) == (1, 1)
