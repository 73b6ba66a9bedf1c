"""What is left to be read: log lines and audit entries, field by field, and an audit that stands in nobody's way."""

from typing import Any

import pytest
import structlog
from sqlalchemy import Connection

from redrive.observe.logs import LogObserver
from redrive.systems.flags import NewSchedule

from .conftest import MINUTE, Home, execute


@pytest.fixture
def said(home: Home):
    """The log lines of the lane, without the level of detail that only debugging needs."""
    home.app.observers.append(LogObserver())
    with structlog.testing.capture_logs() as lines:
        yield lines


def of(lines: list[Any], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


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

    async def settle(settlements: Any, *, worker: str, within: Any = None) -> Any:
        raise ValueError("this row cannot be written")

    monkeypatch.setattr(ledger, "settle", settle)
    await home.flags.process()
    [line] = of(said, "Schedule could not be settled")
    assert (line["log_level"], line["scheduleId"], line["flagKey"]) == ("error", made.id, "broken")
    assert "this row cannot be written" in line["error"]


async def test_audit_field_by_field(home: Home) -> None:
    """Who, when and what of every act."""
    began = home.now
    made = await home.plan_broken(max_retries=1)
    await home.drain()
    row = await home.row(made.id)
    created, retried, failed = await home.audit(made.id)
    for entry, action, actor in (
        (created, "created", "ada"), (retried, "retried", "processor"), (failed, "failed", "processor"),
    ):  # fmt: skip
        assert (entry.action, entry.actor) == (f"flag_schedule.{action}", actor)
        assert (entry.flag_key, entry.environment, entry.schedule_id) == ("broken", "production", made.id)
    assert (created.at, failed.at) == (began, home.now)
    assert created.details == {
        "scheduledAt": made.scheduled_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "expiresAt": None,
        "updates": {"enabled": True}, "maxRetries": 1,
    }  # fmt: skip
    first, _ = await home.flags.lane.attempts(made.id)
    assert retried.at == first.ended_at
    assert retried.details["retryCount"] == 1
    assert first.delay is not None
    assert retried.details["nextRetryAt"] == (first.ended_at + first.delay).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert (failed.details["retryCount"], failed.details["verdict"]) == (1, "exhausted")
    assert failed.details["error"] == row["last_error"]
    other = await home.plan()
    await home.drain()
    [applied] = await home.audit(other.id, "applied")
    assert (applied.at, applied.actor) == (home.now, "processor")
    assert applied.details == {"updates": {"enabled": True}, "retryCount": 0}


async def test_an_audit_that_fails_blocks_nothing(home: Home) -> None:
    """With the audit out of order schedules are made, cancelled, applied, retried and brought back as ever, and it is logged."""
    refuse = (
        ["CREATE TRIGGER full BEFORE INSERT ON feature_flag_audit BEGIN SELECT RAISE(ABORT, 'full'); END"]
        if home.store == "sqlite"
        else [
            "CREATE FUNCTION full_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'full'; END $$",
            'CREATE TRIGGER "full" BEFORE INSERT ON feature_flag_audit FOR EACH ROW EXECUTE FUNCTION full_up()',
        ]
    )
    await execute(home.app, *refuse)
    with structlog.testing.capture_logs() as lines:
        applied, cancelled = await home.plan("one"), await home.plan("two")
        failed = await home.plan_broken(max_retries=1)
        await home.flags.cancel("two", cancelled.id, actor="bob")
        await home.drain()
        await home.mend()
        await home.flags.retry("broken", failed.id, actor="bob")
        await home.drain()
        ended = [(await home.schedule(one.id)).status for one in (applied, cancelled, failed)]
        assert ended == ["applied", "cancelled", "applied"]
        assert (await home.flags.get("one")).enabled
        assert await home.audit() == []
    complaints = [line["action"] for line in of(lines, "Audit entry could not be written")]
    assert sorted(set(complaints)) == [
        f"flag_schedule.{action}" for action in ("applied", "cancelled", "created", "failed", "retried")
    ]


async def test_an_audit_that_is_gone_blocks_nothing(home: Home) -> None:
    """Nor does a table that is not there."""

    def drop(connection: Connection) -> None:
        connection.exec_driver_sql("DROP TABLE feature_flag_audit")

    await home.app.database.write(drop)
    made = await home.plan()
    later = NewSchedule(scheduled_at=home.now + 2 * MINUTE, updates={"enabled": False})
    await home.flags.schedule("promo", later, actor="ada")
    with structlog.testing.capture_logs():
        await home.drain(until=MINUTE)
    assert (await home.schedule(made.id)).status == "applied"
