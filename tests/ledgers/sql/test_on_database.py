"""Methods that are written as functions of a connection and called as coroutines."""

import inspect
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, insert, select, text

from redrive.errors import TooSlowError
from redrive.ledgers.open import open_database
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.on_database import OnDatabase, looks, reads, writes

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


class Turns(OnDatabase):
    """Turns of a test."""

    @writes
    def take(self, connection: Connection, name: str, *, until: datetime = NOW, fails: bool = False) -> str:
        """Take one."""
        connection.execute(insert(schema.turn), {"name": name, "until": until})
        if fails:
            raise ValueError(name)
        return name

    @reads
    def names(self, connection: Connection) -> list[str]:
        """All names."""
        return list(connection.execute(select(schema.turn.c.name).order_by(schema.turn.c.name)).scalars())

    @looks(timedelta(milliseconds=100))
    def endless(self, connection: Connection) -> int:
        """It never ends by itself."""
        return int(connection.execute(text(ENDLESS)).scalar_one())


async def test_a_method_runs_as_its_decorator_says(url: str) -> None:
    """What is written is there for whoever reads, what fails is taken back, and a look that takes too long is given up."""
    database = open_database(url)
    await database.open()
    try:
        turns = Turns(database)
        assert await turns.take("one", until=NOW) == "one"
        with pytest.raises(ValueError, match="two"):
            await turns.take("two", fails=True)
        assert await turns.names() == ["one"]
        with pytest.raises(TooSlowError):
            await turns.endless()
    finally:
        await database.close()


async def test_what_must_be_open_is_opened_first(url: str) -> None:
    """Whoever brings a way to open need not think of it at each call."""
    database, opened = open_database(url), 0

    async def open_it() -> None:
        nonlocal opened
        opened += 1
        await database.open()

    try:
        assert await Turns(database, open=open_it).names() == []
    finally:
        await database.close()
    assert opened == 1


def test_whoever_calls_it_sees_no_connection() -> None:
    """Its name, its words and its parameters are the method's, but the connection."""
    take = Turns.take
    assert (take.__name__, take.__doc__) == ("take", "Take one.")
    assert list(inspect.signature(take).parameters) == ["self", "name", "until", "fails"]
