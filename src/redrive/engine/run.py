"""Running one claim: call the handler under its lease and turn what happened into a settlement. Nothing is decided here."""

import asyncio
import contextvars
import inspect
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from redrive.core.decide import Settlement, deadline_of, decide, failures_max_of
from redrive.core.durations import format_duration
from redrive.core.outcome import Cancelled, Done, Failed, Outcome, Released, Snoozed
from redrive.core.task import Claim
from redrive.engine.handlers import Context, Handler
from redrive.errors import LedgerAwayError, PermanentError
from redrive.ports import Ledger

Around = Callable[[str, Claim], AbstractContextManager[Any]]
"""What encloses each call of a handler, such as a span."""


_DONE = Done()
_RETURNED = (Done, Snoozed, Cancelled)


class Ran(NamedTuple):
    """What a run came to. A transactional handler's settlement is written already, or was refused by the fence."""

    settlement: Settlement
    written: bool = False
    lost: bool = False


class Runner:
    """Runs the claims of one ledger."""

    def __init__(self, ledger: Ledger, worker: str, threads: Executor, around: Around | None = None) -> None:
        self._ledger = ledger
        self._worker = worker
        self._threads = threads
        self._around = around

    async def run(self, claim: Claim, handler: Handler) -> Ran:
        """Run one claim to its settlement. Never raises for what the handler does."""
        started = time.monotonic_ns()
        deadline = deadline_of(claim, handler.policy)
        if claim.unreadable is not None:
            outcome: Outcome = Failed(PermanentError(claim.unreadable))
        elif deadline is not None and claim.claimed_at >= deadline:
            outcome = Failed(PermanentError("the deadline has passed, so it was not tried any more"))
        elif handler.transactional:
            return await self._run_in_transaction(claim, handler, started)
        else:
            outcome = await self._call(claim, handler, None)
        return Ran(decide(claim, outcome, handler.policy, elapsed=_since(started)))

    async def _run_in_transaction(self, claim: Claim, handler: Handler, started: int) -> Ran:
        begun = False
        try:
            async with self._ledger.transaction() as transaction:
                begun = True
                outcome = await self._call(claim, handler, transaction.connection)
                if isinstance(outcome, Failed):
                    raise _RollBack(outcome)
                settlement = decide(claim, outcome, handler.policy, elapsed=_since(started))
                lost = await self._ledger.settle([settlement], worker=self._worker, within=transaction.connection)
                if lost:
                    raise _Lost
        except _RollBack as rolled_back:
            outcome = rolled_back.failed
        except _Lost:
            return Ran(settlement, lost=True)
        except Exception as error:
            # A ledger that is away before the handler was called charges nothing. Otherwise the settlement or the commit
            # failed; if the commit did happen, the fence is gone and the failure will not be written.
            outcome = Failed(error) if begun or not isinstance(error, LedgerAwayError) else Released()
        else:
            return Ran(settlement, written=True)
        return Ran(decide(claim, outcome, handler.policy, elapsed=_since(started)))

    async def _call(self, claim: Claim, handler: Handler, connection: Any) -> Outcome:
        try:
            if self._around is not None:
                with self._around(self._ledger.name, claim):
                    result = await self._invoke(claim, handler, connection)
            elif handler.is_plain:  # the common case, spared one coroutine
                result = await handler.function(claim.task)
            else:
                result = await self._invoke(claim, handler, connection)
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise  # the worker wants this run to end
            return Failed(error)  # something inside the handler was cancelled, not the handler
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # also SystemExit: a handler does not end the worker
            return Failed(error)
        if result is None:
            return _DONE
        return result if isinstance(result, _RETURNED) else Done(result)

    async def _invoke(self, claim: Claim, handler: Handler, connection: Any) -> Any:
        arguments: tuple[Any, ...] = (claim.task,)
        if handler.takes_context:
            arguments += (
                Context(claim=claim, attempts_max=failures_max_of(claim, handler.policy), connection=connection),
            )
        if handler.is_async:
            if handler.timeout is None:
                return await handler.function(*arguments)
            return await _within_time(handler, arguments, handler.timeout)
        if connection is not None:
            result = await _run_sync_in_transaction(handler, arguments, connection)
        else:
            inside = contextvars.copy_context()
            call = partial(inside.run, _call_in_thread, handler.function, arguments)
            result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        # An async function behind a plain decorator or a lambda looks plain; unawaited it would pass for done.
        return await result if inspect.isawaitable(result) else result


async def _within_time(handler: Handler, arguments: tuple[Any, ...], span: timedelta) -> Any:
    try:
        async with asyncio.timeout(span.total_seconds()) as limit:
            return await handler.function(*arguments)
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"the handler took longer than its timeout of {format_duration(span)}") from error
        raise


def _call_in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except StopIteration as error:
        # A future refuses this one exception, and whoever awaits it would wait for ever.
        raise RuntimeError("the handler raised StopIteration") from error


async def _run_sync_in_transaction(handler: Handler, arguments: tuple[Any, ...], connection: Any) -> Any:
    """A plain function with the transaction's synchronous connection; its database calls do not block the loop."""

    def call(sync_connection: Any) -> Any:
        if handler.takes_context:
            arguments[1].connection = sync_connection
        return handler.function(*arguments)

    return await connection.run_sync(call)


class _RollBack(Exception):  # noqa: N818 - not an error: the way out of a transaction
    def __init__(self, failed: Failed) -> None:
        self.failed = failed


class _Lost(Exception):  # noqa: N818 - the same, when the claim was lost
    pass


def _since(started_ns: int) -> timedelta:
    return timedelta(0, 0, (time.monotonic_ns() - started_ns) // 1000)
