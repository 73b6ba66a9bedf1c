"""A plain connection of somebody's, `sqlite3` or `psycopg`, under our statements, for as long as they take.

It stays the owner's: we neither commit, roll back nor close it, and what they have set up on it (row factories, functions, how JSON
is read) is neither used nor changed.
"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import NullPool

_lent: ContextVar[Any] = ContextVar("lent connection")


def is_plain(connection: object) -> bool:
    """Whether it is a connection that `borrowed` takes."""
    return isinstance(connection, sqlite3.Connection) or _is_psycopg(connection)


@contextmanager
def borrowed(connection: Any) -> Iterator[Connection]:
    """A connection of SQLAlchemy over a plain one.

    In a transaction of the owner's all that is written is part of it. Without one, on a connection that commits each statement by
    itself, what is written in the block is one commit.
    """
    over, one_commit = (
        (_LentSqlite, _sqlite_commit) if isinstance(connection, sqlite3.Connection) else (_LentPsycopg, _psycopg_commit)
    )
    token = _lent.set(over(connection))
    try:
        with one_commit(connection), _engine(over).connect() as lent:
            yield lent
    finally:
        _lent.reset(token)


@cache
def _engine(over: type["_Lent"]) -> Engine:
    """One for each driver and for all threads: it keeps nothing but compiled statements, and each use brings its own connection."""
    return create_engine(over.url, creator=_lent.get, poolclass=NullPool, hide_parameters=True, **over.options)


class _Lent:
    """A connection that is not ours to end."""

    url: str
    options: dict[str, Any]

    def __init__(self, connection: Any) -> None:
        object.__setattr__(self, "_connection", connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """SQLAlchemy may wish to set the driver up; the owner has done so."""

    def commit(self) -> None:
        """Not ours to do."""

    rollback = close = commit
    """Nor these: SQLAlchemy rolls back whenever it gives a connection away, and the owner's transaction would be gone."""


class _LentSqlite(_Lent):
    url = "sqlite://"
    options: dict[str, Any] = {}

    def cursor(self) -> Any:
        """A cursor that gives plain tuples, whatever the owner's give."""
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor

    def create_function(self, *_: Any, **__: Any) -> None:
        """SQLAlchemy brings a function for regular expressions; the owner may have one of that name."""


class _LentPsycopg(_Lent):
    url = "postgresql+psycopg://"
    options: dict[str, Any] = {"use_native_hstore": False}

    def cursor(self, *_: Any, **__: Any) -> Any:
        """A cursor that gives plain tuples and reads values as psycopg does by itself, whatever the owner's do."""
        from psycopg import Cursor
        from psycopg.rows import tuple_row
        from psycopg.types.datetime import TimestamptzLoader
        from psycopg.types.json import JsonbLoader, JsonLoader
        from psycopg.types.uuid import UUIDLoader

        cursor: Any = Cursor(self._connection, row_factory=tuple_row)
        for name, loader in (
            ("json", JsonLoader), ("jsonb", JsonbLoader), ("uuid", UUIDLoader), ("timestamptz", TimestamptzLoader)
        ):  # fmt: skip
            cursor.adapters.register_loader(name, loader)
        return cursor


@contextmanager
def _sqlite_commit(connection: sqlite3.Connection) -> Iterator[None]:
    if connection.in_transaction or connection.isolation_level is not None:
        yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def _psycopg_commit(connection: Any) -> Iterator[None]:
    from psycopg.pq import TransactionStatus

    if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        yield
        return
    with connection.transaction():
        yield


def _is_psycopg(connection: object) -> bool:
    driver = sys.modules.get("psycopg")  # whoever has a connection of it has imported it
    return driver is not None and isinstance(connection, driver.Connection)
