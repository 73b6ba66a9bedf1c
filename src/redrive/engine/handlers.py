"""Which function handles which kind, under which policy."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from redrive.core.durations import checked
from redrive.core.policy import Policy
from redrive.core.task import KIND_CHARS_MAX, Claim, Task, check_text
from redrive.errors import HandlerError


@dataclass(slots=True, kw_only=True)
class Context:
    """What a handler may ask for as its second parameter."""

    claim: Claim
    attempts_max: int
    """How many tries the task has in all."""
    connection: Any = None
    """The open transaction's connection, for transactional handlers only."""

    @property
    def attempt(self) -> int:
        """Which try this is, counted from one."""
        return self.claim.number


HandlerFunction = Callable[[Task], Any] | Callable[[Task, Context], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function with all that is needed to call it."""

    kind: str
    function: Callable[..., Any]
    policy: Policy
    transactional: bool = False
    timeout: timedelta | None = None
    is_async: bool = True
    takes_context: bool = False
    is_plain: bool = False
    """Async, without context or timeout: nothing has to be prepared for its call."""

    @property
    def is_pattern(self) -> bool:
        """Whether the kind stands for many."""
        return "*" in self.kind

    def matches(self, kind: str) -> bool:
        """Whether tasks of this kind are its business."""
        if not self.is_pattern:
            return kind == self.kind
        # Only the star is special here: the other signs of fnmatch stand for themselves.
        return fnmatchcase(kind, self.kind.replace("[", "[[]").replace("?", "[?]"))


class Handlers:
    """All handlers of a ledger. An exact kind goes before a pattern, a longer pattern before a shorter one."""

    def __init__(self) -> None:
        self._exact: dict[str, Handler] = {}
        self._patterns: list[Handler] = []

    def __len__(self) -> int:
        return len(self._exact) + len(self._patterns)

    def __iter__(self) -> Iterator[Handler]:
        return iter([*self._exact.values(), *self._patterns])

    def add(self, handler: Handler) -> None:
        """Register; a second handler for the same kind is refused."""
        if handler.kind in self._exact or any(handler.kind == other.kind for other in self._patterns):
            raise HandlerError(f"there is a handler for {handler.kind!r} already: give the second one another kind")
        if handler.is_pattern:
            self._patterns.append(handler)
            self._patterns.sort(key=lambda one: len(one.kind), reverse=True)
        else:
            self._exact[handler.kind] = handler

    def find(self, kind: str) -> Handler | None:
        """The handler of a kind, if there is one."""
        found = self._exact.get(kind)
        if found is None and self._patterns:
            found = next((handler for handler in self._patterns if handler.matches(kind)), None)
        return found

    @property
    def exact_kinds(self) -> list[str]:
        """The kinds that are named in full."""
        return list(self._exact)

    @property
    def has_patterns(self) -> bool:
        """Whether the kinds must be looked up in the ledger."""
        return bool(self._patterns)

    def among(self, kinds: Iterable[str]) -> list[str]:
        """Those of the kinds that have a handler."""
        return [kind for kind in kinds if self.find(kind) is not None]


def make_handler(
    kind: str,
    function: Callable[..., Any],
    policy: Policy,
    *,
    transactional: bool = False,
    timeout: timedelta | None = None,
) -> Handler:
    """A handler from a plain function, or a `HandlerError` that says what is wrong with it."""
    check_text("kind", kind, KIND_CHARS_MAX)
    if not callable(function):
        raise HandlerError(f"the handler of {kind!r} must be a function, not {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise HandlerError(f"the handler of {kind!r} has no readable signature: wrap it in a function") from error
    positional = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    named = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    if not positional or len(required) > 2 or named:
        raise HandlerError(f"the handler of {kind!r} must take (task) or (task, context), not {signature}")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if timeout is not None:
        checked("timeout", timeout)
        if not is_async:
            raise HandlerError(f"the handler of {kind!r} is a plain function, which no timeout can stop: make it async")
    return Handler(
        kind=kind,
        function=function,
        policy=policy,
        transactional=transactional,
        timeout=timeout,
        is_async=is_async,
        takes_context=len(required) == 2,
        is_plain=is_async and timeout is None and len(required) != 2,
    )
