"""The history in partitions by time: every promise of the history holds, partitions come by themselves and go as a whole."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from redrive.core.durations import days
from redrive.core.outcome import Done
from redrive.core.states import State
from redrive.core.task import NewTask
from redrive.errors import UsageError
from redrive.ledgers.open import open_database, own_ledger
from redrive.ledgers.postgres import partitions
from redrive.ledgers.postgres.grants import grants
from redrive.ledgers.postgres.partitions import EVERY, partition
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.migrate import migrate
from tests.ledgers.homes import LEASE, START, Home, execute, settlement
from tests.ledgers.test_conformance import (  # noqa: F401 - run here with another table of attempts
    test_a_keeper_that_dies_leaves_no_trace,
    test_a_lost_settlement_leaves_no_trace,
    test_a_settled_claim_cannot_be_settled_again,
    test_late_and_current_claim_in_one_batch,
    test_one_claim_twice_in_one_batch,
    test_prune_takes_what_ended_long_ago_with_its_history,
    test_redrive,
)

OTHER_HOMES = "partitioned"
STORES = ("postgres",)
ROLES = {"owner": "parts_owner", "worker": "parts_worker", "viewer": "parts_viewer"}


@pytest.fixture
def store() -> str:
    return "postgres"


@pytest.fixture
async def plain(url: str) -> AsyncIterator[Database]:
    """A database with the tables as they are made."""
    database = open_database(url)
    yield database
    await database.close()


async def run_some(database: Database, *keys: str) -> None:
    """Tasks with a try each."""
    ledger = own_ledger(database)
    await ledger.add([NewTask(kind="mail", key=key) for key in keys])
    claims = await ledger.claim(len(keys), LEASE)
    assert await ledger.settle([settlement(claim, Done()) for claim in claims], worker="w1") == []


async def parts_of(database: Database) -> dict[str, int]:
    """The partitions, and how many rows each has."""
    asked = text(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'redrive_attempt'::regclass ORDER BY 1"
    )

    def look(connection: Any) -> dict[str, int]:
        names = connection.execute(asked).scalars().all()
        return {name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in names}

    return await database.read(look)


async def keep(database: Database, at: str) -> int:
    """What a keeper does at an instant."""
    asked = text("SELECT redrive_keep_partitions(CAST(CAST(:at AS text) AS timestamptz))")
    return await database.write(lambda connection: connection.execute(asked, {"at": at}).scalar_one())


async def test_attempts_are_where_they_belong(home: Home) -> None:
    """What ends on a day is in the partition of that day."""
    await home.put(3)
    for _ in range(2):
        await home.run(Done())
    home.clock.advance(days(1))
    await home.run(Done())
    found = {name: amount for name, amount in (await parts_of(home.database)).items() if amount}
    assert found == {f"redrive_attempt_{START:%Y%m%d}": 2, f"redrive_attempt_{START + days(1):%Y%m%d}": 1}


@pytest.mark.parametrize("every", EVERY)
async def test_a_table_in_use_is_partitioned(plain: Database, every: str) -> None:
    """No row is lost, workers go on while it is converted, and to say it again changes nothing."""
    await run_some(plain, *(f"before-{n}" for n in range(50)))
    stop = asyncio.Event()

    async def go_on() -> int:
        ran = 0
        while not stop.is_set():
            await run_some(plain, f"beside-{ran}")
            ran += 1
        return ran

    beside = asyncio.create_task(go_on())
    assert await partition(plain, every, None)
    stop.set()
    ran = await beside
    await run_some(plain, "after")
    parts = await parts_of(plain)
    assert sum(parts.values()) == 50 + ran + 1
    assert parts["redrive_attempt_rest"] == 0
    assert len(parts) > 3
    assert not await partition(plain, every, None)
    assert await parts_of(plain) == parts


async def test_a_conversion_that_fails_leaves_the_table_as_it_was(
    plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stops it between its steps: the table takes rows of any time, and a second call succeeds."""
    monkeypatch.setattr(partitions, "_swap", _fail)
    with pytest.raises(RuntimeError, match="stopped"):
        await partition(plain, "daily", None)
    await execute(plain, ["ALTER TABLE redrive_attempt ADD CONSTRAINT redrive_attempt_before CHECK (true)"])
    monkeypatch.undo()
    assert await partition(plain, "daily", None)


def _fail(*_: Any) -> None:
    raise RuntimeError("stopped")


async def test_a_conversion_that_was_killed_never_refuses_an_attempt(plain: Database) -> None:
    """What it promised is taken back by whoever keeps the ledger, before the day comes; until then it may be said again."""
    await plain.rebuild(partitions._announce_end, plain, "daily")  # and here it was killed
    ledger = own_ledger(plain)
    assert await ledger.keep_history() == 0
    await run_some(plain, "a")
    await execute(plain, ["SELECT redrive_keep_partitions(now() + interval '2 days')"])
    left = text("SELECT count(*) FROM pg_constraint WHERE conname = 'redrive_attempt_before'")
    assert await plain.read(lambda connection: connection.execute(left).scalar_one()) == 0
    assert (
        await plain.read(
            lambda connection: connection.execute(text("SELECT count(*) FROM redrive_partition")).scalar_one()
        )
        == 0
    )
    await plain.rebuild(partitions._announce_end, plain, "daily")
    assert await partition(plain, "daily", None)
    await run_some(plain, "b")


async def test_partitions_are_made_ahead_and_dropped(plain: Database) -> None:
    """Each keeper's round makes those of the days to come, and drops what is over and empty, or kept no longer."""
    await run_some(plain, "a")
    await partition(plain, "daily", days(30))
    assert await keep(plain, "2040-01-01") >= 7
    assert await keep(plain, "2040-01-01") == 0
    names = set(await parts_of(plain))
    assert {f"redrive_attempt_204001{day:02}" for day in range(1, 8)} <= names
    assert "redrive_attempt_history" not in names, "the first was kept for more than thirty days"
    await put_attempt(plain, "2040-01-03 12:00+00")
    assert await keep(plain, "2040-01-05") > 0
    left = {name: amount for name, amount in (await parts_of(plain)).items() if amount}
    assert left == {"redrive_attempt_20400103": 1}
    assert "redrive_attempt_20400102" not in await parts_of(plain)
    await keep(plain, "2040-02-10")
    assert sum((await parts_of(plain)).values()) == 0


async def test_what_has_no_partition_is_caught_and_brought_home(plain: Database) -> None:
    """A row of a time that nobody has made a partition for is stored, found, and moved when its partition comes."""
    await partition(plain, "monthly", None)
    await put_attempt(plain, "2040-01-03 12:00+00")
    assert (await parts_of(plain))["redrive_attempt_rest"] == 1
    await keep(plain, "2040-01-01")
    assert (await parts_of(plain))["redrive_attempt_rest"] == 0
    assert (await parts_of(plain))["redrive_attempt_20400101"] == 1


async def put_attempt(database: Database, at: str) -> None:
    """An attempt that ended at an instant."""
    columns = "ledger, task_id, claim_id, number, ended_at, outcome, state, worker, duration_seconds"
    row = f"('x', '1', gen_random_uuid(), 1, '{at}', 'done', 'done', 'w', 0)"
    await execute(database, [f"INSERT INTO redrive_attempt ({columns}) VALUES {row}"])


async def test_the_history_is_kept_for_its_own_time(plain: Database) -> None:
    """With a time of its own it stays when its task is pruned, and goes with its partition; without one it goes with its task."""
    ledger = own_ledger(plain)
    await partition(plain, "daily", days(30))
    await run_some(plain, "a")
    assert await ledger.prune([State.DONE], timedelta(0)) == 1
    assert sum((await parts_of(plain)).values()) == 1
    await partition(plain, "daily", None)
    await run_some(plain, "b")
    assert await ledger.prune([State.DONE], timedelta(0)) == 1
    assert sum((await parts_of(plain)).values()) == 1


async def test_the_worker_keeps_partitions_without_owning_them(empty_url: str) -> None:
    """The role that works has no right to make or drop a table; the owner's function does it, and rights go along with the conversion."""
    async with await psycopg.AsyncConnection.connect(empty_url, autocommit=True) as connection:
        await connection.execute(grants(schema="public", **ROLES))  # type: ignore[arg-type]
        for role in ROLES.values():
            await connection.execute(f"ALTER ROLE {role} LOGIN")  # type: ignore[arg-type]
    owner, worker = (open_database(empty_url.replace("postgres:@", f"{ROLES[who]}@")) for who in ("owner", "worker"))
    await migrate(owner)
    await run_some(worker, "a")
    await partition(owner, "daily", None)
    await run_some(worker, "b")
    assert await own_ledger(worker).keep_history() == 0
    assert await keep(worker, "2040-01-01") > 0
    await owner.close()
    await worker.close()


async def test_only_postgresql_has_partitions(tmp_path: Any, plain: Database) -> None:
    """SQLite and unknown intervals are refused, each with what to do."""
    sqlite = open_database(f"sqlite:///{tmp_path / 'a.db'}")
    with pytest.raises(UsageError, match="only PostgreSQL"):
        await partition(sqlite, "daily", None)
    await sqlite.close()
    with pytest.raises(UsageError, match="daily, weekly, monthly"):
        await partition(plain, "hourly", None)
