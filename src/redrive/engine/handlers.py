"""Which function handles which kind, under which policy."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from redrive.core.durations import Span, read_span
from redrive.core.effect import Effect
from redrive.core.payload_types import PayloadType, wanted_payload
from redrive.core.policy import Policy
from redrive.core.task import KIND_CHARS_MAX, P, Task, check_gate, check_text
from redrive.engine.context import Context
from redrive.errors import HandlerError

HandlerFunction = Callable[[Task[P]], Any] | Callable[[Task[P], Context], Any]


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
    gate: Callable[[Any], str | None] | None = None
    """The gate of a task, from its payload; asked once, when the task is added."""
    payload: PayloadType | None = None
    """The type that its payloads are checked against and read as; None for any JSON."""
    effect: Effect | None = None
    """What it does outside, and how to find out whether that happened."""
    probe: "Handler | None" = None
    """The probe of its effect, called as a handler is."""
    is_plain: bool = False
    """Async, without context, timeout or typed payload: nothing has to be prepared for its call."""

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
        self.has_transactional = False
        """Whether some of them need a transaction of the ledger's."""
        self.has_gates = False
        """Whether some of them name the gate of their tasks."""
        self.has_typed = False
        """Whether some of them ask for payloads of a type."""
        self.has_effects = False
        """Whether some of them have an effect."""

    def __len__(self) -> int:
        return len(self._exact) + len(self._patterns)

    def __iter__(self) -> Iterator[Handler]:
        return iter([*self._exact.values(), *self._patterns])

    def add(self, handler: Handler) -> None:
        """Register; a second handler for the same kind is refused."""
        if handler.kind in self._exact or any(handler.kind == other.kind for other in self._patterns):
            raise HandlerError(f"there is a handler for {handler.kind!r} already: give the second one another kind")
        self.has_transactional |= handler.transactional
        self.has_gates |= handler.gate is not None
        self.has_typed |= handler.payload is not None
        self.has_effects |= handler.effect is not None
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

    def kind_of(self, function: Callable[..., Any]) -> str:
        """The one kind that a function handles, or a `HandlerError` that says why there is none."""
        if not callable(function):
            raise HandlerError(f"a kind is text, or the function that handles it, not {function!r:.80}")
        kinds = [
            handler.kind
            for handler in self
            if handler.function == function or inspect.unwrap(handler.function) == function
        ]
        name = f"{function_name(function) or type(function).__name__}()"
        if not kinds:
            raise HandlerError(f"{name} is not a handler here: register it with @app.handler, or name the kind as text")
        if len(kinds) > 1 or "*" in kinds[0]:
            raise HandlerError(f"{name} handles {', '.join(kinds)}: say as text which kind is meant")
        return kinds[0]

    @property
    def exact_kinds(self) -> list[str]:
        """The kinds that are named in full."""
        return list(self._exact)

    @property
    def has_patterns(self) -> bool:
        """Whether the kinds must be looked up in the ledger."""
        return bool(self._patterns)

    @property
    def has_open_patterns(self) -> bool:
        """Whether a pattern begins with a star, so that nothing is known of its kinds."""
        return any(handler.kind.startswith("*") for handler in self._patterns)

    @property
    def prefixes(self) -> list[str]:
        """What the kinds of patterns begin with, as far as they say; none that another one covers."""
        found: list[str] = []
        for prefix in sorted({handler.kind.partition("*")[0] for handler in self._patterns} - {""}):
            if not found or not prefix.startswith(found[-1]):
                found.append(prefix)
        return found

    def among(self, kinds: Iterable[str]) -> list[str]:
        """Those of the kinds that have a handler."""
        return [kind for kind in kinds if self.find(kind) is not None]


def make_handler(
    kind: str,
    function: Callable[..., Any],
    policy: Policy,
    *,
    transactional: bool = False,
    timeout: Span | None = None,
    gate: str | Callable[[Any], str | None] | None = None,
    effect: Effect | None = None,
) -> Handler:
    """A handler from a function, or a `HandlerError` that says what is wrong with it."""
    check_text("kind", kind, KIND_CHARS_MAX)
    takes_context = _takes_context(kind, function)
    is_async = _is_async(function)
    payload = wanted_payload(function)
    if timeout is not None:
        timeout = read_span("timeout", timeout)
        if not is_async:
            raise HandlerError(f"the handler of {kind!r} is a plain function, which no timeout can stop: make it async")
    return Handler(
        kind=kind,
        function=function,
        policy=policy,
        transactional=transactional,
        timeout=timeout,
        is_async=is_async,
        takes_context=takes_context,
        gate=_read_gate(kind, gate),
        payload=payload,
        effect=effect,
        probe=None if effect is None else _probe_of(kind, effect, takes_context=takes_context, within=transactional),
        is_plain=is_async and timeout is None and not takes_context and payload is None,
    )


def _probe_of(kind: str, effect: Effect, *, takes_context: bool, within: bool) -> Handler:
    if not isinstance(effect, Effect):
        raise HandlerError(f"the effect of {kind!r} must be an Effect, such as Effect(probe=was_paid), not {effect!r}")
    if within:
        raise HandlerError(
            f"the handler of {kind!r} is transactional, so its own transaction would hold the mark of its effect back: "
            "choose one of the two"
        )
    if not takes_context:
        raise HandlerError(f"the handler of {kind!r} has an effect: let it take (task, context), for context.effect()")
    return make_handler(kind, effect.probe, effect.policy, timeout=effect.timeout)


def _read_gate(kind: str, gate: str | Callable[[Any], str | None] | None) -> Callable[[Any], str | None] | None:
    if isinstance(gate, str):
        named = check_gate(gate)
        return lambda _: named
    if gate is not None and not callable(gate):
        raise HandlerError(f"the gate of {kind!r} must be text or a function of the payload, not {gate!r}")
    return gate


def function_name(function: Any) -> str | None:
    """The name that a function was defined by, also behind `functools.partial`; None for an object without one."""
    while isinstance(function, partial):
        function = function.func
    name: str | None = getattr(function, "__name__", None)
    return name


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _takes_context(kind: str, function: Any) -> bool:
    """Whether the function is called with (task, context) or with (task) alone; everything else is refused.

    A second parameter without a default gets the context, unless it looks like data: `(order, email)` means two fields of
    a payload. With a default it gets it if it is called `context` or is annotated as `Context`; any other parameter with a
    default keeps it. `*args` is refused: it hides which of the two is meant, most often behind a decorator without
    `functools.wraps`.
    """
    name = f"{function_name(function) or type(function).__name__}()"
    if not callable(function) or isinstance(function, type):
        raise HandlerError(
            f"the handler of {kind!r} must be a function, a method or a callable object, not {function!r}"
        )
    inner = function.__call__ if function_name(function) is None else function
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise HandlerError(f"{name} is a generator, so calling it would run nothing: take the yield out of it")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise HandlerError(f"the parameters of {name} cannot be read: wrap it in a function of (task)") from error

    def refused(remedy: str) -> HandlerError:
        return HandlerError(f"a handler takes (task) or (task, context), but {name} takes {signature}: {remedy}")

    parameters = list(signature.parameters.values())
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        raise refused("name its parameters; a decorator passes them on with functools.wraps")
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = [one.name for one in positional if one.default is one.empty]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if not positional:
        raise refused("give it a parameter for the task")
    if len(required) > 2 or named:
        more = ", ".join([*required[2:], *named])
        raise refused(f"give {more} a default, or bind it with functools.partial")
    if positional[0].name == "context" or "task" in [one.name for one in positional[1:2]]:
        raise refused("the task comes first")
    if len(required) == 2:
        if _is_data(*positional[:2]):
            raise refused(
                f"the second gets the context; take {required[1]} out of task.payload, or say {required[1]}: Context"
            )
        return True
    return len(positional) > 1 and (positional[1].name == "context" or _names(positional[1], "Context"))


def _is_data(first: inspect.Parameter, second: inspect.Parameter) -> bool:
    """Whether two parameters are two fields of a payload: neither names nor annotations say task and context."""
    if _names(second, r"\w*Context|Any|object") or re.search("context|ctx|^_", second.name):
        return False
    return second.annotation is not second.empty or not (_names(first, "Task") or "task" in first.name)


def _names(parameter: inspect.Parameter, types: str) -> bool:
    """Whether the annotation of a parameter has one of these names in it."""
    return re.search(rf"\b({types})\b", inspect.formatannotation(parameter.annotation)) is not None
