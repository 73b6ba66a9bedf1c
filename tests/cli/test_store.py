"""`redrive migrate`: tables of our own, of systems that are named, and their versions."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import inspect

from redrive import Redrive
from redrive.ledgers.sql.migrate import heads, systems_with_tables

from .said import Said

Run = Callable[..., Said]


async def tables(url: str) -> set[str]:
    """The tables of a database."""
    app = Redrive(url)
    try:
        await app.database.open()
        return set(await app.database.read(lambda connection: inspect(connection).get_table_names()))
    finally:
        await app.close()


def test_migrate_then_nothing_to_do(redrive: Run, empty_url: str):
    """The first run migrates, the second finds nothing to do. Nobody gets the tables of a system that was not named."""
    assert redrive("migrate", "--database", empty_url, "--json").json == {
        "before": {},
        "after": heads(),
        "changed": True,
    }
    assert {name for name in asyncio.run(tables(empty_url)) if not name.startswith("redrive_")} == set()
    assert redrive("migrate", "--database", empty_url, "--json").json["changed"] is False
    again = redrive("migrate", "--database", empty_url)
    assert "already" in again.err
    assert f"--systems {','.join(systems_with_tables())}" in again.err


def test_migrate_makes_tables_of_systems_that_are_named(
    redrive: Run, empty_url: str, application: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    """By the option, by REDRIVE_SYSTEMS, or by the application that has one; what is there is brought along from then on."""
    asked = ("migrate", "--database", empty_url)
    assert redrive(*asked, "--systems", "flags", "--json").json["after"] == heads(["flags"])
    monkeypatch.setenv("REDRIVE_SYSTEMS", "webhooks")
    assert redrive(*asked, "--json").json["after"] == heads(["flags", "webhooks"])
    monkeypatch.delenv("REDRIVE_SYSTEMS")
    source = "from redrive import Redrive\nfrom redrive.systems.triggers.system import Triggers\n"
    path = application(f"{source}app = Redrive({empty_url!r})\nTriggers(app)\n")
    assert redrive("migrate", "--app", path, "--json").json["after"] == heads(["flags", "triggers", "webhooks"])
    assert redrive(*asked, "--systems", "all", "--json").json["after"] == heads(systems_with_tables())
    wrong = redrive(*asked, "--systems", "flags,mail")
    assert (wrong.code, "there is no system 'mail': choose from commands, flags" in wrong.err) == (2, True)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_tables_that_are_missing_name_the_command(redrive: Run, empty_url: str, application: Callable[[str], str]):
    """Who uses a system without its tables is told the very command that makes them, by whatever meets them first."""
    source = "from redrive import Redrive\nfrom redrive.systems.flags import Flags\n"
    path = application(f"{source}app = Redrive({empty_url!r})\nFlags(app)\n")
    redrive("migrate", "--database", empty_url)
    assert "run `redrive migrate --systems flags`" in redrive("tasks", "list", "--app", path).err
    assert "run `redrive migrate --systems flags`" in redrive("doctor", "--app", path).out


def test_migrate_partitions_the_history(redrive: Run, empty_url: str, store: str):
    """On PostgreSQL it is partitioned, and kept for a time of its own; what cannot be is refused with a line."""
    asked = ("migrate", "--database", empty_url, "--partition", "daily", "--keep-history", "90d")
    if store == "sqlite":
        assert "only PostgreSQL has partitions" in redrive(*asked).err
        assert "--partition daily" in redrive("migrate", "--database", empty_url, "--keep-history", "90d").err
        return
    for _ in range(2):
        said = redrive(*asked)
        assert (said.code, "the history is partitioned daily, and partitions are kept for 90d" in said.err) == (0, True)
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT every, keep_seconds FROM redrive_partition").fetchall() == [
            ("daily", 90 * 86400)
        ]
        assert connection.execute("SELECT count(*) > 6 FROM pg_inherits").fetchone() == (True,)
    assert "leave --sql out" in redrive(*asked, "--sql").err


def test_migrate_prints_sql_without_a_database(redrive: Run, folder: Path):
    """`--sql` prints statements for people who run them by hand, and connects to nothing."""
    for url in ("sqlite:///nothing.db", "postgresql://nobody@127.0.0.1:1/none"):
        said = redrive("migrate", "--sql", "--database", url)
        assert said.code == 0
        assert "CREATE TABLE redrive_task" in said.out
    assert list(folder.iterdir()) == []


def test_database_url_comes_from_the_environment(redrive: Run, empty_url: str, monkeypatch: pytest.MonkeyPatch):
    """Without --database the setting counts."""
    monkeypatch.setenv("DATABASE_URL", empty_url)
    assert redrive("migrate", "--json").json["changed"] is True
