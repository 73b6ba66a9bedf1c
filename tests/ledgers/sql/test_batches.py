"""Batches whose rows have much in common."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Integer, Text, select

from redrive.ledgers.sql.batches import SHAPES_MAX, Batch, Shapes
from redrive.ledgers.sql.database import Database

COLUMNS = {"id": Integer(), "word": Text(), "count": Integer()}


def names(same: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(same))


def test_what_all_rows_share_is_found() -> None:
    """A column belongs to the form if all of its values are equal, also if they are all missing; the ids never do."""
    shapes = Shapes(COLUMNS, names)
    assert shapes.of([(1, 2), ("a", "a"), (2, 2)]) == ("count", "word")
    assert shapes.of([(1, 2), (None, None), (2, 3)]) == ("word",)
    assert shapes.of([(1, 2), ("a", "b"), (2, 3)]) == ()
    assert shapes.of([(1, 2, 3), ("a", "b", "a"), (2, 2, 2)]) == ("count",)
    assert shapes.of([(1,), ("a",), (2,)]) == ("count", "word")


def test_there_are_only_so_many_forms() -> None:
    """When there are very many forms, the one in which nothing is shared serves the rest."""
    many = {"id": Integer(), **{f"c{at}": Integer() for at in range(10)}}
    shapes = Shapes(many, names)
    found = {shapes.of([(0, 1), *((0, number >> at & 1) for at in range(10))]) for number in range(1024)}
    assert len(found) == SHAPES_MAX + 1
    assert () in found


async def test_a_batch_is_the_same_table_however_it_is_sent(database: Database) -> None:
    """Whether a column is one value or a list, and whether rows or columns are given, makes no difference to what a statement sees."""
    rows = [(1, "a'\"{\\", None), (2, "a'\"{\\", None), (3, "a'\"{\\", None)]

    def read(connection: Connection, same: Collection[str]) -> list[Any]:
        batch = Batch(database.dialect, COLUMNS, same)
        asked = select(*batch.rows.c).order_by(batch.rows.c.id)
        return [
            tuple(row._mapping[name] for name in COLUMNS)
            for parameters in (batch.parameters(rows), batch.of_columns(list(zip(*rows, strict=True))))
            for row in connection.execute(asked, parameters)
        ]

    for same in ((), ("word",), ("count",), ("word", "count")):
        assert await database.read(read, same) == rows * 2
