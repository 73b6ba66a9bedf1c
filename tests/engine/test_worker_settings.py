"""What a worker may be told, and what it is called."""

import os
import socket
from datetime import timedelta

import pytest

from redrive.core.durations import ZERO
from redrive.core.states import State
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings, worker_name
from redrive.errors import SettingsError
from tests.engine.workbench import SECOND, Due, handlers_of, ignore


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1 to 10,000, not 0"),
        ({"concurrency": 10_001}, "concurrency must be a whole number from 1 to 10,000, not 10001"),
        ({"concurrency": True}, "concurrency must be a whole number from 1 to 10,000, not True"),
        ({"concurrency": 2.5}, "concurrency must be a whole number from 1 to 10,000, not 2.5"),
        ({"batch": 0}, "batch must be a whole number from 1 to 5,000, not 0"),
        ({"batch": 5_001}, "batch must be a whole number from 1 to 5,000, not 5001"),
        ({"lease": timedelta(milliseconds=999)}, "lease must be at least 1s, not 999ms"),
        ({"poll": timedelta(milliseconds=9)}, "poll must be at least 0.01s, not 9ms"),
        ({"prune_every": timedelta(milliseconds=999)}, "prune_every must be at least 1s, not 999ms"),
        ({"grace": timedelta(seconds=-1)}, "grace must lie between 0 and 366 days, not -1s"),
        ({"retention": {State.DONE: timedelta(days=-1)}}, "retention must lie between 0 and 366 days, not -1d"),
        (
            {"retention": {State.WAITING: timedelta(days=1)}},
            "retention is for tasks that have ended, not for <State.WAITING: 'waiting'>",
        ),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong, said):
    """A setting that could not work is refused with its name and with what would."""
    with pytest.raises((SettingsError, ValueError)) as refused:
        WorkerSettings(**wrong)
    assert str(refused.value) == said


def test_settings_at_their_limits_are_accepted():
    """The least and the most that the refusals name are allowed, and a retention may be text."""
    least = WorkerSettings(
        concurrency=1, batch=1, lease=SECOND, poll=timedelta(milliseconds=10), grace=ZERO, prune_every=SECOND
    )
    assert (least.concurrency, least.batch, least.grace) == (1, 1, ZERO)
    most = WorkerSettings(concurrency=10_000, batch=5_000, retention={State.DONE: "7d"})
    assert (most.concurrency, most.batch, most.retention) == (10_000, 5_000, {State.DONE: timedelta(days=7)})


def test_worker_names_differ(monkeypatch):
    """Two workers of one process have names of their own, which say where they run; the name of a host may be cut."""
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 60)
    assert worker_name() != worker_name()
    assert Worker(Due(None), handlers_of(job=ignore), name="w7").name == "w7"
    host, pid, letters = Worker(Due(None), handlers_of(job=ignore)).name.rsplit(":", 2)
    assert (host, pid, len(letters)) == ("h" * 40, str(os.getpid()), 6)
