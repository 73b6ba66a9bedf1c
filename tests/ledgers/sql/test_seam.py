"""What differs between the databases stands behind one seam, and nowhere else."""

import re
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, Table, Text, select
from sqlalchemy.dialects import postgresql, sqlite

from redrive.ledgers.sql.lists import one_of
from redrive.ledgers.sql.times import Earliest, EpochSeconds, HourOf, Instant, IsoText, When, comparable

ROOMS = Path(__file__).parents[3] / "src" / "redrive"
SHARED = ("ledgers/sql", "ledgers/adopt", "operator", "access", "systems", "stores", "lane", "engine", "web")
"""Rooms that must not know which database they have. Migrations may: they write its DDL. Adopting has a seam of its own."""
SIDES = {"ledgers/adopt/on_postgres.py", "ledgers/adopt/forms.py"}
ASKS = re.compile(
    r"dialect\.name|[\"'](sqlite|postgresql)[\"'] *[=!]=|[=!]= *[\"'](sqlite|postgresql)[\"']|sqlalchemy\.dialects"
)


@pytest.mark.parametrize("room", SHARED)
def test_nobody_asks_which_database_it_is(room: str) -> None:
    """No shared module compares the name of a dialect or imports one, but for migrations: a schema is written for each."""
    files = [
        path
        for path in sorted((ROOMS / room).rglob("*.py"))
        if "migrations" not in path.parts
        and "from alembic import op" not in path.read_text()
        and path.relative_to(ROOMS).as_posix() not in SIDES
    ]
    assert files
    asking = [
        f"{path.relative_to(ROOMS)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ASKS.search(line)
    ]
    assert asking == []


TIMES = Table(
    "times", MetaData(), Column("at", Instant), Column("said", IsoText), Column("written", When), Column("name", Text)
)


@pytest.mark.parametrize(
    ("expression", "on_sqlite", "on_postgres"),
    [
        (comparable(TIMES.c.at), "times.at", "times.at"),
        (comparable(TIMES.c.said), "julianday(times.said)", "redrive_instant(times.said)"),
        (comparable(TIMES.c.written), "julianday(times.written)", "SELECT times.written"),
        (Earliest(), "0", "'-infinity'::timestamptz"),
        (EpochSeconds(TIMES.c.at), "(times.at / 1000000)", "CAST(floor(extract(epoch FROM times.at)) AS bigint)"),
        (HourOf(TIMES.c.at), "(times.at / 3600000000 * 3600000000)", "date_trunc('hour', times.at)"),
        (one_of(TIMES.c.name, "names"), "IN (SELECT value FROM json_each(?))", "times.name = ANY (%(names)s"),
    ],
    ids=["instant", "text", "written", "earliest", "epoch", "hour", "list"],
)
def test_each_database_spells_an_expression_in_its_own_way(expression, on_sqlite, on_postgres) -> None:
    """The same expression is compiled for either database, without a driver of it."""
    assert on_sqlite in str(select(expression).compile(dialect=sqlite.dialect()))
    assert on_postgres in str(select(expression).compile(dialect=postgresql.dialect()))


@pytest.mark.parametrize(
    "expression",
    [comparable(TIMES.c.said), Earliest(), EpochSeconds(TIMES.c.at), HourOf(TIMES.c.at), one_of(TIMES.c.name, "names")],
    ids=lambda expression: type(expression).__name__,
)
def test_statements_with_it_are_compiled_once(expression) -> None:
    """SQLAlchemy finds the compiled statement again: compiled anew each time, a claim took half as long again."""
    assert select(expression)._generate_cache_key() is not None


def test_an_instant_is_a_number_on_sqlite_and_a_timestamp_on_postgres() -> None:
    """Each database stores instants in its own way."""
    assert Instant().compile(dialect=sqlite.dialect()) == "BIGINT"
    assert Instant().compile(dialect=postgresql.dialect()) == "TIMESTAMP WITH TIME ZONE"
