"""How PostgreSQL spells the expressions of `sql/times.py` and `sql/lists.py`. Needs neither its driver nor SQLAlchemy's dialect."""

from typing import Any

from sqlalchemy.ext.compiler import compiles

from redrive.ledgers.sql.lists import OneOf
from redrive.ledgers.sql.times import Earliest, EpochSeconds, HourOf, InstantOfText, IsoText


@compiles(InstantOfText, "postgresql")
def _instant_of_text(element: InstantOfText, compiler: Any, **options: Any) -> str:
    [value] = element.clauses
    said = str(compiler.process(value, **options))
    return f"redrive_instant({said})" if isinstance(value.type, IsoText) else said


@compiles(OneOf, "postgresql")
def _one_of(element: OneOf, compiler: Any, **options: Any) -> str:
    column, texts = (compiler.process(one, **options) for one in element.clauses)
    return f"{column} = ANY ({texts})"


@compiles(Earliest, "postgresql")
def _earliest(element: Earliest, compiler: Any, **options: Any) -> str:  # noqa: ARG001
    return "'-infinity'::timestamptz"


@compiles(EpochSeconds, "postgresql")
def _epoch_seconds(element: EpochSeconds, compiler: Any, **options: Any) -> str:
    return f"CAST(floor(extract(epoch FROM {compiler.process(element.clauses, **options)})) AS bigint)"


@compiles(HourOf, "postgresql")
def _hour_of(element: HourOf, compiler: Any, **options: Any) -> str:
    return f"date_trunc('hour', {compiler.process(element.clauses, **options)})"
