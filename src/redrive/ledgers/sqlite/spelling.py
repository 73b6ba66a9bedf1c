"""How SQLite spells the expressions of `sql/times.py` and `sql/lists.py`."""

from typing import Any

from sqlalchemy.ext.compiler import compiles

from redrive.ledgers.sql.lists import OneOf
from redrive.ledgers.sql.times import Earliest, EpochSeconds, HourOf, InstantOfText

_HOUR = 3_600_000_000


@compiles(InstantOfText, "sqlite")
def _instant_of_text(element: InstantOfText, compiler: Any, **options: Any) -> str:
    """Exact to the millisecond."""
    return f"julianday({compiler.process(element.clauses, **options)})"


@compiles(OneOf, "sqlite")
def _one_of(element: OneOf, compiler: Any, **options: Any) -> str:
    column, texts = (compiler.process(one, **options) for one in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({texts}))"  # noqa: S608 - both are compiled


@compiles(Earliest, "sqlite")
def _earliest(element: Earliest, compiler: Any, **options: Any) -> str:  # noqa: ARG001
    return "0"


@compiles(EpochSeconds, "sqlite")
def _epoch_seconds(element: EpochSeconds, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)} / 1000000)"


@compiles(HourOf, "sqlite")
def _hour_of(element: HourOf, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)} / {_HOUR} * {_HOUR})"
