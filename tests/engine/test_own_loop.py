"""Code without an event loop gets one in a thread of its own."""

import asyncio
import os
import threading

import pytest

from redrive import Redrive
from redrive.engine import own_loop
from redrive.engine.own_loop import run_in_own_loop
from redrive.errors import UsageError
from redrive.testing import temporary_url


async def thread_name() -> str:
    """Which thread runs this."""
    return threading.current_thread().name


async def fails() -> None:
    """Raises."""
    raise KeyError("a")


def test_work_is_done_in_one_thread_and_its_errors_come_back() -> None:
    """The same thread for all callers; what is raised is raised where it was asked for."""
    assert {run_in_own_loop(thread_name, instead="") for _ in range(3)} == {"redrive-own-loop"}
    with pytest.raises(KeyError):
        run_in_own_loop(fails, instead="")


async def test_an_event_loop_is_not_stopped_for_it() -> None:
    """Async code is told what to write instead."""
    with pytest.raises(UsageError, match=r"await app\.add\(…\)"):
        Redrive(temporary_url()).add_sync("mail")


def test_a_plain_program_adds_without_any_preparation() -> None:
    """No loop, no opening, no connection: the task is durable when the call returns."""
    url = temporary_url()
    app = Redrive(url)
    first, again = app.add_sync("mail", {"to": "ada"}, key="a"), app.add_sync("mail", {"to": "bob"}, key="a")
    assert (first.new, again.new, again.same_payload) == (True, False, False)
    asyncio.run(app.close())

    async def look() -> object:
        async with Redrive(url) as other:
            task = await other.tasks.get("a")
            return task and task.payload

    assert asyncio.run(look()) == {"to": "ada"}


def test_a_forked_process_adds_too() -> None:
    """The thread is not there any more in a child: it makes one of its own."""
    app = Redrive(temporary_url())
    app.add_sync("mail", key="parent")
    child = os.fork()
    if child == 0:
        try:
            app.add_sync("mail", key="child")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert app.add_sync("mail", key="child").new is False
    asyncio.run(app.close())


def test_its_thread_holds_up_no_end_of_a_program() -> None:
    """A program that has ended its main thread ends, whatever runs here."""
    run_in_own_loop(thread_name, instead="")
    [thread] = {one for one in threading.enumerate() if one.name == "redrive-own-loop" and own_loop._loop is not None}
    assert thread.daemon


def test_a_child_forgets_the_loop_and_a_lock_that_somebody_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever held the lock is not there any more, and would never let it go."""
    lock = threading.Lock()
    lock.acquire()
    monkeypatch.setattr(own_loop, "_loop", object())
    monkeypatch.setattr(own_loop, "_lock", lock)
    own_loop._in_child()
    assert own_loop._loop is None
    assert not own_loop._lock.locked()
