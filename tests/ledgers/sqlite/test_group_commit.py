"""The one thread that writes to a file: how it asks for a lock that others hold."""

import math
import sqlite3
import time
from contextlib import closing
from types import SimpleNamespace

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
