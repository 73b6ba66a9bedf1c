"""Reading a model class: the names, types and words of its columns, for `LedgerTable.of`.

A mapped class or a `Table` of SQLAlchemy and a model of Django say the same things in other words. They are read as they are, without
an import of either library: the core knows no driver, and whoever has the model has the library.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from redrive.core.column_names import KEYS, PAYLOADS, WORDS_NEEDED, first_of, usual_columns, usual_words
from redrive.errors import UsageError

_TIMES, _NUMBERS, _TEXTS = (datetime, str), (int,), (str, Enum)
_TYPES: dict[str, tuple[type, ...]] = {
    "status": (str, Enum, int), "kind": _TEXTS, "last_error": _TEXTS, "claim_id": (UUID, str),
    "count": _NUMBERS, "count_max": _NUMBERS,
    **dict.fromkeys(
        ("due", "first_due", "lease_until", "claimed_at", "done_at", "ended_at", "created_at", "updated_at", "deadline"), _TIMES
    ),
}  # fmt: skip
"""What the values of a role may be. A column of another type means something else, whatever it is called."""
_NEEDED = {"status": "status", "due": "when it is due", "count": "how often it has failed"}
_DJANGO_TYPES: dict[str, type] = {
    "BooleanField": bool, "DateTimeField": datetime, "JSONField": dict, "UUIDField": UUID,
    **dict.fromkeys(("CharField", "TextField", "SlugField", "EmailField", "URLField"), str),
    **dict.fromkeys(
        ("AutoField", "BigAutoField", "SmallAutoField", "IntegerField", "BigIntegerField", "SmallIntegerField",
         "PositiveIntegerField", "PositiveBigIntegerField", "PositiveSmallIntegerField"), int
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as its model describes it."""

    name: str
    attribute: str
    """What the model's own code calls it."""
    type: type | None
    primary: bool = False
    unique: bool = False
    words: Mapping[str, str] | None = None
    """What it may hold, if the model says so: each word as it is stored, with what people call it."""
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A table as its model describes it."""

    called: str
    name: str
    schema: str | None
    columns: tuple[Column, ...]

    def column(self, given: Any) -> str:
        """The column that somebody means: by its name, by the attribute's name, or by the attribute itself."""
        if not isinstance(given, str):
            return _name_of(given)
        names = {one.attribute: one.name for one in self.columns} | {one.name: one.name for one in self.columns}
        if given not in names:
            raise UsageError(f"{self.called} has no column {given!r}: it has {', '.join(sorted(names))}")
        return names[given]


def read_model(model: Any) -> Model:
    """The description of a mapped class or `Table` of SQLAlchemy, or of a model of Django."""
    meta, table = getattr(model, "_meta", None), getattr(model, "__table__", model)
    if meta is not None and hasattr(meta, "db_table"):
        return Model(
            called=model.__name__, name=meta.db_table, schema=None, columns=tuple(map(_django_column, meta.concrete_fields))
        )  # fmt: skip
    if not (hasattr(table, "columns") and hasattr(table, "primary_key") and hasattr(table, "schema")):
        raise UsageError(f"a ledger is made of a mapped class, a Table or a model of Django, not of {model!r:.80}")
    attributes = {
        column: attribute.key for attribute in getattr(model, "__mapper__", _NO_MAPPER).column_attrs
        for column in attribute.columns
    }  # fmt: skip
    alone = {
        next(iter(one.columns)) for one in table.constraints if len(getattr(one, "columns", ())) == 1 and _unique(one)
    }
    alone |= {next(iter(one.columns)) for one in table.indexes if one.unique and len(one.columns) == 1}
    return Model(
        called=getattr(model, "__name__", table.name),
        name=table.name,
        schema=table.schema,
        columns=tuple(_sql_column(one, attributes.get(one, one.key), unique=one in alone) for one in table.columns),
    )


def read_roles(model: Model, given: Mapping[str, Any]) -> dict[str, str | None]:
    """The column of each role: those that are given, then those that are called as usual and have a fitting type."""
    said = {role: None if name is None else model.column(name) for role, name in given.items()}
    free = [one for one in model.columns if one.name not in said.values()]
    found = {
        role: chosen.name
        for role, types in _TYPES.items()
        if role not in said and (chosen := _usual(role, [one for one in free if _fits(one, types)])) is not None
    }
    found = {role: name for role, name in found.items() if not (role == "kind" and name in said.values())}
    roles: dict[str, str | None] = {**found, **said}
    for role, meaning in _NEEDED.items():
        if roles.get(role) is None:
            raise UsageError(
                f"{model.called} has no column that clearly says {meaning}: name it, as in LedgerTable.of({model.called}, {role}='…')"
            )
    taken = set(roles.values())
    _read_ids(model, roles)
    if "payload" not in said:
        json = [one for one in free if one.type in (dict, list) and one.name not in taken]
        roles["payload"] = _named(json, first_of(PAYLOADS, _spellings(json)))
    return roles


def read_words(model: Model, status: str) -> dict[str, str]:
    """The status words by state, or a `UsageError` that asks for those that the model does not tell."""
    column = next(one for one in model.columns if one.name == status)
    spelled = {stored: stored for stored in column.words or {}} | {
        called: stored for stored, called in (column.words or {}).items()
    }
    words = {state: spelled[word] for state, word in usual_words(spelled).items()}
    if column.default is not None and "waiting" not in words and column.default not in words.values():
        words["waiting"] = column.default
    missing = [state for state in WORDS_NEEDED if state not in words]
    if missing:
        left = [word for word in column.words or () if word not in words.values()]
        may = f" ({', '.join(map(repr, left))} may mean it)" if left else ""
        shown = ", ".join(f"{state}={words.get(state, '…')!r}" for state in WORDS_NEEDED)
        raise UsageError(
            f"{model.called} does not say which word of {status!r} means {' and '.join(missing)}{may}: "
            f"name it, as in LedgerTable.of({model.called}, words=Words({shown}))"
        )
    return words


def _read_ids(model: Model, roles: dict[str, str | None]) -> None:
    """The id, which is the primary key, and the key: what is unique and called like one, else the id."""
    primary = [one for one in model.columns if one.primary]
    if roles.get("id") is None:
        if len(primary) != 1:
            raise UsageError(
                f"{model.called} has a primary key of {len(primary)} columns, but rows are updated by one: give it a column that is "
                f"unique and name it, as in LedgerTable.of({model.called}, id='redrive_id', key='…')"
            )
        roles["id"] = primary[0].name
    if roles.get("key") is None:
        unique = [one for one in model.columns if one.unique]
        roles["key"] = _named(unique, first_of(KEYS, _spellings(unique))) or roles["id"]
    if roles["id"] == roles["key"]:
        roles["id"] = None


def _usual(role: str, columns: list[Column]) -> Column | None:
    name = _named(columns, usual_columns(_spellings(columns)).get(role))
    return next((one for one in columns if one.name == name), None)


def _spellings(columns: Iterable[Column]) -> list[str]:
    columns = list(columns)
    return [*(one.name for one in columns), *(one.attribute for one in columns)]


def _named(columns: Iterable[Column], spelling: str | None) -> str | None:
    """The column's name, whichever of its two names was found."""
    return next((one.name for one in columns if spelling in (one.name, one.attribute)), None)


def _fits(column: Column, types: tuple[type, ...]) -> bool:
    return column.type is None or (issubclass(column.type, types) and column.type is not bool)


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------


class _NoMapper:
    column_attrs: tuple[Any, ...] = ()


_NO_MAPPER = _NoMapper()


def _unique(constraint: Any) -> bool:
    return type(constraint).__name__ == "UniqueConstraint"


def _sql_column(column: Any, attribute: str, *, unique: bool) -> Column:
    try:
        type_: type | None = column.type.python_type
    except NotImplementedError:
        type_ = None
    if type_ is object:  # SQLAlchemy 2.1 says so of JSON, where 2.0 says dict
        type_ = dict if "JSON" in str(getattr(column.type, "__visit_name__", "")) else None
    enums = getattr(column.type, "enums", None)
    default = getattr(column.default, "arg", None)
    if isinstance(default, Enum):
        default = default.name if enums and default.name in enums else default.value
    return Column(
        name=column.name,
        attribute=attribute,
        type=str if enums else type_,
        primary=column.primary_key,
        unique=unique or bool(column.unique),
        words=None if enums is None else {word: word for word in enums},
        default=default if isinstance(default, str) else None,
    )


def _name_of(attribute: Any) -> str:
    """The name of the column behind an attribute of a class: SQLAlchemy's `Email.due`, or Django's."""
    field = getattr(attribute, "field", None)
    name = getattr(field, "column", None) or getattr(getattr(attribute, "expression", None), "name", None)
    if not isinstance(name, str):
        raise UsageError(f"name a column by its name or by the attribute of its class, not by {attribute!r:.80}")
    return name


# --- Django -----------------------------------------------------------------------------------------------------------


def _django_column(field: Any) -> Column:
    choices = getattr(field, "flatchoices", None)
    default = field.default if field.has_default() and not callable(field.default) else None
    return Column(
        name=field.column,
        attribute=field.name,
        type=_DJANGO_TYPES.get(field.get_internal_type()),
        primary=field.primary_key,
        unique=field.unique,
        words={_stored(value): str(label) for value, label in choices} if choices else None,
        default=None if default is None else _stored(default),
    )


def _stored(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)
