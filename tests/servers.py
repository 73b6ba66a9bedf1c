"""The servers of the tests, and the databases on them."""

import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

MEMORY_BYTES_MIN = 2 * 1024**3
Migrated = Callable[[Sequence[str]], Awaitable[str]]
"""Makes a database with the tables of redrive and of these systems; its URL."""


class PostgresServer:
    """A server of our own: its URL, and new databases on it."""

    def __init__(self, url: str, pooler: Any = None, *, portable: bool = False) -> None:
        self.url = url
        self._pooler = pooler
        self._portable = portable
        self._connection: psycopg.Connection | None = None

    def url_of(self, database: str) -> str:
        """The URL of a database on this server."""
        return make_url(self.url).set(database=database).render_as_string(hide_password=False)

    def through(self, url: str) -> str:
        """The same database through the pooler, if there is one, and with the claim that was asked for."""
        way = url if self._pooler is None else str(self._pooler.url_of(make_url(url).database or ""))
        return portable(way) if self._portable else way

    def execute(self, statement: str) -> None:
        """Run a statement on the server's first database: for all tests by one connection, which no event loop owns."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.url, autocommit=True)
        self._connection.execute(statement)

    def close(self) -> None:
        """Leave the server."""
        if self._connection is not None:
            self._connection.close()

    async def create(self, template: str = "template1") -> str:
        """A new database; returns its URL."""
        name = f"t_{secrets.token_hex(6)}"
        for tries_left in reversed(range(10)):
            try:
                self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
                break
            except psycopg.errors.ObjectInUse:  # on a busy machine whoever made the template may take long to leave it
                if not tries_left:
                    raise
        return self.url_of(name)

    async def drop(self, url: str) -> None:
        """Forget a database, whoever is still connected to it."""
        self.execute(f'DROP DATABASE IF EXISTS "{make_url(url).database}" WITH (FORCE)')


def portable(url: str) -> str:
    """The same database with the form of the claim that needs nothing but serializable transactions."""
    return f"{url}{'&' if '?' in url else '?'}claim=portable"


def quick_folder() -> str | None:
    """Where files stay in memory, if there is room: thousands of databases are made and dropped. None: wherever others go."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= MEMORY_BYTES_MIN
    return str(memory) if roomy else None


@contextmanager
def own_pooler(socket_folder: str, *, sessions: int = 3) -> Iterator[Any]:
    """A PgBouncer in transaction mode before a server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bench.servers import PgBouncer

    with tempfile.TemporaryDirectory(prefix="redrive-pooler-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # it runs as the server's user when the tests are root
        pooler = PgBouncer(Path(folder) / "pooler", socket_folder, sessions=sessions)
        try:
            yield pooler
        finally:
            pooler.end()


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
