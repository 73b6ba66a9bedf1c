"""The errors of the command bus.

    RedriveError
    └── CommandBusError                what the bus refuses
        ├── DuplicateCommandError      the domain has a command of this id already
        ├── DuplicateBatchError        the domain has a batch of this id already
        ├── CommandNotFoundError       there is no such command
        ├── InvalidOperationError      the command is not in the troubleshooting queue, or has left it meanwhile
        └── HandlerAlreadyRegisteredError   two handlers for one type of a domain
    TaskError                          what a handler raises
    ├── TransientError ── TransientCommandError    try again with backoff
    ├── PermanentError ── PermanentCommandError    can never work: a person must look
    └── BusinessError  ── BusinessRuleError        a rule says no: failed, and the sender is told

The last three carry a code, a message and details. Any other exception of a handler counts as transient, with the name of its
class as the code.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple, cast

from redrive import BusinessError, PermanentError, RedriveError, TransientError
from redrive.errors import PayloadError
from redrive.operator.json_views import redacted
from redrive.operator.words import describe_error
from redrive.systems.commands.values import json_text

CODE_CHARS_MAX = 200


class CommandBusError(RedriveError):
    """The bus cannot do what was asked."""


class DuplicateCommandError(CommandBusError):
    """The domain has a command of this id already; nothing was sent."""

    def __init__(self, domain: str, command_id: str) -> None:
        self.domain = domain
        self.command_id = command_id
        super().__init__(
            f"{domain!r} has a command {command_id!r} already: if you sent it twice this is safe to ignore, "
            "a different command needs an id of its own"
        )


class DuplicateBatchError(CommandBusError):
    """The domain has a batch of this id already; nothing was sent."""

    def __init__(self, domain: str, batch_id: str) -> None:
        self.domain = domain
        self.batch_id = batch_id
        super().__init__(
            f"{domain!r} has a batch {batch_id!r} already, and nothing was sent: give another batch_id, or none to get a new one"
        )


class CommandNotFoundError(CommandBusError):
    """There is no such command."""

    def __init__(self, domain: str, command_id: str) -> None:
        self.domain = domain
        self.command_id = command_id
        super().__init__(f"{domain!r} has no command {command_id!r}")


class InvalidOperationError(CommandBusError):
    """The command is not in a state in which this can be done; nothing was changed."""


class HandlerAlreadyRegisteredError(CommandBusError):
    """There is a handler for this type of command already."""

    def __init__(self, domain: str, command_type: str) -> None:
        self.domain = domain
        self.command_type = command_type
        super().__init__(f"{domain}/{command_type} has a handler already: give each type of a domain one function")


class Coded:
    """A code for programs, a message for people, and details for both."""

    def __init__(
        self,
        code: str,
        message: str = "",
        details: Mapping[str, Any] | None = None,
        *,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(f"[{code}] {message}" if message else f"[{code}]", retry_after=retry_after)  # type: ignore[call-arg]  # the engine's TaskError is next in line
        self.code = code
        self.message = message
        self.details = dict(details or {})


class TransientCommandError(Coded, TransientError):
    """It may work later: try again after the backoff, not before `retry_after` if given."""


class PermanentCommandError(Coded, PermanentError):
    """It can never work as it is: into the troubleshooting queue at once, for a person to look at."""


class BusinessRuleError(Coded, BusinessError):
    """A business rule says no: the command has failed, its sender is told, and nobody has to look."""


class CommandTrouble(NamedTuple):
    """An error as it is kept: what kind, its code, and a message without secrets."""

    type: str
    code: str
    message: str
    details: Any = None


def trouble_of(error: BaseException) -> CommandTrouble:
    """What is kept of an exception that a handler raised."""
    raised = type(error)  # not the exception itself, whose `__class__` may raise
    kind = "BUSINESS_RULE" if issubclass(raised, BusinessError) else "TRANSIENT"
    kind = "PERMANENT" if issubclass(raised, PermanentError) else kind
    if issubclass(raised, Coded):
        with suppress(BaseException):  # properties of a subclass may raise: it is described as any other then
            return _coded(kind, cast("Coded", error))
    code, message = raised.__name__, describe_error(error)
    return CommandTrouble(kind, code[:CODE_CHARS_MAX], "" if message == code else message.removeprefix(f"{code}: "))


def _coded(kind: str, error: Coded) -> CommandTrouble:
    details = redacted(error.details)
    try:
        json_text(details)
    except PayloadError:
        details = None
    return CommandTrouble(kind, _safe(str(error.code))[:CODE_CHARS_MAX], _safe(str(error.message)), details)


@lru_cache(maxsize=512)
def _safe(text: str) -> str:
    """The text without secrets, shortened, as the engine would keep it. When a thousand commands fail they mostly say the same."""
    return describe_error(Exception(text)).removeprefix("Exception: ") if text else ""
