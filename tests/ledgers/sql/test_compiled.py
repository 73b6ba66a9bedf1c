"""Statements that the driver runs: what they return and raise is what SQLAlchemy would."""

import gc
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, Integer, bindparam, event, insert, literal, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.sql.compiler import SQLCompiler

from redrive.ledgers.open import open_database
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.compiled import KEPT_MAX, OWN, Compiled
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.times import Instant

AT = datetime(2026, 1, 31, 9, 30, 0, 123456, tzinfo=UTC)
SHOWN = Compiled(
    select(
        bindparam("at", type_=Instant).label("at"),
        bindparam("fence", type_=schema.task.c.claim_id.type).label("fence"),
        (bindparam("number", type_=Integer) + literal(1)).label("more"),
    )
)
GIVEN: dict[str, Any] = {"at": AT, "fence": UUID(int=7), "number": 41}


async def test_values_are_converted_by_their_types(database: Database) -> None:
    """Parameters and results have the types of their columns, on the way in and out; constants stay in the statement."""

    def run(connection: Connection) -> tuple[Any, Any]:
        assert connection.get_execution_options()[OWN]
        return SHOWN.rows(connection, GIVEN), connection.execute(SHOWN.statement, GIVEN).all()

    by_driver, by_sqlalchemy = await database.read(run)
    assert [tuple(row) for row in by_driver] == [(AT, UUID(int=7), 42)]
    assert by_driver == by_sqlalchemy


async def test_rows_may_have_names(database: Database) -> None:
    """The values of a row are found by the names of their columns too."""
    [row] = await database.read(lambda connection: SHOWN.named(connection, GIVEN))
    assert (row.at, row.fence, row.more) == (AT, UUID(int=7), 42)


async def test_whoever_listens_hears_it(database: Database) -> None:
    """Instrumentation that listens to what is executed misses nothing."""
    heard: list[str] = []

    def run(connection: Connection) -> None:
        SHOWN.rows(connection, GIVEN)
        event.listen(connection, "before_cursor_execute", lambda *args: heard.append(args[2]))
        SHOWN.rows(connection, GIVEN)

    await database.read(run)
    assert len(heard) == 1


async def test_errors_are_sqlalchemys(database: Database) -> None:
    """What the driver refuses is raised as SQLAlchemy raises it, without the parameters, and takes the transaction back."""
    twice = Compiled(insert(schema.stack))
    row = {"id": "secret", "frames": "[]", "seen_at": AT}
    seen: list[DBAPIError] = []

    def run(connection: Connection) -> None:
        twice.rows(connection, row)
        try:
            twice.rows(connection, row)
        except IntegrityError as error:
            seen.append(error)
            raise

    with pytest.raises(Exception, match=r"(?i)unique"):
        await database.write(run)
    assert seen[0].hide_parameters
    left = await database.read(lambda connection: connection.execute(select(schema.stack.c.id)).all())
    assert left == []


async def test_a_list_of_any_length_is_for_sqlalchemy(database: Database) -> None:
    """A statement whose text depends on its parameters is written anew for each of them."""
    found = Compiled(select(schema.task.c.id).where(schema.task.c.claim_id.in_(bindparam("fences", expanding=True))))

    def run(connection: Connection) -> list[Any]:
        return [list(found.rows(connection, {"fences": [uuid4() for _ in range(amount)]})) for amount in (1, 3)]

    assert await database.read(run) == [[], []]


async def test_an_error_costs_only_what_it_is_in(database: Database) -> None:
    """What was written before in the same transaction is still there for whoever goes on after the error, up to a savepoint."""
    one = Compiled(insert(schema.stack))

    def run(connection: Connection) -> list[str]:
        one.rows(connection, {"id": "a", "frames": "[]", "seen_at": AT})
        with pytest.raises(IntegrityError), connection.begin_nested():
            one.rows(connection, {"id": "a", "frames": "[]", "seen_at": AT})
        return list(connection.execute(select(schema.stack.c.id)).scalars())

    assert await database.write(run) == ["a"]


async def test_what_is_not_the_drivers_is_raised_as_it_is(database: Database) -> None:
    """A value that no driver takes is the caller's error, and no error of the database."""
    with pytest.raises(Exception, match=r".") as raised:
        await database.read(lambda connection: SHOWN.rows(connection, GIVEN | {"number": 10**40}))
    seen: list[BaseException] = []

    def run(connection: Connection) -> None:
        try:
            connection.execute(SHOWN.statement, GIVEN | {"number": 10**40}).all()
        except BaseException as error:
            seen.append(error)
            raise

    with pytest.raises(Exception, match=r"."):
        await database.read(run)
    assert type(raised.value) is type(seen[0])


async def test_a_parameter_that_is_missing_is_an_error(database: Database) -> None:
    """It would else be NULL, and a condition on NULL finds nothing and says nothing."""
    statement = Compiled(select(bindparam("one", type_=Integer), bindparam("other", type_=Integer)))
    assert list(await database.read(statement.rows, {"one": 1, "other": None})) == [(1, None)]
    with pytest.raises(KeyError, match="other"):
        await database.read(statement.rows, {"one": 1})


async def test_what_people_filter_by_does_not_pile_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements of ever new forms are forgotten again: a process keeps a few hundred of them, and not each that somebody has asked for."""
    monkeypatch.delattr(Engine, "_compiled_cache")  # the one that all tests share; each engine has its own now

    def compiled() -> int:
        gc.collect()
        # By its type: to ask an object of others for its class may wake what is lazy.
        return sum(issubclass(type(one), SQLCompiler) for one in gc.get_objects())

    def ask(connection: Connection) -> None:
        for number in range(2 * KEPT_MAX):
            connection.execute(select(literal(number).label(f"n{number}"))).all()

    database = open_database(url, durable=False)
    before = compiled()
    await database.read(ask)
    kept = compiled() - before
    await database.close()
    assert KEPT_MAX <= kept <= 1.5 * KEPT_MAX + 20  # and what opening the database has asked
