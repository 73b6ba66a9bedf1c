"""Importing this lets FastAPI prepare each response model once in a run.

It does so for every answer of every route of every application: eighty routes with four or five answers each, in the many
hundred tests that make an application. What it prepares depends on the model alone.
"""

from copy import copy
from functools import lru_cache
from typing import Any

import fastapi.routing

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
