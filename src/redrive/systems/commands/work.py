"""Calling a handler: a task becomes a command with its context, and what comes of it travels back with the claim.

The engine asks a handler only whether it failed. The bus must know more in the end: the result, or the code and the details of
the error. The handler's answer is therefore put into the payload of its claim, which is this claim's alone, and read when the
claim is settled (`records.py`).
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy.util import await_only

from redrive import BusinessError, Cancelled, Context, PermanentError, Snoozed, Task
from redrive.errors import PayloadError, UsageError
from redrive.extend import Claim, describe_error
from redrive.operator.json_views import redacted
from redrive.systems.commands.errors import Coded, PermanentCommandError
from redrive.systems.commands.registry import Registration
from redrive.systems.commands.values import Command, json_text

ANSWER = "answer"
"""Where in the payload a handler's answer is."""
CODE_CHARS_MAX = 200


class Keeping:
    """How a handler keeps its command longer than the worker's timeout."""

    def __init__(self, extend: Callable[[Claim, timedelta], Coroutine[Any, Any, bool]]) -> None:
        self.extend = extend
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of the running worker, for handlers in threads."""


class Trouble(NamedTuple):
    """An error as it is kept: what kind, its code, and a message without secrets."""

    type: str
    code: str
    message: str
    details: Any = None


class CommandContext:
    """What a handler may ask about its attempt."""

    __slots__ = ("_context", "_keeping", "_sync")

    def __init__(self, context: Context, keeping: Keeping, *, sync: bool) -> None:
        self._context = context
        self._keeping = keeping
        self._sync = sync

    @property
    def attempt(self) -> int:
        """Which try this is, counted from one since the command was sent or an operator sent it again."""
        return self._context.attempt

    @property
    def max_attempts(self) -> int:
        """How many tries the command has in all."""
        return self._context.attempts_max

    @property
    def connection(self) -> Any:
        """For transactional handlers: the open transaction, which commits together with the end of the command."""
        return self._context.connection

    def extend(self, seconds: float) -> Any:
        """Keep the command for so many seconds from now; True unless it was lost. In async handlers await it.

        The worker extends by itself while it is alive. This is for work during which it cannot, such as a long computation
        that lets nothing else run.
        """
        asked = self._extend(timedelta(seconds=seconds))
        if not self._sync:
            return asked
        if self.connection is not None:  # a plain function on the event loop's own thread
            return await_only(asked)
        if self._keeping.loop is None:
            asked.close()
            raise UsageError("a plain function can extend its command only while a worker runs it")
        return asyncio.run_coroutine_threadsafe(asked, self._keeping.loop).result()

    async def _extend(self, span: timedelta) -> bool:
        if self.connection is not None and self.connection.dialect.name == "sqlite":
            return True  # its open transaction holds the only lock there is: nobody can take the command away
        return await self._keeping.extend(self._context.claim, span)


def engine_handler(registration: Registration, keeping: Keeping) -> Callable[[Task, Context], Any]:
    """The function that the engine calls for a registered handler: async where that one is."""
    function = registration.function
    alone = _takes_command_alone(function)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def arguments(task: Task, context: Context) -> tuple[Any, ...]:
        command = command_of(task)
        return (command,) if alone else (command, CommandContext(context, keeping, sync=not is_async))

    async def call(task: Task, context: Context) -> Any:
        try:
            if context.connection is None:
                return _answered(task, await function(*arguments(task, context)))
            async with context.connection.begin_nested():  # what a refused command wrote is taken back
                result = await function(*arguments(task, context))
            return _answered(task, result, transactional=True)
        except Exception as error:
            task.payload[ANSWER] = trouble_of(error)
            if isinstance(error, BusinessError):
                return _refused(task)
            raise

    def call_plain(task: Task, context: Context) -> Any:
        try:
            if context.connection is None:
                return _answered(task, function(*arguments(task, context)))
            with context.connection.begin_nested():
                result = function(*arguments(task, context))
            return _answered(task, result, transactional=True)
        except Exception as error:
            task.payload[ANSWER] = trouble_of(error)
            if isinstance(error, BusinessError):
                return _refused(task)
            raise

    return call if is_async else call_plain


def command_of(task: Task) -> Command:
    """The command that a task stands for."""
    row = task.payload
    return Command(
        domain=row["domain"],
        command_type=row["command_type"],
        command_id=row["command_id"],
        data=row["data"],
        correlation_id=row["correlation_id"],
        reply_to=row["reply_queue"],
        batch_id=row["batch_id"],
        created_at=task.created_at,
    )


def _answered(task: Task, result: Any, *, transactional: bool = False) -> Any:
    if isinstance(result, Snoozed):
        return result
    try:
        task.payload[ANSWER] = "null" if result is None else json_text(result)
    except PayloadError as error:
        # It was done and cannot be done again: a person decides what to reply. In a transaction all of it is taken back.
        said = "its result cannot be sent, so what it wrote was taken back"
        said = said if transactional else "it was handled, but its result cannot be sent"
        raise PermanentCommandError("RESULT_NOT_JSON", f"{said}: {error}") from error
    return None


def _refused(task: Task) -> Cancelled:
    """A rule that says no ends the command; what to do about any other error is the engine's to decide."""
    trouble = task.payload[ANSWER]
    return Cancelled(f"{trouble.code}: {trouble.message}")


def trouble_of(error: BaseException) -> Trouble:
    """What is kept of an error."""
    kind = "BUSINESS_RULE" if isinstance(error, BusinessError) else "TRANSIENT"
    kind = "PERMANENT" if isinstance(error, PermanentError) else kind
    if not isinstance(error, Coded):
        code, message = type(error).__name__, describe_error(error)
        return Trouble(kind, code[:CODE_CHARS_MAX], "" if message == code else message.removeprefix(f"{code}: "))
    details = redacted(error.details)
    try:
        json_text(details)
    except PayloadError:
        details = None
    return Trouble(kind, _safe(str(error.code))[:CODE_CHARS_MAX], _safe(str(error.message)), details)


def _safe(text: str) -> str:
    """The text without secrets, shortened, as the engine would keep it."""
    return describe_error(Exception(text)).removeprefix("Exception: ") if text else ""


def _takes_command_alone(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = [one for one in places if one.default is one.empty]
    named = [one for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    several = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if len(required) > 2 or named or not (places or several):
        raise UsageError(f"a handler must take (command) or (command, context), not {inspect.signature(function)}")
    return len(required) < 2 and not several
