"""Schedules that fail: when they are tried again, how often, and how they end."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from redrive.systems.flags import NewSchedule, calculate_next_retry_at
from redrive.testing import assert_dead

from .conftest import MINUTE, Api, Home

JITTER_MAX = timedelta(seconds=30)


async def test_four_tries_then_dead(home: Home) -> None:
    """Waits of 2, 4 and 8 minutes and up to 30 s each: tries at 0, 2, 6 and 14 minutes, then it is over."""
    made = await home.plan_broken()
    await home.drain()
    tries = await home.flags.lane.attempts(made.id)
    assert [one.outcome for one in tries] == ["failed"] * 4
    starts = [one.started_at for one in tries]
    waits = [after - before for before, after in itertools.pairwise(starts)]
    for wait, minutes in zip(waits, (2, 4, 8), strict=True):
        assert minutes * MINUTE <= wait < minutes * MINUTE + JITTER_MAX + timedelta(milliseconds=2)
    row = await home.row(made.id)
    assert (row["status"], row["retry_count"], row["next_retry_at"]) == ("failed", 3, None)
    assert (row["lease_until"], row["claim_id"], row["applied_at"]) == (None, None, None)
    assert "the disk says no" in row["last_error"]
    await assert_dead(home.flags.lane, str(made.id), verdict="exhausted")
    assert not (await home.flags.get("broken")).enabled


@pytest.mark.parametrize("retries", [0, 1, 5, 10])
async def test_own_number_of_retries(home: Home, retries: int) -> None:
    """A schedule's own number goes before the default, and no wait is longer than an hour and its jitter."""
    made = await home.plan_broken(max_retries=retries)
    await home.drain()
    tries = await home.flags.lane.attempts(made.id)
    assert len(tries) == retries + 1
    for number, one in enumerate(tries[:-1], start=1):
        least = min(2**number, 60) * MINUTE
        assert one.delay is not None
        assert least <= one.delay < least + JITTER_MAX
    schedule = await home.schedule(made.id)
    assert (schedule.status, schedule.retry_count, schedule.next_retry_at) == ("failed", retries, None)


async def test_preview_is_what_happens(home: Home, api: Api) -> None:
    """The times that the API tells beforehand are those at which it is tried, to the microsecond and not before."""
    made = await home.plan_broken(max_retries=4)
    told = (await api.admin("GET", f"broken/schedule/{made.id}/retries")).json()
    assert (told["attempts"], len(told["upcoming"])) == ([], 5)
    times = [datetime.fromisoformat(one["at"]) for one in told["upcoming"]]
    assert times[0] == made.scheduled_at
    for number, time in enumerate(times, start=1):
        await home.move_to(time - timedelta(milliseconds=2))
        assert (await home.run_due()).settlements == []
        await home.move_to(time)
        assert len((await home.run_due()).settlements) == 1
        now = (await api.admin("GET", f"broken/schedule/{made.id}/retries")).json()
        assert [one["at"] for one in now["upcoming"]] == [one["at"] for one in told["upcoming"][number:]]
        assert [one["number"] for one in now["upcoming"]] == list(range(number + 1, 6))
    happened = [datetime.fromisoformat(one["startedAt"]) for one in now["attempts"]]
    assert happened == times
    assert now["status"] == "failed"


async def test_recovers_by_itself(home: Home) -> None:
    """The database is away for five minutes: the change is there at the third try, and the schedule says so."""
    made = await home.plan_broken()
    await home.drain(until=made.scheduled_at + 5 * MINUTE)
    waiting = await home.schedule(made.id)
    assert (waiting.status, waiting.retry_count) == ("failed", 2)
    assert waiting.next_retry_at is not None
    assert not (await home.flags.get("broken")).enabled
    await home.mend()
    await home.drain()
    row = await home.row(made.id)
    assert (row["status"], row["retry_count"], row["applied_at"]) == ("applied", 2, home.now)
    assert (row["next_retry_at"], row["lease_until"], row["claim_id"]) == (None, None, None)
    assert (await home.flags.get("broken")).enabled


async def test_jitter_is_spread_evenly(home: Home) -> None:
    """Over a hundred schedules that fail together, each third of the 30 s gets its share."""
    await home.plan_broken()
    new = [NewSchedule(scheduled_at=home.now + MINUTE, updates={"enabled": True}) for _ in range(99)]
    await home.flags.schedule("broken", *new, actor="ada")
    await home.move_to(home.now + MINUTE)
    await home.run_due()
    schedules = await home.flags.schedules("broken")
    jitters = sorted((one.next_retry_at - home.now - 2 * MINUTE).total_seconds() for one in schedules)
    assert len(jitters) == 100
    assert jitters[0] >= 0 and jitters[-1] < 30
    thirds = [sum(10 * third <= one < 10 * third + 10 for one in jitters) for third in range(3)]
    assert all(20 <= third <= 47 for third in thirds), thirds


@given(count=some.integers(-5, 10**6), key=some.integers(1, 10**9))
def test_formula(count: int, key: int) -> None:
    """`calculate_next_retry_at` is `now + min(2^(count+1), 60) min + jitter`, in UTC, for any number."""
    now = datetime(2030, 1, 1, 12, tzinfo=UTC)
    at = calculate_next_retry_at(count, key, now=now)
    least = min(2 ** min(max(count + 1, 1), 20), 60) * MINUTE
    assert least <= at - now < least + JITTER_MAX
    assert at.utcoffset() == timedelta(0)
    assert at == calculate_next_retry_at(count, str(key), now=now.astimezone())


def test_formula_without_more() -> None:
    """It can be asked for the count alone; a time without a zone is refused."""
    before = datetime.now(UTC)
    assert 2 * MINUTE <= calculate_next_retry_at(0) - before < 2 * MINUTE + JITTER_MAX + MINUTE
    with pytest.raises(ValueError, match="time zone"):
        calculate_next_retry_at(0, now=datetime(2030, 1, 1))


# --- a backoff of a schedule's own ------------------------------------------------------------------------------------


async def test_own_backoff(home: Home, api: Api) -> None:
    """A schedule that says so waits 5, 10 and then 12 s, and its jitter; what is told beforehand is what happens, lost workers included."""
    await home.flags.put("broken", actor="ada")
    body = {"scheduledAt": (home.now + MINUTE).isoformat(), "updates": {"enabled": True},
            "backoff": {"first": "5s", "cap": "12s"}}  # fmt: skip
    answer = await api.admin("POST", "broken/schedule", body)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["backoff"] == {"first": "5s", "cap": "12s"}
    told = (await api.admin("GET", f"broken/schedule/{made['id']}/retries")).json()
    task = await home.flags.lane.get_by_id(made["id"])
    assert task is not None
    also_told = [one.at for one in home.flags.lane.to_come(task) or ()]
    await home.break_()
    await home.drain()
    tries = await home.flags.lane.attempts(made["id"])
    for one, least in zip(tries[:-1], (5, 10, 12), strict=True):
        assert one.delay is not None and timedelta(0) <= one.delay - timedelta(seconds=least) < JITTER_MAX
    times = [datetime.fromisoformat(one["at"]) for one in told["upcoming"]]
    assert times == also_told
    assert all(abs(one.started_at - at) < timedelta(milliseconds=2) for one, at in zip(tries, times, strict=True))
    assert tries[0].explanation is not None and "5s" in tries[0].explanation["backoff"]
    [entry] = await home.audit(made["id"], "created")
    assert entry.details["backoff"] == {"first": "5s", "cap": "12s"}
    assert tries[0].ended_at + tries[0].delay == calculate_next_retry_at(
        0, made["id"], now=tries[0].ended_at, first=timedelta(seconds=5), cap=timedelta(seconds=12)
    )


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ({"first": "5m"}, (5, 10, 20, 40, 60)),
        ({"cap": "3m"}, (2, 3, 3, 3, 3)),
        ({"first": "2h"}, (120,) * 5),
        (None, (2, 4, 8, 16, 32)),
    ],
)
async def test_what_a_backoff_does_not_say_is_as_for_all(home: Home, backoff: Any, waits: tuple[int, ...]) -> None:
    """Two minutes at first, an hour at most."""
    made = await home.plan(backoff=backoff, max_retries=5)
    times = [one.at for one in made.upcoming()]
    for (before, after), wait in zip(itertools.pairwise(times), waits, strict=True):
        assert wait * MINUTE <= after - before < wait * MINUTE + JITTER_MAX


@pytest.mark.parametrize(
    "backoff",
    [
        {},
        {"first": "0s"},
        {"first": "8d"},
        {"first": "soon"},
        {"first": "2m", "cap": "1m"},
        {"second": "2m"},
        {"first": 5},
        "2m",
    ],
    ids=str,
)
async def test_a_backoff_that_cannot_be_is_refused(home: Home, api: Api, backoff: Any) -> None:
    """400, and nothing is planned."""
    await home.flags.put("promo", actor="ada")
    body = {"scheduledAt": (home.now + MINUTE).isoformat(), "updates": {"enabled": True}, "backoff": backoff}
    answer = await api.admin("POST", "promo/schedule", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "VALIDATION_ERROR"), answer.text
    assert "backoff" in answer.json()["error"]["message"]
    assert await home.flags.schedules("promo") == []


async def test_a_backoff_that_others_spoilt_is_as_for_all(home: Home) -> None:
    """A schedule is retried whatever stands in its column."""
    made = await home.plan_broken()
    statement = 'UPDATE feature_flag_schedules SET backoff = \'{"first": "never"}\''
    await home.app.database.write(lambda connection: connection.exec_driver_sql(statement))
    await home.drain(until=MINUTE)
    schedule = await home.schedule(made.id)
    assert schedule.backoff is None
    assert schedule.next_retry_at is not None and schedule.next_retry_at - made.scheduled_at >= 2 * MINUTE
