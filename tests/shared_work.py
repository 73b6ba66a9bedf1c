"""Importing this lets a run do once what every application does for itself, where the outcome is always the same.

A thousand tests make an application. Each would prepare eighty routes with their models and parameters again, which took a
quarter of the time of all tests of routes, and compile the same statements for its new engines. That depends on nothing but the
route, or the statement and the kind of database. Nor does what the command line understands change from one command to the next.
"""

from copy import copy
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from types import FunctionType
from typing import Any, get_args

import fastapi._compat.v2
import fastapi.dependencies.utils
import fastapi.routing
import httpx
import typer.testing
from fastapi.dependencies.models import Dependant
from fastapi.params import Depends
from pydantic import TypeAdapter
from pydantic_settings import EnvSettingsSource
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

import redrive.ledgers.adopt.check as check
import redrive.ledgers.pgmq.statements  # noqa: F401 - they begin with those of tables, as they are
from redrive.ledgers.sql import acts, add, base, claim, due, gates, ledger, settle
from redrive.ledgers.sql.mapped import KEPT_BY

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

# --- routes in applications ------------------------------------------------------------------------------------------

_Effective: Any = fastapi.routing._EffectiveRouteContext  # type: ignore[attr-defined]
_from_api_route = _Effective.from_api_route


def from_api_route(*, original_route: Any, include_context: Any) -> Any:
    """What a route is in an application that includes it: for the routes of a module the same in each application.

    Only `dependency_overrides` of the application could differ, and nobody here has any. Kept by the route itself, so that what
    was made for one application alone goes with it.
    """
    included = include_context
    known = included.prefix, tuple(included.tags), tuple(map(id, included.dependencies)), included.include_in_schema
    made = original_route.__dict__.setdefault("_made_for_tests", {})
    if known not in made:
        made[known] = _from_api_route(original_route=original_route, include_context=include_context)
    return made[known]


_Effective.from_api_route = from_api_route

# --- what routes ask for ---------------------------------------------------------------------------------------------

_get_dependant: Any = fastapi.dependencies.utils.get_dependant
_dependants: dict[Any, Dependant] = {}


def get_dependant(*, call: Any, **options: Any) -> Dependant:
    """What a function asks of a request: read once for all that were made by the same lines with the same parameters."""
    known = _asked(call, options)
    if known is None:
        return _get_dependant(call=call, **options)  # type: ignore[no-any-return]
    if known not in _dependants:
        _dependants[known] = _get_dependant(call=call, **options)
    found = _dependants[known]
    lists = {one.name: list(value) for one in fields(found) if isinstance(value := getattr(found, one.name), list)}
    return replace(found, call=call, **lists)


def _asked(call: Any, options: dict[str, Any]) -> Any:
    """What decides it; None where that cannot be told."""
    if not isinstance(call, FunctionType) or hasattr(call, "__wrapped__"):
        return None
    annotations = call.__annotations__
    if any(isinstance(one, str) for one in annotations.values()):
        return None
    defaults = *(call.__defaults__ or ()), *(call.__kwdefaults__ or {}).values()
    given = *defaults, *(one for each in annotations.values() for one in getattr(each, "__metadata__", ()))
    needed = tuple(one.dependency for one in given if isinstance(one, Depends))
    return call.__code__, needed, repr(annotations), repr(defaults), repr(sorted(options.items()))


fastapi.dependencies.utils.get_dependant = get_dependant
fastapi.routing.get_dependant = get_dependant  # type: ignore[attr-defined]

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
    return (
        type(dialect),
        dialect.statement_compiler,
        dialect.server_version_info,
        dialect.paramstyle,
        dialect._json_deserializer,
    )


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

# --- the statements of ledgers ---------------------------------------------------------------------------------------

_Mapped: Any = ledger.Mapped


def mapped(ledger_table: Any, table: Table, dialect: Any) -> Any:
    """The mapping that was made before for the same table on the same kind of database, and with it the statements that it led to.

    A new ledger would put forty statements together again, in a quarter of the time of many a test. Kept by the table itself, so
    that what was made for one test alone goes with it.
    """
    clock, schema = getattr(dialect, "_server_clock", None), getattr(dialect, "_schema", None)
    kept_by = str(table.info.get(KEPT_BY, ()))
    known = repr(ledger_table), type(dialect), clock, schema, _alike(dialect.sqlalchemy), kept_by
    made = table.__dict__.setdefault("_made_for_tests", {})
    if known not in made:
        made[known] = _Mapped(ledger_table, table, dialect)
    return made[known]


def once(kind: Any) -> Any:
    """Statements that depend on nothing but the mapping."""

    def make(mapped: Any, **given: Any) -> Any:
        made = mapped.__dict__.setdefault("_made_for_tests", {})
        known = kind, *given.items()
        if known not in made:
            made[known] = kind(mapped, **given)
        return made[known]

    return make


def once_for_all_alike(kind: Any, name: str, *, unless: str | None = None) -> None:
    """A property of ledgers that depends on nothing but the mapping and their kind."""
    build = kind.__dict__[name].func

    def find(self: Any) -> Any:
        if unless is not None and getattr(self, unless) is not None:
            return build(self)
        made = self._mapped.__dict__.setdefault("_made_for_tests", {})
        known = name, type(self)
        if known not in made:
            made[known] = build(self)
        return made[known]

    shared = cached_property(find)
    shared.__set_name__(kind, name)
    setattr(kind, name, shared)


ledger.Mapped = mapped  # type: ignore[assignment,misc]
for module, name in (
    (acts, "ActStatements"), (add, "AddStatements"), (base, "Fences"), (claim, "ClaimStatements"), (due, "DueStatements"),
):  # fmt: skip
    setattr(module, name, once(getattr(module, name)))
once_for_all_alike(gates.Gating, "_gate_claim")
once_for_all_alike(settle.Settling, "_settle_writer", unless="_extra")

# --- settings --------------------------------------------------------------------------------------------------------

_extract_field_info: Any = EnvSettingsSource._extract_field_info
_field_is_complex: Any = EnvSettingsSource._field_is_complex
_names: dict[Any, list[tuple[str, str, bool]]] = {}
_complex: dict[int, tuple[Any, tuple[bool, bool]]] = {}


def extract_field_info(self: Any, field: Any, field_name: str, model_config: Any = None) -> list[tuple[str, str, bool]]:
    """Which variables a setting is read from: a command reads its settings seven times."""
    if model_config is not None:
        return _extract_field_info(self, field, field_name, model_config)  # type: ignore[no-any-return]
    known = self.settings_cls, field_name, self.env_prefix, self.env_prefix_target, self.case_sensitive
    if known not in _names:
        _names[known] = _extract_field_info(self, field, field_name)
    return _names[known]


def field_is_complex(self: Any, field: Any) -> tuple[bool, bool]:
    """Whether a setting is read as JSON. The field is kept, so that no other one gets its address."""
    if id(field) not in _complex:
        _complex[id(field)] = field, _field_is_complex(self, field)
    return _complex[id(field)][1]


EnvSettingsSource._extract_field_info = extract_field_info  # type: ignore[method-assign]
EnvSettingsSource._field_is_complex = field_is_complex  # type: ignore[method-assign]

# --- the command line ------------------------------------------------------------------------------------------------

typer.testing._get_command = lru_cache(typer.testing._get_command)  # type: ignore[assignment]

# --- certificates ----------------------------------------------------------------------------------------------------

httpx.create_ssl_context = lru_cache(httpx.create_ssl_context)  # 27 ms for every application that sends
