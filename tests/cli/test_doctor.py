"""`redrive doctor`: what it finds, and that it changes nothing."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from redrive.cli import doctor_database

from .said import Said, execute

Run = Callable[..., Said]


def problems(said: Said) -> list[dict[str, str]]:
    """What the doctor found, but for a test server that runs without fsync."""
    found = said.json["findings"]
    return [one for one in found if one["status"] == "problem" and not one["said"].startswith("fsync=off")]


def test_doctor_on_a_healthy_store(stored: Run, store: str):
    """A migrated store that answers is well, and says how durable it is."""
    said = stored("doctor", "--json")
    assert problems(said) == []
    found = {finding["name"]: finding["said"] for finding in said.json["findings"]}
    assert "durability" in found
    assert ("SQLite" if store == "sqlite" else "PostgreSQL") in found
    if store == "sqlite":
        assert (said.code, said.json["healthy"]) == (0, True)
        assert "all is well" in stored("doctor").out


def test_doctor_does_not_make_or_migrate(redrive: Run, empty_url: str, store: str, folder: Path):
    """Looking changes nothing: no file is made, no table is migrated."""
    said = redrive("doctor", "--database", empty_url, "--json")
    assert said.code == 1
    [problem] = problems(said)
    assert problem["name"] == ("store" if store == "sqlite" else "tables")
    assert "redrive migrate" in problem["remedy"]
    assert not list(folder.glob("*.db"))


def test_doctor_finds_a_store_that_is_away(redrive: Run):
    """A server that does not answer is a finding, not a crash."""
    said = redrive("doctor", "--database", "postgresql://ada:hunter2@127.0.0.1:1/none")
    assert said.code == 1
    assert "cannot be used" in said.out
    assert "hunter2" not in said.out


def test_doctor_finds_a_newer_schema(stored: Run, redrive: Run, url: str):
    """A store of a newer redrive is a problem that says to upgrade."""
    asyncio.run(execute(url, "UPDATE redrive_version SET version_num = '9999' WHERE version_num LIKE 'redrive%'"))
    said = stored("doctor")
    assert said.code == 1
    assert "upgrade redrive" in said.out


def test_doctor_names_the_schema_that_has_the_tables(
    redrive: Run, url: str, store: str, monkeypatch: pytest.MonkeyPatch
):
    """Whoever looks in the wrong schema is told which has them."""
    if store == "sqlite":
        return
    monkeypatch.setenv("REDRIVE_SCHEMA", "shop")
    assert "REDRIVE_SCHEMA=public" in redrive("doctor", "--database", url).out.replace("\n", " ")


async def test_doctor_finds_idle_transactions(redrive: Run, postgres, monkeypatch: pytest.MonkeyPatch):
    """A session that holds a transaction open is named, with the statement that ends it."""
    monkeypatch.setattr(doctor_database, "IDLE_MAX", timedelta(milliseconds=1))
    url = await postgres.create()
    session = await asyncpg.connect(url)
    await session.execute("BEGIN")
    await asyncio.sleep(0.01)
    try:
        said = await asyncio.to_thread(redrive, "doctor", "--database", url)
    finally:
        await session.close()
    assert said.code == 1
    assert "pg_terminate_backend" in said.out


async def test_doctor_says_how_the_server_could_be_better(redrive: Run, postgres):
    """Advice on the server is a notice with its remedy: here a limit of the database."""
    url = await postgres.create()
    postgres.execute(f'ALTER DATABASE "{make_url(url).database}" SET lock_timeout = 7000')
    said = await asyncio.to_thread(redrive, "doctor", "--database", url, "--json")
    [found] = [one for one in said.json["findings"] if one["name"] == "limits"]
    assert found["status"] == "notice"
    assert "lock_timeout = 7s" in found["said"]
    assert "ALTER ROLE … SET lock_timeout = 0" in found["remedy"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_doctor_finds_a_lock_that_stays(stored: Run, url: str, monkeypatch: pytest.MonkeyPatch):
    """A process that holds the write lock of the file is a problem, told at once and with the way to find it."""
    monkeypatch.setattr(doctor_database, "LOCK_SECONDS_MAX", 0.01)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        said = stored("doctor", "--json")
    assert said.code == 1
    [problem] = problems(said)
    assert "another process has held the write lock" in problem["said"]
    assert "fuser" in problem["remedy"]


def test_doctor_finds_kinds_without_handler(redrive: Run, url: str, application: Callable[[str], str]):
    """With the application, work that nobody here would do is a problem."""
    path = application(f"from redrive import Redrive\napp = Redrive({url!r})\n@app.handler('a')\ndef a(task): ...\n")
    redrive("tasks", "add", "a", "--app", path)
    assert problems(redrive("doctor", "--app", path, "--json")) == []
    redrive("tasks", "add", "b", "--app", path)
    said = redrive("doctor", "--app", path, "--json")
    assert said.code == 1
    assert [problem["said"] for problem in problems(said)] == ["tasks wait without a handler here: b"]
