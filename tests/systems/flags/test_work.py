"""Applying a schedule: deleted flags, expiry, newer changes, and changes that fail half-way."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, update

from redrive.systems.flags import NewSchedule, tables
from redrive.testing import assert_dead

from .conftest import MINUTE, Home

HOUR = timedelta(hours=1)


# --- deleted flags ------------------------------------------------------------------------------------------------------


async def test_deleted_flag_is_dead_at_once(home: Home) -> None:
    """A schedule of a flag that is gone is tried once, and not again."""
    made = await home.plan()
    await home.flags.delete("promo", actor="ada")
    assert (await home.schedule(made.id)).flag_id is None
    await home.drain()
    assert [one.outcome for one in await home.flags.lane.attempts(made.id)] == ["failed"]
    task = await assert_dead(home.flags.lane, str(made.id), error="does not exist any more", verdict="permanent")
    assert task.due_at is None
    assert await home.actions(made.id) == ["created", "failed"]


async def test_deleted_while_waiting_for_a_retry(home: Home) -> None:
    """The retry that was planned finds no flag: dead, though retries are left."""
    made = await home.plan_broken()
    await home.drain(until=MINUTE)
    assert (await home.schedule(made.id)).next_retry_at is not None
    await home.flags.delete("broken", actor="ada")
    await home.drain()
    assert len(await home.flags.lane.attempts(made.id)) == 2
    await assert_dead(home.flags.lane, str(made.id), error="FlagDeleted", verdict="permanent")


async def test_a_new_flag_of_the_same_key_is_another(home: Home) -> None:
    """A schedule belongs to the flag it was made for, not to its name."""
    made = await home.plan()
    await home.flags.delete("promo", actor="ada")
    await home.flags.put("promo", actor="bob")
    await home.drain()
    assert not (await home.flags.get("promo")).enabled
    assert (await home.schedule(made.id)).status == "failed"


async def test_updates_that_nobody_can_read(home: Home) -> None:
    """What somebody else wrote into the table and cannot be set fails for good, and is shown all the same."""
    made = await home.plan()
    t = tables.schedules
    for updates in ([1], {"colour": "red"}, {"rolloutPercentage": 101}):
        change = update(t).where(t.c.id == made.id).values(updates=updates, status="pending")
        await home.app.database.write(lambda connection, change=change: connection.execute(change))
        home.clock.advance(MINUTE)
        await home.run_due()
        await assert_dead(
            home.flags.lane, str(made.id), error="updates" if updates != {"rolloutPercentage": 101} else "rollout"
        )
        assert (await home.flags.schedules("promo"))[0].status == "failed"


# --- expiry -------------------------------------------------------------------------------------------------------------


async def test_expired_is_not_applied(home: Home) -> None:
    """A run that comes too late, as after an outage, does not apply it: it ends failed, with the reason."""
    made = await home.plan(expires_at=home.now + 5 * MINUTE)
    home.clock.advance(5 * MINUTE)
    await home.run_due()
    await assert_dead(home.flags.lane, str(made.id), error="expired", verdict="permanent")
    ended = await home.schedule(made.id)
    assert (ended.status, ended.next_retry_at, ended.applied_at) == ("failed", None, None)
    assert not (await home.flags.get("promo")).enabled
    [entry] = await home.audit(made.id, "failed")
    assert "expired" in entry.details["error"]


async def test_expired_while_waiting_for_a_retry(home: Home) -> None:
    """Retries go on until it expires, and only those to come before that are told."""
    made = await home.plan_broken(expires_at=home.now + 5 * MINUTE)
    told = [one.number for one in (await home.flags.retries("broken", made.id)).upcoming]
    assert told == [1, 2]
    await home.drain(until=2 * MINUTE)
    await home.mend()
    home.clock.advance(10 * MINUTE)
    await home.run_due()
    await assert_dead(home.flags.lane, str(made.id), error="expired")
    assert not (await home.flags.get("broken")).enabled


async def test_in_time_it_is_applied(home: Home) -> None:
    """An expiry changes nothing for a schedule that succeeds before."""
    made = await home.plan(expires_at=home.now + MINUTE + timedelta(seconds=1))
    await home.drain()
    assert (await home.schedule(made.id)).status == "applied"


# --- newer changes ------------------------------------------------------------------------------------------------------


async def test_hand_edit_supersedes_a_waiting_retry(home: Home) -> None:
    """A person sets the same field: the retry that waits ends cancelled at once, and does not undo it."""
    made = await home.plan_broken(key="broken")
    await home.drain(until=MINUTE)
    await home.mend()
    await home.flags.put("broken", enabled=False, actor="bob")
    ended = await home.schedule(made.id)
    assert (ended.status, ended.cancelled_by, ended.cancelled_at) == ("cancelled", "bob", home.now)
    assert (ended.last_error, ended.next_retry_at) == ("superseded: an edit has set enabled since", None)
    assert (await home.drain()).settlements == []
    assert not (await home.flags.get("broken")).enabled
    [entry] = await home.audit(made.id, "cancelled")
    assert (entry.actor, entry.details["reason"]) == ("bob", ended.last_error)


async def test_newer_schedule_supersedes_a_waiting_retry(home: Home) -> None:
    """On at 8:00 fails, off at 8:01 succeeds: on does not come back at 8:02."""
    older = await home.plan_broken()
    newer = await home.plan("promo", 2 * MINUTE)
    [other] = await home.flags.schedule(
        "broken", NewSchedule(scheduled_at=home.now + 2 * MINUTE, updates={"enabled": False}), actor="ada"
    )
    await home.drain(until=MINUTE)
    await home.mend()
    await home.drain()
    assert (await home.schedule(other.id)).status == "applied"
    ended = await home.schedule(older.id)
    assert (ended.status, ended.cancelled_by) == ("cancelled", f"schedule {other.id}")
    assert ended.last_error == f"superseded: schedule {other.id} has set enabled since"
    assert len(await home.flags.lane.attempts(older.id)) == 1
    assert not (await home.flags.get("broken")).enabled
    assert (await home.schedule(newer.id)).status == "applied"


async def test_another_field_is_left_alone(home: Home) -> None:
    """Only a change of the same field supersedes; description and percentage are others."""
    made = await home.plan_broken()
    await home.drain(until=MINUTE)
    await home.mend()
    await home.flags.put("broken", rollout_percentage=50, description="half", actor="bob")
    assert (await home.schedule(made.id)).status == "failed"
    await home.drain()
    flag = await home.flags.get("broken")
    assert (flag.enabled, flag.rollout_percentage) == (True, 50)


async def test_schedules_to_come_are_left_alone(home: Home) -> None:
    """What lies in the future is meant to change what a person sets now."""
    made = await home.plan()
    await home.flags.put("promo", enabled=False, actor="bob")
    await home.drain()
    assert (await home.schedule(made.id)).status == "applied"
    assert (await home.flags.get("promo")).enabled


async def test_an_older_schedule_never_supersedes_a_newer_one(home: Home) -> None:
    """Both fail; the older one comes through first, and the newer one still follows."""
    older = await home.plan_broken(max_retries=10)
    [newer] = await home.flags.schedule(
        "broken", NewSchedule(scheduled_at=home.now + 2 * MINUTE, updates={"enabled": False}), actor="ada"
    )
    await home.drain(until=2 * MINUTE)
    await home.mend()
    await home.drain()
    assert (await home.schedule(older.id)).status == "applied"
    assert (await home.schedule(newer.id)).status == "applied"
    assert not (await home.flags.get("broken")).enabled


async def test_a_late_first_try_gives_way_too(home: Home) -> None:
    """After an outage both are due at once. Whichever is run first, the newer change stands."""
    older = await home.plan()
    [newer] = await home.flags.schedule(
        "promo", NewSchedule(scheduled_at=home.now + 2 * MINUTE, updates={"enabled": False}), actor="ada"
    )
    home.clock.advance(HOUR)
    ledger = await home.flags.lane.ledger()
    held = await ledger.claim(1, MINUTE)  # the older one, by somebody who is slow
    assert [claim.task.id for claim in held] == [older.id]
    await home.run_due()
    assert (await home.schedule(newer.id)).status == "applied"
    home.clock.advance(MINUTE)  # and lost
    await home.drain()
    ended = await home.schedule(older.id)
    assert (ended.status, ended.cancelled_by) == ("cancelled", "processor")
    assert "superseded" in (ended.last_error or "")
    assert await home.actions(older.id) == ["created", "retried", "cancelled"]
    assert not (await home.flags.get("promo")).enabled


async def test_a_claimed_retry_sees_the_newer_change_itself(home: Home) -> None:
    """An edit cannot cancel what is being run just now; the run finds out by itself."""
    made = await home.plan_broken()
    await home.drain(until=MINUTE)
    await home.mend()
    home.clock.advance(HOUR)
    ledger = await home.flags.lane.ledger()
    [claim] = await ledger.claim(1, MINUTE)
    await home.flags.put("broken", enabled=False, actor="bob")
    assert (await home.row(made.id))["status"] == "failed"
    async with ledger.transaction() as transaction:
        from redrive.engine.context import Context

        context = Context(claim=claim, attempts_max=4)

        def run(connection):
            context.connection = connection
            handler = home.flags.lane.handlers.find(home.flags.lane.name)
            assert handler is not None
            return handler.function(claim.task, context)

        outcome = await transaction.connection.run_sync(run)
    assert "superseded" in outcome.reason
    assert not (await home.flags.get("broken")).enabled


@pytest.mark.every_store
async def test_edit_and_retry_at_the_same_moment(home: Home, make_home) -> None:
    """However an edit and due retries meet, the edit stands in the end."""
    other = await make_home()
    ids = [(await home.plan(f"broken-{number}")).id for number in range(10)]
    await home.break_()
    await home.drain(until=MINUTE)
    await home.mend()
    home.clock.advance(HOUR)
    edits = [other.flags.put(f"broken-{number}", enabled=False, actor="bob") for number in range(10)]
    await asyncio.gather(home.flags.process(), *edits)
    await home.drain()
    for number, id_ in enumerate(ids):
        assert not (await home.flags.get(f"broken-{number}")).enabled
        assert (await home.schedule(id_)).status in ("applied", "cancelled")


async def test_a_change_that_fails_leaves_the_flag_as_it_was(home: Home) -> None:
    """Whatever the transaction had done before it failed is undone: flag, schedule, audit; and the retry is planned."""
    made = await home.plan(updates={"enabled": True, "rolloutPercentage": 50})
    before = await home.flags.get("promo")
    real = home.flags._store.change

    def change(connection: Connection, *given: Any) -> None:
        real(connection, *given)
        connection.exec_driver_sql("INSERT INTO feature_flags (flag_key) VALUES ('promo')")  # a constraint says no

    home.flags._store.change = change  # type: ignore[method-assign]
    home.clock.advance(MINUTE)
    ran = await home.flags.process()
    assert (ran.processed, ran.retried) == (1, 1)
    assert await home.flags.get("promo") == before
    waiting = await home.schedule(made.id)
    assert (waiting.status, waiting.retry_count, waiting.applied_at) == ("failed", 1, None)
    assert await home.actions(made.id) == ["created", "retried"]
    home.flags._store.change = real  # type: ignore[method-assign]
    await home.drain()
    assert (await home.flags.get("promo")).rollout_percentage == 50


@pytest.mark.every_store
async def test_a_connection_that_is_lost_leaves_the_flag_as_it_was(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks in the midst of the transaction, after the flag was changed in it: the retry is planned."""
    made = await home.plan()
    real = home.flags._store.change

    def change(connection: Connection, *given: Any) -> None:
        real(connection, *given)
        if home.store == "postgres":
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        else:
            connection.invalidate()
            raise ConnectionError("the file is gone")

    home.flags._store.change = change  # type: ignore[method-assign]
    home.clock.advance(MINUTE)
    ran = await home.flags.process()
    assert (ran.processed, ran.retried) == (1, 1)
    assert not (await home.flags.get("promo")).enabled
    home.flags._store.change = real  # type: ignore[method-assign]
    await home.drain()
    applied = await home.schedule(made.id)
    assert (applied.status, applied.retry_count) == ("applied", 1)
    assert await home.actions(made.id) == ["created", "retried", "applied"]
