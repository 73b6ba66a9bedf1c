"""Typed payloads: JSON into the type that a handler asks for, and back.

A handler that takes `Task[Payment]` gets a `Payment`. The type may be a dataclass, a TypedDict, a pydantic model, a msgspec Struct, or
anything else that pydantic can check. Both libraries are imported only where somebody uses such a type.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Protocol, get_args, get_origin, get_type_hints

from redrive.core.task import Task
from redrive.errors import HandlerError, PayloadError

ERRORS_SHOWN_MAX = 5
_AS_IT_IS = (dict, list, str, int, float, type(None), type)


class PayloadType(Protocol):
    """What payloads of one type look like as JSON."""

    def read(self, payload: Any) -> Any:
        """The value that JSON stands for, or a `PayloadError` that says where it does not fit."""
        ...

    def write(self, value: Any) -> Any:
        """The JSON that stands for a value."""
        ...


def payload_type(wanted: Any) -> PayloadType:
    """How payloads of this type are read and written, or a `HandlerError` if nobody knows."""
    return _Struct(wanted) if _is_struct(wanted) else _Checked(wanted)


def wanted_payload(function: Callable[..., Any]) -> PayloadType | None:
    """The type that a handler's annotation asks for: that of `task: Task[Payment]`; None where it takes any JSON."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)):
        inner = type(inner).__call__
    first = next(iter(inspect.signature(function).parameters.values()))
    annotation = first.annotation
    if isinstance(annotation, str):
        if not re.search(r"\bTask\[", annotation):
            return None
        try:
            annotation = get_type_hints(inner, include_extras=True).get(first.name)
        except Exception as error:  # whatever the evaluation of somebody's text raises
            raise HandlerError(
                f"the annotation {first.annotation!r} of {first.name!r} cannot be read: {error}; "
                "import its type where the handler is defined, not under TYPE_CHECKING or inside a function"
            ) from error
    if get_origin(annotation) is not Task:
        return None
    [wanted] = get_args(annotation)
    return None if wanted is Any else payload_type(wanted)


def as_json(payload: Any) -> Any:
    """The payload as JSON if it is a dataclass, a pydantic model or a Struct; anything else as it is."""
    if isinstance(payload, _AS_IT_IS):
        return payload
    type_: Any = type(payload)
    if is_dataclass(payload) or _is_struct(type_) or hasattr(type_, "__pydantic_validator__"):
        return _known(type_).write(payload)
    return payload


@lru_cache(maxsize=256)
def _known(wanted: type) -> PayloadType:
    return payload_type(wanted)


def _is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and hasattr(wanted, "__struct_fields__")


def _name(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)


class _Checked:
    """A type that pydantic checks."""

    def __init__(self, wanted: Any) -> None:
        from pydantic import TypeAdapter, ValidationError
        from pydantic.errors import PydanticUserError
        from pydantic_core import PydanticSerializationError

        self._name = _name(wanted)
        self._refused = ValidationError
        self._unwritable = PydanticSerializationError
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        except (PydanticUserError, NameError) as error:
            raise HandlerError(
                f"payloads of type {self._name} cannot be checked: make it a dataclass, a pydantic model, a msgspec Struct or a "
                f"TypedDict of such types ({str(error).partition(chr(10))[0]})"
            ) from error

    def read(self, payload: Any) -> Any:
        try:
            return self._adapter.validate_python(payload)
        except self._refused as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise _misfit(self._name, ((_path(one["loc"]), one["msg"]) for one in found), len(found)) from error

    def write(self, value: Any) -> Any:
        try:
            # A value of a wrong type is written as it is: reading it says where it does not fit.
            return self._adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
        except self._unwritable as error:
            raise PayloadError(f"a {self._name} that cannot be written as JSON: {error}") from error


class _Struct:
    """A Struct of msgspec."""

    def __init__(self, wanted: Any) -> None:
        self._wanted = wanted
        self._msgspec: Any = import_module("msgspec")  # it is there, since its Struct is

    def read(self, payload: Any) -> Any:
        try:
            return self._msgspec.convert(payload, self._wanted)
        except self._msgspec.ValidationError as error:
            reason, _, where = str(error).partition(" - at ")
            path = where.strip("`").removeprefix("$").removeprefix(".")
            raise _misfit(self._wanted.__name__, [(path, reason)], 1) from error

    def write(self, value: Any) -> Any:
        try:
            return self._msgspec.to_builtins(value, str_keys=True)
        except TypeError as error:
            raise PayloadError(f"a {self._wanted.__name__} that cannot be written as JSON: {error}") from error


def _path(steps: Iterable[int | str]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _misfit(name: str, found: Iterable[tuple[str, str]], count: int) -> PayloadError:
    """What does not fit, by path. The values are not shown: payloads hold people's data, and errors go into logs."""
    shown = [f"{path}: {reason}" if path else reason for path, reason in found][:ERRORS_SHOWN_MAX]
    more = f"; and {count - len(shown)} more" if count > len(shown) else ""
    return PayloadError(f"the payload does not fit {name}: {'; '.join(shown)}{more}")
