"""Which function handles which type of command.

    @commands.handler("payments", "DebitAccount")
    async def debit(command, context): ...

    class Payments:
        def __init__(self, bank): ...

        @commands.handles("payments", "DebitAccount")
        async def debit(self, command, context): ...

    commands.register(Payments(bank))

Both ways fill one registry for the whole process; every bus that is not given one of its own listens to it.
"""

import inspect
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from redrive.errors import UsageError
from redrive.systems.commands.errors import HandlerAlreadyRegisteredError
from redrive.systems.commands.policy import RetryPolicy
from redrive.systems.commands.values import check_domain, check_text

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__redrive_command__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A function, what it handles, and how."""

    domain: str
    command_type: str
    function: Callable[..., Any]
    retry_policy: RetryPolicy | None = None
    transactional: bool = False

    def __post_init__(self) -> None:
        check_domain(self.domain)
        check_text("command_type", self.command_type)
        if "*" in self.command_type:
            raise UsageError(f"name each type that is handled in full, not {self.command_type!r}")

    @property
    def kind(self) -> str:
        """What the engine knows it by."""
        return f"{self.domain}/{self.command_type}"


class Listener(Protocol):
    """Who wants to hear of new handlers."""

    def registered(self, registration: Registration) -> None:
        """Take a handler in."""
        ...


class Registry:
    """All handlers, one for each type of a domain."""

    def __init__(self) -> None:
        self._known: dict[str, Registration] = {}
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Registration]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def handler(
        self,
        domain: str,
        command_type: str,
        *,
        retry_policy: RetryPolicy | None = None,
        transactional: bool = False,
    ) -> Callable[[F], F]:
        """Register a function, sync or async, that takes `(command, context)`, or `(command)` alone.

        Its `retry_policy` beats the worker's. With `transactional` the context holds a connection whose writes commit
        together with the end of the command.
        """

        def register(function: F) -> F:
            registration = Registration(
                domain=domain, command_type=command_type, function=function, retry_policy=retry_policy,
                transactional=transactional,
            )  # fmt: skip
            self._add([registration])
            return function

        return register

    def register(self, instance: Any) -> None:
        """Register the methods of an object that are marked with `handles`; all of them or none."""
        marked = inspect.getmembers(type(instance), lambda member: hasattr(member, _MARK))
        if not marked:
            raise UsageError(
                f"{type(instance).__name__} has no method marked with @handles(domain, command_type): mark those that handle"
            )
        self._add([getattr(method, _MARK)(function=getattr(instance, name)) for name, method in marked])

    def listen(self, listener: Listener) -> None:
        """Tell the listener of every handler, those that are there and those to come."""
        self._listeners.add(listener)
        for one in self:
            listener.registered(one)

    def _add(self, registrations: list[Registration]) -> None:
        kinds = [one.kind for one in registrations]
        for one in registrations:
            if one.kind in self._known or kinds.count(one.kind) > 1:
                raise HandlerAlreadyRegisteredError(one.domain, one.command_type)
        for one in registrations:
            self._known[one.kind] = one
            for listener in list(self._listeners):
                listener.registered(one)


def handles(
    domain: str,
    command_type: str,
    *,
    retry_policy: RetryPolicy | None = None,
    transactional: bool = False,
) -> Callable[[F], F]:
    """Mark a method as the handler of a type; `register(instance)` then registers it."""

    def mark(function: F) -> F:
        made = partial(
            Registration,
            domain=domain,
            command_type=command_type,
            retry_policy=retry_policy,
            transactional=transactional,
        )
        setattr(function, _MARK, made)
        return function

    return mark


registry = Registry()
"""The registry of this process."""
handler = registry.handler
register = registry.register
