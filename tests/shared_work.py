"""Importing this lets a run do once what every application does for itself, where the outcome is always the same.

A thousand tests make an application. Each would prepare the models and parameters of eighty routes again, and compile the
same statements for its new engines. That depends on nothing but the model, or the statement and the kind of database.
"""

from copy import copy
from functools import lru_cache
from typing import Any, get_args

import fastapi._compat.v2
import fastapi.routing
from pydantic import TypeAdapter
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

import redrive.ledgers.adopt.check as check

STATEMENTS_MAX = 4_000

# --- the answers of routes -------------------------------------------------------------------------------------------

_create: Any = fastapi.routing.create_model_field  # type: ignore[attr-defined]


@lru_cache(10_000)
def _prepared(model: type, mode: str) -> Any:
    return _create(name="any", type_=model, mode=mode)


def create_model_field(name: str, type_: Any, **options: Any) -> Any:
    """The field of a response; its name is all that differs between two of the same model."""
    if not isinstance(type_, type) or options.keys() != {"mode"}:
        return _create(name, type_, **options)
    field = copy(_prepared(type_, options["mode"]))
    field.name = name
    return field


fastapi.routing.create_model_field = create_model_field  # type: ignore[attr-defined]

# --- the parameters of routes ----------------------------------------------------------------------------------------

_adapters: dict[Any, Any] = {}


def type_adapter(annotated: Any, *, config: Any = None) -> Any:
    """What reads a parameter: the same for the same type and rules. Rules with functions are shown with their addresses."""
    kind, *rules = get_args(annotated)
    try:
        known = (kind, repr(rules), repr(config))
        if known not in _adapters:
            _adapters[known] = TypeAdapter(annotated, config=config)
        return _adapters[known]
    except TypeError:  # not hashable
        return TypeAdapter(annotated, config=config)


fastapi._compat.v2.TypeAdapter = type_adapter  # type: ignore[misc,assignment]

# --- compiled statements ---------------------------------------------------------------------------------------------

_compiled: Any = LRUCache(STATEMENTS_MAX)
_reflect: Any = check._reflect
_tables: dict[Any, Table] = {}


def _alike(dialect: Any) -> tuple[Any, ...]:
    """What decides how a statement is compiled and its rows are read: the key of a compiled statement has the dialect in it."""
    return type(dialect), dialect.server_version_info, dialect.paramstyle, dialect._json_deserializer


def reflect(connection: Connection, *given: Any) -> Table:
    """The table that was found before, if this one has the same columns: a statement's key has its tables in it."""
    table: Table = _reflect(connection, *given)
    columns = tuple((c.name, repr(c.type), c.server_default is None, c.primary_key, c.nullable) for c in table.c)
    return _tables.setdefault((connection.dialect.name, table.schema, table.name, columns), table)


Engine._compiled_cache = property(lambda self: _compiled, lambda self, own: None)  # type: ignore[assignment]
check._reflect = reflect
for kind in (PGDialect_asyncpg, SQLiteDialect_pysqlite):
    kind.__eq__ = lambda self, other: _alike(self) == _alike(other)  # type: ignore[assignment,method-assign]
    kind.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
