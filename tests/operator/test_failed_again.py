"""Whether a task that was brought back failed of the same cause as before, read from its history."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from redrive.core.operation import Fate
from redrive.core.states import State
from redrive.core.task import Attempt
from redrive.operator.failed_again import FailedAgain, failed_again, split_words
from redrive.operator.operations import SetTask

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
TASK = SetTask(
    position=0, task_id="7", fate=Fate.FAILED, step=1, released_at=NOW, ended_at=NOW + timedelta(seconds=3), why=None
)  # fmt: skip


def failed(seconds, error, at=None):
    """A try that ended so long after the release."""
    return Attempt(
        claim_id=UUID(int=1), number=1, started_at=None, ended_at=NOW + timedelta(seconds=seconds), outcome="failed",
        state=State.DEAD, worker="w", error=error, explanation={} if at is None else {"at": at},
    )  # fmt: skip


def test_same_and_new_causes_are_told_apart():
    """By the line where there is one, else by the error without its numbers; the newest tries of both sides count."""
    before = [failed(-9, "OSError: other"), failed(-5, "HTTPError: 503 for order 17", at="crm.py:61")][::-1]
    same = failed_again(TASK, [failed(2, "HTTPError: 503 for order 18", at="crm.py:61"), *before])
    assert (same.same, same.error, same.at) == (True, "HTTPError: 503 for order 18", "crm.py:61")
    assert failed_again(TASK, [failed(2, "HTTPError: 409 merged", at="crm.py:74"), *before]).same is False
    assert failed_again(TASK, [failed(2, "HTTPError: 2"), failed(-2, "HTTPError: 1")]).same is True


def test_what_the_history_does_not_tell():
    """A first life whose tries are pruned, or an end that left no try: nobody claims to know."""
    assert failed_again(TASK, [failed(2, "OSError: no")]).same is None
    assert failed_again(TASK, []) == FailedAgain(task_id="7", step=1, ended_at=TASK.ended_at)


def test_what_is_secret_is_not_shown():
    """The error is redacted like everywhere."""
    assert "hunter2" not in failed_again(TASK, [failed(1, "OSError: password=hunter2")]).error


def test_the_split_in_words():
    """Of all, or of the last that were looked at."""
    of = lambda *given: [FailedAgain(task_id="1", step=1, ended_at=NOW, same=one) for one in given]  # noqa: E731
    assert split_words(of(True, True, True, False), 4) == "3 of the same cause, 1 of a new one"
    assert split_words(of(False, False), 2) == "2 of new ones"
    assert split_words(of(True, None), 900) == "of the last 2: 1 of the same cause, of 1 the history does not tell"
