"""What waits for a commit: called once it is durable, never if it is taken back, and harmless if it fails."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

import pytest
from sqlalchemy import Connection, text

from redrive.errors import UsageError
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.database import Database, after_commit

WHO: ContextVar[str] = ContextVar("who", default="nobody")


def note(connection: Connection, call: Callable[[], None], amount: int = 1) -> None:
    connection.execute(text("INSERT INTO note SELECT 1"))
    for _ in range(amount):
        after_commit(connection, call)


@pytest.fixture
async def database(empty_url: str):  # type: ignore[no-untyped-def]
    made = open_database(empty_url)
    await made.write(lambda connection: connection.execute(text("CREATE TABLE note (n integer)")))
    yield made
    await made.close()


async def amount(database: Database) -> int:
    return await database.read(lambda connection: connection.execute(text("SELECT count(*) FROM note")).scalar_one())


async def test_called_when_it_is_durable(database: Database) -> None:
    """By the time that the writer goes on everything was called, in order, with the writer's own context."""
    told: list[str] = []
    WHO.set("ada")
    await database.write(note, lambda: told.append(WHO.get()), 2)
    assert told == ["ada", "ada"]
    assert await amount(database) == 1


async def test_never_called_for_what_is_taken_back(database: Database) -> None:
    """A function that raises has written nothing and nobody is told; the next one on the connection tells its own only."""
    told: list[str] = []

    def broken(connection: Connection) -> None:
        note(connection, lambda: told.append("broken"))
        raise UsageError("no")

    with pytest.raises(UsageError):
        await database.write(broken)
    await database.write(note, lambda: told.append("good"))
    assert told == ["good"]
    assert await amount(database) == 1


async def test_each_of_many_at_once_tells_its_own(database: Database) -> None:
    """Writers that share a commit or not: each call is made exactly once, and those of failed ones never."""
    told: list[int] = []

    def write(connection: Connection, number: int) -> None:
        note(connection, lambda: told.append(number))
        if number % 3 == 0:
            raise UsageError("no")

    await asyncio.gather(*(database.write(write, number) for number in range(30)), return_exceptions=True)
    assert sorted(told) == [number for number in range(30) if number % 3]


async def test_what_is_called_cannot_undo_it(database: Database) -> None:
    """A call that raises is logged; the writer hears nothing of it, and the other calls are made."""
    told: list[str] = []

    def write(connection: Connection) -> str:
        after_commit(connection, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        note(connection, lambda: told.append("told"))
        return "written"

    assert await database.write(write) == "written"
    assert told == ["told"]


async def test_nothing_is_called_in_a_transaction_of_the_callers_own(database: Database) -> None:
    """Nobody here knows when it commits: what waits there is never told as if it had happened."""
    told: list[str] = []
    async with database.transaction() as transaction:
        await transaction.connection.run_sync(note, lambda: told.append("told"))
    await database.write(note, lambda: None)
    assert told == []
