"""The one thread that writes to a file: how it asks for a lock that others hold."""

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection

from redrive.ledgers.sql.database import Database
from redrive.ledgers.sqlite import group_commit

pytestmark = pytest.mark.timeout(30)
TIMES = 20


@pytest.fixture
def store() -> str:
    return "sqlite"


def sqlites_own_patience(connection: Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())


async def test_a_lock_that_others_hold_is_asked_for_each_millisecond(
    real_time_database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who commits again and again lets go for moments only. SQLite's own waits grow, and would pass most of them over."""
    assert await real_time_database.write(sqlites_own_patience) == 0
    spans = list[float]()
    with closing(
        sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    ) as other:

        def sleep(span: float) -> None:
            spans.append(span)
            if len(spans) == TIMES:
                other.execute("COMMIT")

        monkeypatch.setattr(group_commit, "HELD_SECONDS", math.inf)
        monkeypatch.setattr(group_commit, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        other.execute("BEGIN IMMEDIATE")
        await real_time_database.write(sqlites_own_patience)
    assert len(spans) == TIMES
    assert max(spans) <= 0.001


class Beside:
    """A write that comes in while another one runs."""

    def __init__(self, database: Database, run: Callable[[Connection], Any]) -> None:
        self._database = database
        self._run = run
        self._loop = asyncio.get_running_loop()
        self.written: asyncio.Task[Any]

    def come_in(self) -> None:
        """Called by the write that runs, in its thread: returns when the other stands in line."""
        there = threading.Event()

        def submit() -> None:
            self.written = self._loop.create_task(self._database.write(self._run))
            self._loop.call_soon(there.set)

        self._loop.call_soon_threadsafe(submit)
        assert there.wait(10)


def kept(connection: Connection, what: str) -> None:
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS kept (what TEXT)")
    connection.exec_driver_sql("INSERT INTO kept VALUES (?)", (what,))


def all_kept(connection: Connection) -> list[str]:
    return list(connection.exec_driver_sql("SELECT what FROM kept ORDER BY what").scalars())


def commits(connection: Connection, seen: list[str]) -> None:
    driver: Any = connection.connection.dbapi_connection
    driver.set_trace_callback(lambda text: seen.append(text) if text == "COMMIT" else None)


async def test_what_comes_in_while_others_are_written_waits_for_the_disk_with_them(
    real_time_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit costs one wait for the disk: whoever comes before it begins shares it."""
    monkeypatch.setattr(group_commit, "OPEN_SECONDS_MAX", math.inf)
    seen = list[str]()
    second = Beside(real_time_database, lambda connection: kept(connection, "second"))

    def first(connection: Connection) -> None:
        commits(connection, seen)
        kept(connection, "first")
        second.come_in()

    await real_time_database.write(first)
    await second.written
    assert seen == ["COMMIT"]
    assert await real_time_database.read(all_kept) == ["first", "second"]


async def test_a_transaction_that_is_open_for_long_takes_nothing_more(
    real_time_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first waits for its answer, and other processes for the lock."""
    monkeypatch.setattr(group_commit, "OPEN_SECONDS_MAX", -math.inf)
    seen = list[str]()
    second = Beside(real_time_database, lambda connection: kept(connection, "second"))

    def first(connection: Connection) -> None:
        commits(connection, seen)
        second.come_in()

    await real_time_database.write(first)
    await second.written
    assert seen == ["COMMIT", "COMMIT"]


@pytest.mark.parametrize("failing", ["first", "second"])
async def test_each_write_of_a_transaction_fails_for_itself(
    real_time_database: Database, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """What one write raises is raised for its caller, who finds nothing of it written; the other is written."""
    monkeypatch.setattr(group_commit, "OPEN_SECONDS_MAX", math.inf)

    def write(connection: Connection, name: str) -> None:
        kept(connection, name)
        if name == "first":
            second.come_in()
        if name == failing:
            raise KeyError(name)

    second = Beside(real_time_database, lambda connection: write(connection, "second"))
    results = await asyncio.gather(real_time_database.write(write, "first"), return_exceptions=True)
    results += await asyncio.gather(second.written, return_exceptions=True)
    assert [type(one) for one in results] == [
        KeyError if name == failing else type(None) for name in ("first", "second")
    ]
    assert await real_time_database.read(all_kept) == [name for name in ("first", "second") if name != failing]
