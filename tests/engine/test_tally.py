"""What a worker counts of each kind and cause: pure, bounded, and written once."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from redrive.core.backoff import Fixed
from redrive.core.cause import cause_of
from redrive.core.decide import Settlement, decide
from redrive.core.durations import seconds
from redrive.core.histograms import RAN_SECONDS
from redrive.core.outcome import Done, Failed, LeaseExpired, Outcome, Released
from redrive.core.policy import Policy
from redrive.core.preview import preview
from redrive.core.states import State
from redrive.core.task import Claim, Task
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.tally import (
    CAUSES_MAX,
    ERRORS_MAX,
    KINDS_MAX,
    MINUTES_MAX,
    OTHER,
    SAMPLE_CHARS_MAX,
    WHOLE,
    KindMinute,
    KindTally,
)
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


def test_what_was_lost_beside_others_is_no_failure_of_its_kind() -> None:
    """Nobody is charged when a worker is killed, and nobody is told that the kind fails; what kills a worker alone is charged and told."""
    counted = tally()
    counted.add([settled(LeaseExpired())])
    [beside] = counted.take().minutes
    assert (beside.kind, beside.cause, beside.tries, beside.failures) == ("mail", WHOLE, 1, 0)
    claim = settled(Done()).claim.alone()
    counted.add([decide(claim, LeaseExpired(), POLICY, elapsed=timedelta(seconds=1))])
    taken = counted.take()
    assert row(list(taken.minutes), "mail").failures == 1
    assert [one.kind for one in taken.causes] == ["mail"]


def test_the_first_and_the_last_of_a_minute_are_kept() -> None:
    """When a kind first and last failed and was done in it, how often in all, and how long its handlers ran."""
    counted, later = tally(), START + seconds(5)
    for at in (START, later):
        counted.add([settled(Done(), at=at)])
        counted.add([settled(Failed(PermanentError("gone")), at=at)])
        counted.add([settled(Failed(ValueError("x")), at=at, ran=2000)])
        counted.add([settled(Failed(ValueError("x")), at=at, ran=2000, failures=2)])
    assert counted.tries == 8
    minutes = counted.take().minutes
    first = row([one for one in minutes if one.minute.minute == START.minute], "mail")
    assert (first.first_success, first.last_success) == (START + seconds(0.02), later + seconds(0.02))
    assert (first.first_failure, first.last_failure) == (START + seconds(0.02), later + seconds(0.02))
    assert (first.tries, first.dead, first.done) == (4, 2, 2)
    assert first.ran[3] == 4, f"0.02 s, between {RAN_SECONDS[2:4]}"
    second = row([one for one in minutes if one.minute.minute != START.minute], "mail")
    assert (second.tries, second.failures, second.dead, second.done) == (4, 4, 2, 0)
    assert (second.begun, second.ran[-1]) == (2, 4)
    assert second.first_success is None


def test_a_cause_says_where_it_came_from_and_when() -> None:
    """Its id is that of the census; first and last are of all that was not written yet, and deaths are told from other failures."""
    counted = tally()
    try:
        raise ValueError("order 7 is empty" + "!" * 2 * SAMPLE_CHARS_MAX)
    except ValueError as error:
        raised = error
    for at, failures in ((START, 0), (START + seconds(3), 2), (START + seconds(9), 2)):
        counted.add([settled(Failed(raised), at=at, failures=failures)])
    [first] = counted.take().causes
    stack = settled(Failed(raised)).explanation.stack  # type: ignore[union-attr]
    assert stack is not None
    assert (first.kind, first.at) == ("mail", stack.at)
    assert first.at is not None
    assert (first.id, first.text) == (cause_of(first.sample, kind="mail", at=first.at).id, cause_of(first.sample).text)
    assert len(first.sample) == SAMPLE_CHARS_MAX
    assert (first.first_seen, first.last_seen) == (START + seconds(0.02), START + seconds(9.02))
    counted.add([settled(Failed(raised), at=START + seconds(12))])
    taken = counted.take()
    assert taken.ledger == "redrive_task"
    [cause] = taken.causes
    assert (cause.first_seen, cause.last_seen) == (START + seconds(0.02), START + seconds(12.02))
    counts = row(list(taken.minutes), "mail", cause.id)
    assert (counts.tries, counts.failures, counts.dead) == (4, 4, 2)
    assert (counts.first_failure, counts.last_failure) == (START + seconds(0.02), START + seconds(12.02))
    tries = preview(POLICY, "mail", START)
    assert cause.budget == (3, tries[2].at - START)


def test_an_error_of_which_nothing_is_known_is_a_cause() -> None:
    """Systems may settle without a word; and a kind that nobody handles here has no budget."""
    counted = tally()
    silent = settled(Failed(ValueError("x")), kind="unknown")._replace(error=None)
    counted.add([silent, silent])
    [cause] = counted.take().causes
    assert (cause.sample, cause.text, cause.budget) == ("", cause_of(None).text, None)


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


def test_what_is_written_is_forgotten_and_what_grew_meanwhile_is_not() -> None:
    """A minute that is over goes once it is written, unless something was counted in it since; a cause as well."""
    counted, failed, other = tally(), settled(Failed(ValueError("x"))), settled(Failed(KeyError("y")))
    counted.add([failed])
    counted.add([other])
    counted.add([settled(Done(), at=START + seconds(60))])
    first = counted.take()
    counted.add([failed])
    second = counted.take()  # of the first minute alone, and the cause that was seen again
    assert [one.failures for one in second.minutes if not one.cause] == [3]
    counted.not_written(second)
    counted.wrote(first)
    again = counted.take()
    assert [one.failures for one in again.minutes if not one.cause] == [3]
    assert [cause.text for cause in again.causes] == ["ValueError: x"]
    counted.wrote(again)
    assert not counted.take().causes


def test_what_could_not_be_written_comes_again_with_what_is_new() -> None:
    """Nothing that has changed since takes the place of it, and a taking is not changed by what is counted after it."""
    counted = tally()
    counted.add([settled(Done())])
    taken = counted.take()
    counted.add([settled(Done(), kind="pay")])
    counted.add([settled(Done())])
    assert row(list(taken.minutes), "mail").ran[3] == 1
    counted.not_written(taken)
    again = list(counted.take().minutes)
    assert (row(again, "mail").done, row(again, "pay").done) == (2, 1)


def test_a_minute_that_is_written_is_not_begun_anew() -> None:
    """What is settled late counts in the last minute: its own one is forgotten, and would replace what was written of it."""
    counted = tally()
    counted.add([settled(Done()), settled(Done())])
    counted.add([settled(Done(), at=START + seconds(60))])
    counted.wrote(counted.take())
    counted.add([settled(Failed(ValueError("late")), at=START + seconds(1))])
    late = counted.take()
    assert [(one.minute.minute, one.done, one.failures) for one in late.minutes if not one.cause] == [(36, 1, 1)]
    assert [(one.minute.minute, one.failures) for one in late.minutes if one.cause] == [(36, 1)]


def test_who_is_late_does_not_turn_the_clock_back() -> None:
    """The first and the last are so by their times, in whatever order they were written."""
    counted = tally()
    for late in (5, 9, 0):
        counted.add(
            [settled(Done(), at=START + seconds(late)), settled(Failed(ValueError("x")), at=START + seconds(late))]
        )
    mail = row(list(counted.take().minutes), "mail")
    expected = (START + seconds(0.02), START + seconds(9.02))
    assert (mail.first_failure, mail.last_failure) == expected
    assert (mail.first_success, mail.last_success) == expected


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
    counted.add([settled(Done())])  # of a minute that is long forgotten
    rows = [one for one in counted.take().minutes if not one.cause]
    last = (START + timedelta(minutes=59)).replace(second=0)
    assert [one.minute for one in rows] == [last - timedelta(minutes=9 - one) for one in range(MINUTES_MAX)]
    assert [one.done for one in rows] == [0] * 9 + [1]


def test_what_is_told_apart_is_bounded_to_the_last() -> None:
    """As many errors between two takings, causes in a minute, and minutes, as there may be, and not one more."""
    for amount, errors in ((ERRORS_MAX, ERRORS_MAX), (ERRORS_MAX + 1, ERRORS_MAX)):
        counted = tally()
        counted.add([settled(Failed(ValueError(f"order {number}"))) for number in range(amount)])
        taken = counted.take()
        [cause] = taken.causes  # they differ in a number
        assert row(list(taken.minutes), "mail", cause.id).failures == errors
        assert row(list(taken.minutes), "mail").failures == amount
    names = [chr(ord("a") + number // 26) + chr(ord("a") + number % 26) for number in range(CAUSES_MAX + 1)]
    counted = tally()
    for _ in range(2):  # those that have a row go on to count
        counted.add([settled(Failed(ValueError(f"the {name} is missing"))) for name in names])
        rows = [one for one in counted.take().minutes if one.cause]
        assert len(rows) == CAUSES_MAX
    assert {one.failures for one in rows} == {2}


def test_what_cannot_be_counted_stops_no_work(caplog: pytest.LogCaptureFixture) -> None:
    """The settlement is written: whatever is wrong here is logged, and the next ones are counted."""
    counted = tally()
    counted.add([None])  # type: ignore[list-item]
    assert caplog.messages == ["what was settled in redrive_task could not be counted"]
    counted.add([settled(Done())])
    assert row(list(counted.take().minutes), "mail").done == 1


def test_an_error_of_many_minutes_is_counted_for_the_last_ones(caplog: pytest.LogCaptureFixture) -> None:
    """While nobody takes the counts, the oldest minutes of an error are forgotten, without a word and without a failure."""
    counted = tally()
    for minute in range(MINUTES_MAX + 3):
        counted.add([settled(Failed(ValueError("x")), at=START + timedelta(minutes=minute))])
    assert caplog.records == []
    taken = counted.take()
    [cause] = taken.causes
    assert cause.first_seen == START + timedelta(minutes=3, seconds=0.02)
    assert len([one for one in taken.minutes if one.cause == cause.id]) == MINUTES_MAX
