"""The audit of schedules: in the commit of what it tells, field by field, and in nobody's way."""

import pytest
import structlog
from sqlalchemy import Connection

from redrive import Cancelled, Filter, State
from redrive.core.outcome import Done, Failed, LeaseExpired, Outcome, Released
from redrive.core.task import ClaimLost
from redrive.errors import UsageError
from redrive.events import Claim
from redrive.queues import decide
from redrive.systems.flags import NewSchedule
from redrive.systems.flags.policy import POLICY

from .conftest import MINUTE, Home, execute, of


async def claim(home: Home) -> Claim:
    """Claim the one schedule that is planned, a minute ahead."""
    home.clock.advance(MINUTE)
    [claim] = await (await home.flags.lane.ledger()).claim(1, MINUTE)
    return claim


@pytest.mark.parametrize(
    ("outcome", "retries", "actions"),
    [
        (Failed(ConnectionError("away")), 3, ["created", "retried"]),
        (Failed(ConnectionError("away")), 0, ["created", "failed"]),
        (LeaseExpired(), 3, ["created", "retried"]),
        (LeaseExpired(), 0, ["created", "failed"]),
        (Cancelled("superseded: an edit has set enabled since"), 3, ["created", "cancelled"]),
        (Done(), 3, ["created", "applied"]),
        (Released(), 3, ["created"]),
    ],
)
async def test_a_settlement_has_its_audit_row(home: Home, outcome: Outcome, retries: int, actions: list[str]) -> None:
    """What is settled is in the audit, also if the process dies right after the commit: no observer is told of it."""
    made = await home.plan(max_retries=retries)
    settlement = decide(await claim(home), outcome, POLICY)
    assert await (await home.flags.lane.ledger()).settle([settlement], worker="doomed") == []
    assert await home.actions(made.id) == actions


async def test_a_settlement_that_is_refused_has_none(home: Home) -> None:
    """A worker that has lost its claim writes nothing into the audit."""
    made = await home.plan()
    late = decide(await claim(home), LeaseExpired(), POLICY)
    ledger = await home.flags.lane.ledger()
    assert await ledger.settle([late], worker="keeper") == []
    assert await ledger.settle([late], worker="late") == [ClaimLost(late.claim)]
    assert await home.actions(made.id) == ["created", "retried"]


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
        "updates": {"enabled": True}, "maxRetries": 1, "backoff": None, "priority": "normal",
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


async def test_acts_from_elsewhere_are_in_the_books_too(home: Home) -> None:
    """Who cancels or redrives a schedule as a task, on another page or by command, stands in the audit of the flags."""
    waiting, dead = await home.plan("one", 10 * MINUTE), await home.plan_broken(max_retries=0)
    await home.drain(until=MINUTE)
    await home.flags.lane.cancel(Filter(ids=[waiting.id]), actor="bob", reason="not today")
    assert (await home.row(waiting.id))["cancelled_by"] == "bob"
    [entry] = await home.audit(waiting.id, "cancelled")
    assert (entry.actor, entry.details) == ("bob", {"updates": {"enabled": True}, "reason": "not today"})
    with pytest.raises(UsageError, match="not because somebody says so"):
        await home.flags.lane.resolve([dead.id], State.DONE, actor="bob", reason="I did it myself")
    assert (await home.schedule(dead.id)).status == "failed"
    await home.flags.lane.redrive(Filter(ids=[dead.id]), actor="bob", reason="mended")
    [entry] = [one for one in await home.audit(dead.id, "retried") if one.actor == "bob"]
    assert entry.details["reason"] == "mended"
    await home.run_due()
    await home.flags.lane.resolve([dead.id], State.CANCELLED, actor="bob", reason="given up")
    assert ((await home.row(dead.id))["status"], (await home.row(dead.id))["cancelled_by"]) == ("cancelled", "bob")
