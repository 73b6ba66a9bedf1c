"""How schedules end other than by being applied: deleted flags, cancelling, expiry, newer changes; and coming back."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import update

from redrive import State
from redrive.systems.flags import InvalidStateError, NewSchedule, ScheduleNotFoundError
from redrive.systems.flags.tables import make_tables
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
    t = make_tables(home.app.database.dialect.name).schedules
    for updates in ([1], {"colour": "red"}, {"rolloutPercentage": 101}):
        change = update(t).where(t.c.id == made.id).values(updates=updates, status="pending")
        await home.app.database.write(lambda connection, change=change: connection.execute(change))
        home.clock.advance(MINUTE)
        await home.run_due()
        await assert_dead(
            home.flags.lane, str(made.id), error="updates" if updates != {"rolloutPercentage": 101} else "rollout"
        )
        assert (await home.flags.schedules("promo"))[0].status == "failed"


# --- cancelling ---------------------------------------------------------------------------------------------------------


async def test_cancelled_before_its_time(home: Home) -> None:
    """It is never applied, and the row says who and when."""
    made = await home.plan()
    ended = await home.flags.cancel("promo", made.id, actor="bob")
    assert (ended.status, ended.cancelled_by, ended.cancelled_at) == ("cancelled", "bob", home.now)
    assert (await home.drain()).settlements == []
    assert not (await home.flags.get("promo")).enabled
    assert await home.actions(made.id) == ["created", "cancelled"]
    assert [deed.actor for deed in await home.flags.lane.deeds(made.id)] == ["bob"]


async def test_cancelled_while_waiting_for_a_retry(home: Home) -> None:
    """No retry comes any more, also after what was broken is mended."""
    made = await home.plan_broken()
    await home.drain(until=MINUTE)
    ended = await home.flags.cancel("broken", made.id, actor="bob")
    assert (ended.status, ended.next_retry_at, ended.retry_count) == ("cancelled", None, 1)
    await home.mend()
    assert (await home.drain()).settlements == []
    assert not (await home.flags.get("broken")).enabled


@pytest.mark.parametrize("state", ["applied", "dead", "cancelled", "claimed"])
async def test_never_cancelled_afterwards(home: Home, state: str) -> None:
    """What has ended, or is being applied just now, cannot be cancelled."""
    made = await (home.plan_broken(max_retries=0) if state == "dead" else home.plan("broken"))
    if state == "cancelled":
        await home.flags.cancel("broken", made.id, actor="bob")
    await home.move_to(made.scheduled_at)
    if state == "claimed":
        ledger = await home.flags.lane.ledger()
        await ledger.claim(1, MINUTE)
    else:
        await home.run_due()
    before = await home.row(made.id)
    with pytest.raises(InvalidStateError, match="only one that waits can be cancelled"):
        await home.flags.cancel("broken", made.id, actor="eve")
    assert await home.row(made.id) == before


async def test_of_another_flag_it_is_not_found(home: Home) -> None:
    """A schedule is reached by its own flag in its own environment only."""
    made = await home.plan()
    await home.plan("other")
    for key, environment in (("other", "production"), ("promo", "staging"), ("none", "production")):
        for act in (home.flags.cancel, home.flags.retry):
            with pytest.raises(ScheduleNotFoundError):
                await act(key, made.id, actor="bob", environment=environment)
        with pytest.raises(ScheduleNotFoundError):
            await home.flags.retries(key, made.id, environment=environment)
    assert (await home.schedule(made.id)).status == "pending"


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
        from redrive.engine.handlers import Context

        context = Context(claim=claim, attempts_max=4)

        def run(connection):
            context.connection = connection
            handler = home.flags.lane.handlers.find(home.flags.lane.name)
            assert handler is not None
            return handler.function(claim.task, context)

        outcome = await transaction.connection.run_sync(run)
    assert "superseded" in outcome.reason
    assert not (await home.flags.get("broken")).enabled


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


# --- coming back --------------------------------------------------------------------------------------------------------


async def test_a_dead_one_is_brought_back(home: Home) -> None:
    """Due at once, with all its retries; who did it is in the audit and in the history."""
    made = await home.plan_broken()
    await home.drain()
    await home.mend()
    back = await home.flags.retry("broken", made.id, actor="bob")
    assert (back.status, back.retry_count, back.next_retry_at) == ("pending", 0, home.now)
    await home.run_due()
    assert (await home.schedule(made.id)).status == "applied"
    assert (await home.flags.get("broken")).enabled
    assert await home.actions(made.id) == ["created", *["retried"] * 3, "failed", "retried", "applied"]
    entry = (await home.audit(made.id, "retried"))[-1]
    assert (entry.actor, entry.details["byHand"]) == ("bob", True)
    assert [(deed.act, deed.actor) for deed in await home.flags.lane.deeds(made.id)] == [("redrive", "bob")]


async def test_only_the_dead_come_back(home: Home) -> None:
    """Neither what waits, nor what was applied or cancelled."""
    made = await home.plan_broken()
    with pytest.raises(InvalidStateError, match="waiting for its next try"):
        await home.flags.retry("broken", made.id, actor="bob")
    await home.drain(until=MINUTE)
    with pytest.raises(InvalidStateError, match="waiting for its next try"):
        await home.flags.retry("broken", made.id, actor="bob")
    await home.flags.cancel("broken", made.id, actor="bob")
    with pytest.raises(InvalidStateError, match="is cancelled"):
        await home.flags.retry("broken", made.id, actor="bob")


async def test_what_would_only_end_again_is_refused(home: Home) -> None:
    """Expired, deleted or superseded since: the error says so, and what to do instead."""
    expired = await home.plan("one", expires_at=home.now + 2 * MINUTE)
    deleted = await home.plan("two")
    older = await home.plan_broken("broken", max_retries=0)
    home.clock.advance(HOUR)
    await home.flags.delete("two", actor="ada")
    await home.run_due()
    await home.mend()
    await home.flags.put("broken", enabled=False, actor="bob")
    for key, made, why in (
        ("one", expired, "has expired"), ("two", deleted, "was deleted"), ("broken", older, "superseded"),
    ):  # fmt: skip
        with pytest.raises(InvalidStateError, match=why):
            await home.flags.retry(key, made.id, actor="bob")
        assert (await home.schedule(made.id)).status == "failed"


async def test_two_operators_press_at_once(home: Home) -> None:
    """One of them brings it back, the other is told."""
    made = await home.plan_broken(max_retries=0)
    await home.drain()
    both = await asyncio.gather(
        *(home.flags.retry("broken", made.id, actor=who) for who in ("ada", "bob")), return_exceptions=True
    )
    assert sorted(isinstance(one, InvalidStateError) for one in both) == [False, True]
    assert len(await home.audit(made.id, "retried")) == 1


async def test_retention_keeps_what_is_not_over(home: Home) -> None:
    """Applied go after 90 days, cancelled after 30, dead never; what waits for a retry is never touched."""
    applied, cancelled = await home.plan("one"), await home.plan("two")
    await home.flags.cancel("two", cancelled.id, actor="bob")
    dead = await home.plan("broken", max_retries=0)
    mid_retry = await home.plan_broken("broken-too", max_retries=10)
    await home.drain(until=2 * MINUTE)
    future = await home.plan("one", timedelta(days=300))

    async def there() -> set[int]:
        found = set()
        for key in ("one", "two", "broken", "broken-too"):
            found |= {one.id for one in await home.flags.schedules(key)}
        return found

    async def keep() -> None:
        from redrive.engine.keeper import Keeper
        from redrive.engine.patience import Patience
        from redrive.engine.settler import Settler
        from redrive.systems.flags.system import RETENTION

        lane, ledger = home.flags.lane, await home.flags.lane.ledger()
        patience = Patience(ledger.name, lane.tell)
        settler = Settler(ledger, "keeper", patience, lane.tell, batch=1)
        await Keeper(ledger, lane.handlers, settler, patience, lane.tell, retention=RETENTION).prune()

    everything = {applied.id, cancelled.id, dead.id, mid_retry.id, future.id}
    home.clock.advance(timedelta(days=29))
    await keep()
    assert await there() == everything
    home.clock.advance(timedelta(days=2))
    await keep()
    assert await there() == everything - {cancelled.id}
    home.clock.advance(timedelta(days=58))
    await keep()
    assert await there() == everything - {cancelled.id}
    home.clock.advance(timedelta(days=300))
    await keep()
    assert await there() == {dead.id, mid_retry.id, future.id}
    counts = await home.flags.lane.counts()
    assert (counts[State.DEAD], counts[State.WAITING]) == (1, 2)
