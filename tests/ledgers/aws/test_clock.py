"""What time it is, by answers of AWS."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from redrive.core.durations import ZERO, hours, minutes, seconds
from redrive.items import Part
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.clock import ANSWERS, AnswerClock
from redrive.systems.triggers.aws.follow import EventFollower
from tests.ledgers.aws.homes import DELIVERIES, ItemHome, new_event
from tests.ledgers.homes import LEASE

STORES = ("aws",)


def answer(off: timedelta = ZERO) -> dict[str, Any]:
    said = format_datetime((datetime.now(UTC) + off).replace(microsecond=0), usegmt=True)
    return {"ResponseMetadata": {"HTTPHeaders": {"date": said}}}


def wrong_by(clock: AnswerClock) -> float:
    return abs((clock.now() - datetime.now(UTC)).total_seconds())


@pytest.mark.parametrize("off", [minutes(5), -minutes(5), seconds(3)])
def test_a_wrong_clock_is_corrected(off: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one answer if there is no other, then by the median, so that one answer that is wrong changes nothing."""
    monkeypatch.setattr("redrive.ledgers.aws.clock.NOTE_EVERY_SECONDS", 0)
    clock = AnswerClock(lambda: datetime.now(UTC) + off)
    assert wrong_by(clock) > 2
    clock.note(answer(), time.monotonic())
    assert wrong_by(clock) < 2
    for number in range(ANSWERS):
        clock.note(answer(hours(1) if number % 3 == 0 else ZERO), time.monotonic())
        assert wrong_by(clock) < 2 or number == 0
    assert wrong_by(clock) < 2


def test_a_right_clock_is_left_alone() -> None:
    """Answers tell whole seconds: a good clock is better than that. What took long, or says nothing, is not believed."""
    clock = AnswerClock()
    clock.note(answer(seconds(1)), time.monotonic())
    assert wrong_by(clock) < 0.1
    other = AnswerClock()
    other.note(answer(hours(1)), time.monotonic() - 5)
    for said in ({}, {"ResponseMetadata": {"HTTPHeaders": {"date": "noon"}}}, {"ResponseMetadata": None}):
        other.note(said, time.monotonic())
    assert wrong_by(other) < 0.1


def test_a_clock_that_is_set_is_believed_until_the_next_answer() -> None:
    """What answers said before means nothing then: a frozen process would live in the past otherwise."""
    off = [minutes(5)]
    clock = AnswerClock(lambda: datetime.now(UTC) + off[0])
    clock.note(answer(), time.monotonic())
    off[0] = ZERO
    assert wrong_by(clock) < 0.1
    off[0] = -minutes(7)
    assert wrong_by(clock) > 400
    clock.note(answer(), time.monotonic())
    assert wrong_by(clock) < 2


async def test_a_wrong_clock_takes_nobodys_lease(home: ItemHome) -> None:
    """A process that is five minutes ahead, and one that is five behind, go by the time of the table, over the wire."""
    make = home.ledger.__class__
    dynamo, queue = home.ledger.dynamo, home.ledger.queue

    def ledger(off: timedelta) -> Any:
        own = Dynamo(dynamo._client, dynamo.table, clock=AnswerClock(lambda: datetime.now(UTC) + off))
        return make(own, queue, DELIVERIES.table, follower=EventFollower(), slack=ZERO, grace=ZERO, sweep_every=ZERO)

    right, ahead, behind = ledger(ZERO), ledger(minutes(5)), ledger(-minutes(5))
    home.clock.advance(datetime.now(UTC) - home.clock.now())
    now = datetime.now(UTC)
    parts = {"00": Part("ep", due_at=now - seconds(5))}
    await right.take(new_event("event-1", parts, now), counts={"received": 1})
    [claim] = await behind.claim(1, LEASE)
    assert abs((claim.claimed_at - now).total_seconds()) < 10
    assert await ahead.reclaim(9, LEASE) == []
    assert await right.reclaim(9, LEASE) == []
    assert await behind.extend([claim], LEASE) == []
    head = (await right.heads(["event-1"]))["event-1"]
    assert abs((head.parts["00"].lease_until - now - LEASE).total_seconds()) < 10
