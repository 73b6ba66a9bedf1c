"""The public door: what a user does with `redrive`, on both databases."""

import asyncio
import inspect
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

import redrive
import redrive.app
import redrive.lane
import redrive.policies
from redrive import Filter, LedgerTable, Policy, Redrive, State, Words, extend, queues, seconds
from redrive.app import WorkerSettings
from redrive.errors import (
    HandlerError,
    NotMigratedError,
    SettingsError,
    TableError,
    UsageError,
)
from redrive.ledgers.sql.migrate import migrate
from redrive.testing import VirtualClock, assert_done, drain
from tests.heard import PATIENCE_SECONDS, Heard


@pytest.fixture
async def heard():
    return Heard()


@pytest.fixture
async def app(url, heard):
    async with Redrive(url, observers=[heard], durable=False) as app:
        yield app


# --- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["postgres"])
async def test_an_unmigrated_postgres_is_refused(empty_url):
    """PostgreSQL is migrated on purpose, never by the way; the message names the command. Afterwards it opens."""
    app = Redrive(empty_url)
    with pytest.raises(NotMigratedError, match="redrive migrate"):
        await app.open()
    with pytest.raises(NotMigratedError):
        await app.add("mail")
    await migrate(app.database)
    assert (await app.add("mail")).new
    await app.close()


@pytest.mark.parametrize("store", ["sqlite"])
async def test_sqlite_makes_its_tables_by_itself(empty_url):
    """A new file works at the first use, and again after it was closed."""
    app = Redrive(empty_url, durable=False)
    await app.add("mail", key="a")
    await app.close()
    assert (await app.tasks.get("a")).kind == "mail"
    await app.close()


@pytest.mark.parametrize("url", ["mysql://localhost/x", "nonsense", "sqlite://", "sqlite:////no/such/folder/x.db"])
def test_a_url_that_cannot_be_a_ledger_is_refused(url):
    """The message says what to write instead."""
    with pytest.raises(SettingsError):
        Redrive(url)


# --- working ----------------------------------------------------------------------------------------------------------


async def test_work_runs_until_it_is_cancelled(app, heard):
    """`work` works off what is there and stops gracefully when its task is cancelled."""
    seen = []

    @app.handler("mail")
    async def send(task):
        seen.append(task.payload)

    await app.add("mail", {"to": "ada"}, key="a")
    working = asyncio.create_task(app.work(WorkerSettings(concurrency=2)))
    await heard.ended(1)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert seen == [{"to": "ada"}]
    await assert_done(app, "a")


async def test_workers_tell_when_they_are_ready_and_stop_when_asked(app):
    """`ready` is set after the first look for work; `stop` ends `run` without an error."""
    app.handler("mail")(lambda task: None)
    workers = app.workers()
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await workers.ready.wait()
        workers.stop()
        await running


@pytest.mark.every_store
async def test_cancelled_work_is_released(app):
    """A handler that is still running when the grace is over gives its task back, uncharged."""
    inside = asyncio.Event()

    @app.handler("mail")
    async def send(task):
        inside.set()
        await asyncio.sleep(60)

    await app.add("mail", key="a")
    working = asyncio.create_task(app.work(WorkerSettings(grace=seconds(0))))
    await inside.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    task = await app.tasks.get("a")
    assert (task.state, task.failures) == (State.WAITING, 0)


async def test_no_handlers_is_a_clear_error(app):
    """Working without a handler would wait for ever; it is refused with what to do."""
    with pytest.raises(HandlerError, match=r"@app\.handler"):
        await app.work()
    with pytest.raises(HandlerError, match=r"@app\.handler"):
        await drain(app)


async def test_one_broken_lane_stops_all(app, jobs, heard, monkeypatch):
    """If the worker of one lane breaks, the others stop gracefully and the error is raised, not hidden."""
    app.handler("mail")(lambda task: None)
    jobs.handler()(lambda task: None)

    class Broken(BaseException):
        pass

    ledger = await jobs.ledger()
    monkeypatch.setattr(ledger, "claim", _raising(Broken))
    with pytest.raises(Broken):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await app.work(WorkerSettings(grace=seconds(0)))
    await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("redrive-claim")] == []


def _raising(error):
    async def call(*args, **options):
        raise error

    return call


# --- lanes ------------------------------------------------------------------------------------------------------------

JOBS = LedgerTable(
    "jobs",
    key="id",
    words=Words(waiting="new", done="sent", dead="given_up"),
    last_error="error",
)


@pytest.fixture
async def jobs(app, store):
    """A table of the user's with redrive's columns and indexes, as a lane."""
    time = "TEXT" if store == "sqlite" else "timestamptz"
    fence = "TEXT" if store == "sqlite" else "uuid"
    await app.database.write(
        lambda connection: connection.execute(
            text(
                "CREATE TABLE jobs (id integer PRIMARY KEY, address text, status text NOT NULL DEFAULT 'new', "
                f"failures integer NOT NULL DEFAULT 0, due_at {time}, lease_until {time}, claim_id {fence}, error text)"
            )
        )
    )
    lane = app.adopt(JOBS)
    with pytest.raises(TableError) as refused:
        await lane.ledger()

    def mend(connection):
        for statement in refused.value.migration:
            connection.execute(text(statement))
        connection.execute(text("INSERT INTO jobs (id, address) VALUES (1, 'ada@x'), (2, 'bob@x')"))

    await app.database.write(mend)
    return lane


async def test_an_application_has_lanes_and_is_not_one(app):
    """Looking and acting is on the lane of redrive's own table; the application keeps a short way to what is used most."""
    assert not isinstance(app, redrive.lane.Lane)
    assert not [name for name in ("get", "find", "attempts", "redrive", "cancel", "resolve") if hasattr(app, name)]
    assert app.lanes == {"redrive_task": app.tasks}
    for name in ("handler", "add", "add_many", "add_sync"):
        assert getattr(app, name) == getattr(app.tasks, name)


@pytest.mark.every_store
async def test_an_adopted_table_is_worked_off(app, jobs, heard):
    """Rows of a foreign table run by the same engine after its printed migration; their words and columns are used."""
    seen = []

    @jobs.handler(policy=Policy(attempts=1))
    async def send(task):
        seen.append(task.payload["address"])
        if task.key == "2":
            raise ValueError("odd")

    working = asyncio.create_task(app.work())
    await heard.ended(2)
    working.cancel()
    await asyncio.wait([working])
    assert sorted(seen) == ["ada@x", "bob@x"]
    rows = await app.database.read(
        lambda connection: [
            tuple(row) for row in connection.execute(text("SELECT id, status, error FROM jobs ORDER BY id"))
        ]
    )
    assert rows == [(1, "sent", None), (2, "given_up", "ValueError: odd")]
    assert app.lanes == {"redrive_task": app.tasks, "jobs": jobs}


async def test_dead_rows_of_an_adopted_table_are_redriven(app, jobs):
    """Looking and acting work on every lane."""
    jobs.handler(policy=Policy(attempts=1))(_fail)
    await drain(app)
    assert (await jobs.counts())[State.DEAD] == 2
    redriven = await jobs.redrive(Filter(), actor="ada", reason="fixed")
    assert sorted(redriven.changed) == [1, 2]
    assert [(deed.actor, deed.reason) for deed in await jobs.deeds(1)] == [("ada", "fixed")]


def _fail(task):
    raise ValueError("odd")


async def test_an_adopted_lane_has_one_handler_and_no_kinds(app, jobs):
    """A table without a kind column has one handler; its rows are the user's to insert."""
    with pytest.raises(UsageError, match="no kind column"):
        jobs.handler("mail")
    jobs.handler(_fail)
    assert [handler.kind for handler in jobs.handlers] == ["jobs"]
    with pytest.raises(UsageError, match="yours to insert"):
        await jobs.add("mail")
    with pytest.raises(UsageError, match="has a lane already"):
        app.adopt(JOBS)


@pytest.mark.parametrize("store", ["sqlite"])
async def test_add_sync_to_an_unchecked_table_is_refused(url):
    """A foreign table must be checked once before it is written without a loop; the message says how."""
    lane = Redrive(url).adopt(LedgerTable("letters", key="id", payload="body"))
    with pytest.raises(UsageError, match=r"app\.open"):
        lane.add_sync("letters", within=object())


@pytest.mark.parametrize("store", ["sqlite"])
async def test_a_lane_opens_its_application(empty_url):
    """The first use of a lane brings redrive's own tables with it, as the first use of the application does."""
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE jobs (id integer PRIMARY KEY, status text)"))
    engine.dispose()
    app = Redrive(empty_url, durable=False)
    with pytest.raises(TableError):
        await app.adopt(JOBS).counts()
    names = await app.database.read(
        lambda connection: set(connection.execute(text("SELECT name FROM sqlite_schema")).scalars())
    )
    await app.close()
    assert "redrive_deed" in names


@pytest.mark.every_store
async def test_a_failed_opening_leaves_nothing_open(app, url):
    """An adopted table that does not fit fails the opening; threads and connections are gone, and a later one works."""
    other = Redrive(url, durable=False)
    other.adopt(JOBS)
    with pytest.raises(TableError, match="no such table"):
        async with other:
            pass
    if url.startswith("sqlite"):
        assert other.database._writer is None
    else:
        assert other.database._here.engine.pool.checkedin() == 0


# --- the door ---------------------------------------------------------------------------------------------------------


def test_the_public_names_are_these():
    """What a first program needs and no more; another name is a decision, not a side effect."""
    assert redrive.__all__ == [
        "BusinessError", "Cancelled", "Context", "Exponential", "Filter", "Fixed", "LedgerTable", "Linear", "PermanentError",
        "Policy", "RateLimitedError", "Redrive", "RedriveError", "Schedule", "Snoozed", "State", "Task",
        "TransientError", "Words", "__version__", "days", "hours", "jitter", "minutes", "seconds",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "door", [redrive, redrive.app, redrive.lane, redrive.policies, extend, queues], ids=lambda door: door.__name__
)
def test_the_doors_are_sorted_importable_and_documented(door):
    """Nothing in `__all__` of a documented module is missing or without a word of explanation."""
    assert door.__all__ == sorted(door.__all__)
    assert len(set(door.__all__)) == len(door.__all__)
    for name in door.__all__:
        thing = getattr(door, name)
        if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing):
            doc = inspect.getdoc(thing)
            assert doc, f"{name} has no docstring"
            # A dataclass without one is given its signature.
            assert not doc.startswith(f"{name}("), f"{name} has no docstring of its own"


def test_public_methods_are_documented():
    """What a user can call on the application and its lanes says what it does."""
    for owner in (redrive.Redrive, redrive.lane.Lane, redrive.app.Workers):
        for name, member in inspect.getmembers(owner):
            if not name.startswith("_") and callable(member):
                assert inspect.getdoc(member), f"{owner.__name__}.{name}"


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
{program}
"""
EXTRAS = {
    "asyncpg",
    "fastapi",
    "uvicorn",
    "httpx",
    "jinja2",
    "aio_pika",
    "google",
    "re2",
    "pgmq",
    "aiobotocore",
    "opentelemetry",
}


def run_without_extras(program):
    code = BLOCKED.format(blocked=EXTRAS, program=program)
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=150)


def test_the_base_install_works_on_sqlite(tmp_path):
    """Without any extra the package imports and runs a task on SQLite."""
    ran = run_without_extras(
        f"""
import asyncio
from redrive import Redrive
from redrive.testing import assert_done, drain

async def main():
    async with Redrive("sqlite:///{tmp_path / "test.db"}") as app:
        app.handler("mail")(lambda task: None)
        await app.add("mail", key="a")
        await drain(app)
        await assert_done(app, "a")

asyncio.run(main())
print("done")
"""
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def test_postgres_without_its_extra_names_it():
    """A PostgreSQL URL without the driver is an error that says what to install."""
    ran = run_without_extras(
        """
from redrive import Redrive
from redrive.errors import MissingExtraError

try:
    Redrive("postgresql://localhost/x")
except MissingExtraError as error:
    print(error)
"""
    )
    assert "pip install 'redrive[postgres]'" in ran.stdout, ran.stderr


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
async def test_the_application_believes_its_clock(url):
    """With a virtual clock a task that is due in a day runs when the clock says so, on both databases."""
    clock = VirtualClock()
    async with Redrive(url, clock=clock, durable=False) as app:
        app.handler("mail")(lambda task: None)
        await app.add("mail", key="a", delay=timedelta(days=1))
        assert (await drain(app)).outcomes == {}
        clock.advance(timedelta(days=1))
        assert (await drain(app)).of("a") == ["done"]


def test_what_a_lane_does_is_not_looked_for_in_vain_on_the_application(tmp_path: Path):
    """`app.redrive("key")` is what newcomers write first; what is nowhere is an ordinary error, without a hint."""
    app = Redrive(f"sqlite:///{tmp_path / 'test.db'}")
    with pytest.raises(AttributeError, match=r"'redrive': it is on a lane, app\.tasks\.redrive$"):
        app.redrive  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'redirve'$"):
        app.redirve  # type: ignore[attr-defined]  # noqa: B018
