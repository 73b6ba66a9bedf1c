"""Whether a column is one of a list of texts: with one parameter, so that the database plans it once for lists of any length."""

import json
from typing import Any

from sqlalchemy import ARRAY, Boolean, ColumnElement, Dialect, Text, bindparam
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


class _JsonList(TypeDecorator[list[str]]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        return json.dumps(list(value))


_LIST = ARRAY(Text).with_variant(_JsonList(), "sqlite")


class OneOf(FunctionElement[bool]):
    """What `one_of` makes; each dialect spells it."""

    type = Boolean()
    inherit_cache = True


def one_of(column: ColumnElement[str], parameter: str) -> ColumnElement[bool]:
    """Whether the column is among the texts that the parameter of this name lists."""
    return OneOf(column, bindparam(parameter, type_=_LIST))
