"""What a worker counts of each kind and cause: pure, bounded, and written once."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from redrive.core.backoff import Fixed
from redrive.core.decide import Settlement, decide
from redrive.core.durations import seconds
from redrive.core.outcome import Done, Failed, Outcome, Released
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Claim, Task
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.tally import CAUSES_MAX, KINDS_MAX, MINUTES_MAX, OTHER, WHOLE, KindMinute, KindTally
from redrive.errors import PermanentError

START = datetime(2026, 3, 15, 21, 35, 40, tzinfo=UTC)
POLICY = Policy(Fixed(seconds(10)), attempts=3)


def settled(
    outcome: Outcome, *, kind: str = "mail", at: datetime = START, ran: float = 0.02, failures: int = 0
) -> Settlement:
    task = Task(id=1, key="k", kind=kind, payload=None, state=State.CLAIMED, failures=failures, created_at=at)
    claim = Claim(task=task, claim_id=uuid4(), claimed_at=at)
    return decide(claim, outcome, POLICY, elapsed=timedelta(seconds=ran))


def tally() -> KindTally:
    handlers = Handlers()
    handlers.add(make_handler("mail", lambda task: None, POLICY))
    return KindTally("redrive_task", handlers)


def row(rows: list[KindMinute], kind: str, cause: str = WHOLE) -> KindMinute:
    [found] = [one for one in rows if (one.kind, one.cause) == (kind, cause)]
    return found


def test_tries_failures_and_ends_are_counted_by_kind() -> None:
    """First tries, failures, deaths and successes of a minute, with when each was first and last seen; what is given back is no try."""
    counted = tally()
    counted.add([settled(Done()), settled(Failed(ValueError("x")), failures=1), settled(Released())])
    counted.add(
        [
            settled(Failed(PermanentError("gone")), at=START + seconds(5)),
            settled(Done(), kind="pay", at=START + seconds(5)),
        ]
    )
    taken = counted.take()
    mail = row(list(taken.minutes), "mail")
    assert (mail.tries, mail.begun, mail.failures, mail.done, mail.dead) == (3, 2, 2, 1, 1)
    assert mail.minute == START.replace(second=0)
    assert mail.last_failure is not None
    assert mail.last_failure - START >= seconds(5)
    assert sum(mail.ran) == 3
    assert row(list(taken.minutes), "pay").done == 1


def test_a_cause_is_counted_by_itself_with_its_budget() -> None:
    """Errors that differ only in what varies are one cause; it knows how many tries a task has and how long they take."""
    counted = tally()
    counted.add([settled(Failed(ValueError(f"order {number} is empty"))) for number in range(20)])
    taken = counted.take()
    [cause] = taken.causes
    failed = row(list(taken.minutes), "mail", cause.id)
    assert (failed.failures, failed.tries, failed.dead) == (20, 20, 0)
    assert cause.sample.startswith("ValueError: order ")
    assert cause.budget is not None
    tries, lasts = cause.budget
    assert (tries, lasts > timedelta(0)) == (3, True)


def test_a_minute_is_handed_out_whole_until_it_is_over() -> None:
    """Who writes it twice changes nothing: the second time has the sums since the minute began. What was not written comes again."""
    counted = tally()
    counted.add([settled(Done())])
    counted.wrote(counted.take())
    assert not counted.take()
    counted.add([settled(Done(), at=START + seconds(2))])
    again = counted.take()
    assert row(list(again.minutes), "mail").done == 2
    counted.not_written(again)
    assert row(list(counted.take().minutes), "mail").done == 2
    counted.add([settled(Done(), at=START + seconds(60))])
    third = counted.take()
    assert [one.done for one in third.minutes] == [1]


def test_what_is_kept_is_bounded() -> None:
    """However many kinds, errors and minutes there are, and though nobody takes anything."""
    counted = tally()
    counted.add([settled(Done(), kind=f"kind{number}") for number in range(KINDS_MAX + 50)])
    rows = list(counted.take().minutes)
    assert len(rows) == KINDS_MAX + 1
    assert row(rows, OTHER).tries == 50
    counted = tally()
    names = [chr(ord("a") + number // 26) + chr(ord("a") + number % 26) for number in range(400)]
    counted.add([settled(Failed(ValueError(f"the {name} is missing"))) for name in names])
    taken = counted.take()
    assert len(taken.causes) <= CAUSES_MAX
    assert row(list(taken.minutes), "mail").failures == 400
    for minute in range(60):
        counted.add([settled(Failed(ValueError("x")), at=START + timedelta(minutes=minute))])
    assert len({one.minute for one in counted.take().minutes}) <= MINUTES_MAX


def test_what_cannot_be_counted_stops_no_work(caplog: pytest.LogCaptureFixture) -> None:
    """The settlement is written: whatever is wrong here is logged, and the next ones are counted."""
    counted = tally()
    counted.add([None])  # type: ignore[list-item]
    assert "could not be counted" in caplog.text
    counted.add([settled(Done())])
    assert row(list(counted.take().minutes), "mail").done == 1
