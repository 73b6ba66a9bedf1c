"""Calling a handler: a task becomes a command with its context, and what the handler says becomes an outcome.

A result travels as JSON text in `Done`, a rule that says no as `Cancelled` with its error, any other error as it was raised.
`beside.py` writes what becomes of them.
"""

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy.util import await_only

from redrive import BusinessError, Cancelled, Context, Snoozed, Task
from redrive.errors import PayloadError, UsageError
from redrive.events import Claim
from redrive.queues import ClaimLost, SqlLedger
from redrive.systems.commands.errors import PermanentCommandError, trouble_of
from redrive.systems.commands.registry import Registration
from redrive.systems.commands.values import Command, json_text


class Keeping:
    """How a handler keeps its command longer than the worker's timeout."""

    def __init__(self, ledger: SqlLedger, *, one_writer: bool) -> None:
        self._ledger = ledger
        self._one_writer = one_writer
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of the running worker, for handlers in threads."""

    async def extend(self, claim: Claim, span: timedelta, *, in_transaction: bool) -> bool:
        """Keep it for so long from now; False if it was lost."""
        if in_transaction and self._one_writer:
            return True  # its open transaction holds the only lock there is: nobody can take the command away
        return not any(isinstance(one, ClaimLost) for one in await self._ledger.extend([claim], span))


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
        in_transaction, loop = self.connection is not None, self._keeping.loop
        if self._sync and not in_transaction and loop is None:
            raise UsageError("a plain function can extend its command only while a worker runs it")
        asked = self._keeping.extend(self._context.claim, timedelta(seconds=seconds), in_transaction=in_transaction)
        if not self._sync:
            return asked
        if in_transaction:  # a plain function on the event loop's own thread
            return await_only(asked)
        assert loop is not None
        return asyncio.run_coroutine_threadsafe(asked, loop).result()


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
                return _answer(await function(*arguments(task, context)))
            async with context.connection.begin_nested():  # what a refused command wrote is taken back
                result = await function(*arguments(task, context))
            return _answer(result, transactional=True)
        except BusinessError as error:
            return _refused(error)

    def call_plain(task: Task, context: Context) -> Any:
        try:
            if context.connection is None:
                return _answer(function(*arguments(task, context)))
            with context.connection.begin_nested():
                result = function(*arguments(task, context))
            return _answer(result, transactional=True)
        except BusinessError as error:
            return _refused(error)

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


def _answer(result: Any, *, transactional: bool = False) -> Snoozed | str | None:
    """The result as the JSON text of the reply; `Snoozed` is passed on."""
    if result is None or isinstance(result, Snoozed):
        return result
    try:
        return json_text(result)
    except PayloadError as error:
        # It was done and cannot be done again: a person decides what to reply. In a transaction all of it is taken back.
        said = "its result cannot be sent, so what it wrote was taken back"
        said = said if transactional else "it was handled, but its result cannot be sent"
        raise PermanentCommandError("RESULT_NOT_JSON", f"{said}: {error}") from error


def _refused(error: BusinessError) -> Cancelled:
    """A rule that says no ends the command; about any other error the engine decides."""
    trouble = trouble_of(error)
    return Cancelled(f"{trouble.code}: {trouble.message}", result=error)


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
