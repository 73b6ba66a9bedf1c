"""`redrive migrate | adopt | keys | preview | doctor`, and what all commands share."""

import asyncio
import json
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import asyncpg
import psycopg
import pytest
import typer.main
from sqlalchemy import inspect
from sqlalchemy.engine import make_url

from redrive import Redrive, __version__
from redrive.access.keys import Scope
from redrive.cli import app as command_line
from redrive.cli import doctor_database
from redrive.cli.app_path import load_app
from redrive.cli.listen import listen
from redrive.cli.preview import PUBLISHED, PublishedPolicy
from redrive.errors import SettingsError
from redrive.ledgers.sql.migrate import heads, systems_with_tables
from redrive.settings import SYSTEMS

from .said import Said

Run = Callable[..., Said]


# --- migrate --------------------------------------------------------------------------------------------------------


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


# --- adopt ----------------------------------------------------------------------------------------------------------

ORDERS = """
    CREATE TABLE orders (
        id integer PRIMARY KEY, status text NOT NULL CHECK (status IN ('pending', 'done', 'failed')),
        retry_count integer NOT NULL DEFAULT 0
    )"""


async def execute(url: str, *statements: str) -> None:
    """Run statements with a plain driver."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        return
    session = await asyncpg.connect(url)
    for statement in statements:
        await session.execute(statement)
    await session.close()


@pytest.fixture
async def orders_url(url: str) -> str:
    """A database with a table of somebody's."""
    await execute(url, ORDERS)
    return url


def test_adopt_prints_what_is_missing_until_it_fits(redrive: Run, orders_url: str):
    """The printed migration, run as it stands, makes the table fit."""
    first = redrive("adopt", "orders", "--database", orders_url, "--json")
    assert first.code == 1
    assert first.json["fits"] is False
    assert "LedgerTable(" in first.json["mapping"]
    for _ in range(3):  # columns first, then what stands on them
        said = redrive("adopt", "orders", "--database", orders_url, "--json").json
        if said["fits"]:
            break
        asyncio.run(execute(orders_url, *said["migration"]))
    fits = redrive("adopt", "orders", "--database", orders_url)
    assert fits.code == 0
    assert "orders fits" in fits.out


def test_adopt_in_words(redrive: Run, orders_url: str):
    """For people: the mapping to paste, what is missing, the migration."""
    said = redrive("adopt", "orders", "--database", orders_url)
    assert said.code == 1
    assert "-- column 'lease_until' (lease_until) is missing" in said.out
    assert re.search(r"^ALTER TABLE orders ADD COLUMN .*;$", said.out, re.MULTILINE)


def test_adopt_of_no_table(redrive: Run, url: str):
    """A table that is not there is a problem in one line."""
    said = redrive("adopt", "nothing", "--database", url)
    assert said.code == 1
    assert "there is no such table" in said.err


# --- keys -----------------------------------------------------------------------------------------------------------


def test_keys_create_list_revoke(stored: Run):
    """A key is shown once, listed without its text, and revoked by its id."""
    made = stored(
        "keys", "create", "--user", "ada", "--scope", "operator", "--scope", "events:read", "--expires", "30d", "--json"
    ).json
    assert made["key"].startswith("rdk_")
    [listed] = stored("keys", "list", "--json").json["keys"]
    assert listed == {name: value for name, value in made.items() if name != "key"}
    assert listed["scopes"] == ["operator", "events:read"]
    assert "valid" in stored("keys", "list").out
    assert stored("keys", "revoke", made["key_id"]).code == 0
    assert "revoked" in stored("keys", "list").out
    assert stored("keys", "revoke", "nobody").code == 1


def test_key_for_people_is_alone_on_stdout(stored: Run):
    """`KEY=$(redrive keys create …)` works."""
    said = stored("keys", "create", "--user", "ada", "--scope", "viewer")
    assert re.fullmatch(r"rdk_[\w-]+\n", said.out)


def test_unknown_scope_lists_what_there_is(redrive: Run, folder: Path):
    """And nothing is made for it, not even a file."""
    said = redrive("keys", "create", "--user", "ada", "--scope", "root")
    assert said.code == 2
    assert ", ".join(Scope) in said.err
    assert list(folder.iterdir()) == []


# --- preview --------------------------------------------------------------------------------------------------------

START = ("--start", "2026-01-31T09:00:00Z")


@pytest.mark.parametrize(
    ("policy", "waits", "spread"),
    [
        ("flags", [120, 240, 480], 30),
        ("webhooks", [10, 20, 40, 80], 0),
        ("commands", [60, 300], 0),
        ("triggers", [60, 300, 900], 0),
        ("relay", [2, 4, 8], 1),
    ],
)
def test_published_policies(redrive: Run, policy: str, waits: list[int], spread: int):
    """Each of the five waits as its specification says."""
    said = redrive("preview", "--policy", policy, *START, "--json").json
    delays = [one["delay_seconds"] for one in said["tries"][1:]]
    assert len(delays) == len(waits)
    for delay, wait in zip(delays, waits, strict=True):
        assert wait <= delay <= wait + spread
    assert said["attempts"] == len(waits) + 1


def test_published_names_are_the_policies():
    """Every published policy can be asked for, under its own name."""
    assert {each.value for each in PublishedPolicy} == set(PUBLISHED)
    assert all(policy.name == name for name, policy in PUBLISHED.items())


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        (["--first", "2s", "--cap", "5s", "--retries", "3", "--jitter", "none"], [2, 4, 5]),
        (["--first", "1s", "--factor", "10", "--attempts", "3", "--jitter", "none"], [1, 10]),
        (["--schedule", "10s,1m,5m", "--retries", "4", "--jitter", "none"], [10, 60, 300, 300]),
        (["--fixed", "30s", "--retries", "2", "--jitter", "percent:0"], [30, 30]),
    ],
)
def test_policy_by_options(redrive: Run, options: list[str], delays: list[float]):
    """Every backoff can be asked for."""
    said = redrive("preview", *options, *START, "--json").json
    assert [one["delay_seconds"] for one in said["tries"][1:]] == delays
    assert said["tries"][0]["at"] == "2026-01-31T09:00:00.000000Z"


def test_preview_draws(redrive: Run):
    """A table with a row for each try, and the last mark stands at the end of the line."""
    said = redrive("preview", "--policy", "triggers", *START)
    assert said.code == 0
    assert said.out.count("●") == 4
    assert "2026-01-31 09:21:00Z" in said.out
    assert "dead after 21m" in said.out


def test_preview_is_the_same_for_the_same_key(redrive: Run):
    """Draws are not random; another key draws otherwise."""
    one, same, other = (
        redrive("preview", "--jitter", "full", "--key", key, *START, "--json").json["tries"] for key in ("a", "a", "b")
    )
    assert one == same != other


@pytest.mark.parametrize(
    "options",
    [
        ["--policy", "flags", "--first", "1s"],
        ["--fixed", "1s", "--schedule", "1s"],
        ["--retries", "1", "--attempts", "2"],
        ["--jitter", "sometimes"],
        ["--jitter", "percent:much"],
        ["--jitter", "additive:"],
        ["--first", "soon"],
        ["--first", "1h", "--cap", "1m"],
        ["--start", "tomorrow"],
        ["--factor", "nan"],
        ["--app", "examples.sample:app"],
        ["--kind", "x"],
        ["--policy", "none"],
    ],
)
def test_impossible_policies_are_usage_errors(redrive: Run, options: list[str]):
    """And never a traceback."""
    said = redrive("preview", *options)
    assert (said.code, said.out) == (2, "")
    assert said.err


def test_preview_of_a_handlers_own_policy(redrive: Run):
    """An application's policy is found by the kind, patterns included."""
    said = redrive("preview", "--app", "examples.sample:app", "--kind", "flaky.x", "--json").json
    assert (said["policy"], said["attempts"]) == ("sample", 4)


# --- doctor ---------------------------------------------------------------------------------------------------------


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


# --- applications ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "path", "says"),
    [
        (None, "no_such_module:app", "there is no module 'no_such_module'"),
        (None, "no_such.module:app", "there is no module 'no_such.module'"),
        (None, "not a module", "is not an application path"),
        (None, ":app", "is not an application path"),
        ("import not_installed_anywhere", "{name}:app", "failed at .*: ModuleNotFoundError"),
        ("1 / 0", "{name}:app", r"failed at .*:1: ZeroDivisionError"),
        ("x = (", "{name}:app", "SyntaxError"),
        ("from redrive import Redrive\nshop = Redrive()", "{name}:app", "it has {name}:shop"),
        ("other = 1", "{name}", "has no 'app': it has no Redrive"),
        ("app = 1", "{name}:app", "must be a redrive.Redrive application, not int"),
        ("from redrive import Redrive\napp = Redrive('mysql://x')", "{name}", "unknown database 'mysql'"),
    ],
)
def test_wrong_application_paths_say_why(source: str | None, path: str, says: str, folder: Path, request, monkeypatch):
    """Module, attribute and type are told apart, and the file and line of what fails inside are named."""
    name = "wrong_" + re.sub(r"\W", "_", request.node.callspec.id)[-30:]
    if source is not None:
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(SettingsError, match=says.format(name=name)):
        load_app(path.format(name=name))


def test_the_working_folder_can_be_imported_from(folder: Path):
    """As a user runs it: no PYTHONPATH, the module in the current folder."""
    (folder / "here.py").write_text("from redrive import Redrive\napp = Redrive()\n")
    said = subprocess.run(
        [Path(sys.executable).parent / "redrive", "doctor", "--app", "here:app", "--json"],
        capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    assert said.returncode == 1
    assert json.loads(said.stdout)["findings"][1]["name"] == "store"


def test_database_and_app_exclude_each_other(redrive: Run):
    """Two databases at once would be a guess."""
    said = redrive("tasks", "list", "--database", "sqlite:///x.db", "--app", "examples.sample:app")
    assert said.code == 2
    assert "either --database or --app" in said.err


def test_missing_extra_is_named(folder: Path):
    """Without FastAPI the service says what to install."""
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from redrive.cli import app; sys.argv = ['redrive', 'serve', '--port', '0']; app()"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert said.returncode == 1
    assert "pip install 'redrive[service]'" in said.stderr
    assert "Traceback" not in said.stderr


# --- all ------------------------------------------------------------------------------------------------------------


def leaves(group, path=()):
    """Every command with its path."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def commands() -> list[tuple[str, ...]]:
    return [path for path, _ in leaves(typer.main.get_command(command_line))]


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(redrive: Run, path: tuple[str, ...]):
    """`--help` tells what a command does and shows one that works."""
    said = redrive(*path, "--help")
    assert said.code == 0
    assert re.search(rf"Examples?: redrive {' '.join(path)}\b", re.sub(r"\s+", " ", said.out))


def test_version(redrive: Run):
    """The version of the package."""
    assert redrive("--version").out == f"redrive {__version__}\n"


def test_wrong_settings_are_one_line(redrive: Run, monkeypatch: pytest.MonkeyPatch):
    """A setting that cannot be used stops every command that needs settings, without a traceback."""
    monkeypatch.setenv("WORKER_LEASE", "never")
    for command in (["serve"], ["worker", "examples.sample:app"], ["tasks", "list"]):
        said = redrive(*command)
        assert said.code == 2
        assert said.err.startswith("redrive: WORKER_LEASE='never' cannot be used")
        assert said.err.count("\n") == 1


WRONG = {
    "flags": "FLAG_SCHEDULE_MAX_RETRIES",
    "relay": "BASE_DELAY_MS",
    "triggers": "RATE_LIMIT_PER_MINUTE",
    "webhooks": "QUEUE_MAXSIZE",
    "commands": "COMMANDS_MAX_ATTEMPTS",
}
"""A setting of each system."""


def on_a_database() -> list[tuple[str, ...]]:
    """Every command that works on a database."""
    return [
        path
        for path, command in leaves(typer.main.get_command(command_line))
        if "database" in {parameter.name for parameter in command.params}
    ]


ARGUMENTS = {
    ("tasks", "show"): ["1"],
    ("tasks", "add"): ["mail"],
    ("tasks", "redrive"): ["1", "--reason", "x"],
    ("tasks", "cancel"): ["1", "--reason", "x"],
    ("tasks", "resolve"): ["1", "--reason", "x"],
    ("effects", "answer"): ["1", "--answer", "happened", "--reason", "x"],
    ("gates", "show"): ["bank"],
    ("gates", "set"): ["bank", "--rate", "1/s", "--reason", "x"],
    ("gates", "pause"): ["bank", "--reason", "x"],
    ("gates", "resume"): ["bank", "--reason", "x"],
    ("operations", "start"): ["1", "--reason", "x"],
    ("operations", "show"): ["1"],
    **{("operations", act): ["1", "--reason", "x"] for act in ("pause", "resume", "halt", "give-back", "approve")},
    ("operations", "change"): ["1", "--rate", "1/s", "--reason", "x"],
    ("audit", "show"): ["1"],
    ("audit", "prune"): ["--older-than", "90d", "--reason", "x"],
    ("policy", "try"): [str(Path(__file__).with_name("policy.toml"))],
    ("keys", "create"): ["--user", "ada", "--scope", "viewer"],
    ("keys", "revoke"): ["x"],
    ("adopt",): ["orders"],
}


@pytest.mark.parametrize("path", on_a_database(), ids=" ".join)
def test_a_wrong_setting_is_said_without_a_database(
    redrive: Run, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, folder: Path
):
    """Whichever part of redrive it belongs to, and whether or not the database is there or named by an option."""
    assert set(WRONG) == set(SYSTEMS)
    where = ("--database", f"sqlite:///{folder}/missing.db")
    command = (*path, *ARGUMENTS.get(path, []))
    for system, name in [(None, "WORKER_LEASE"), *WRONG.items()]:
        with monkeypatch.context() as patch:
            patch.setenv(name, "wrong")
            if system is not None and system not in path:  # a command of a system names it itself
                patch.setenv("REDRIVE_SYSTEMS", system)
            for given in (command, (*command, *where)):
                said = redrive(*given)
                assert (said.code, f"redrive: {name}='wrong' cannot be used" in said.err) == (2, True), said
    assert list(folder.iterdir()) == []


def test_a_port_in_use_is_a_clear_error():
    """And says how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match=r"is in use.*--port"):
        listen("127.0.0.1", taken.getsockname()[1])
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(SettingsError, match="not an address of this machine"):
            listen(host, 0)


def test_sample_is_an_application():
    """What the guide names can be loaded."""
    assert isinstance(load_app("examples.sample:app"), Redrive)
    assert load_app("examples.sample") is load_app("examples.sample:app")
