"""Running one claim: call the handler under its lease and turn what happened into a settlement. Nothing is decided here."""

import asyncio
import contextvars
import inspect
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from redrive.core.decide import Settlement, deadline_of, decide, failures_max_of
from redrive.core.durations import format_duration
from redrive.core.effect import Effect, after_probe
from redrive.core.outcome import Cancelled, Done, Failed, Outcome, Released, Snoozed
from redrive.core.payload_types import PayloadType
from redrive.core.task import Claim, Task
from redrive.engine.context import Context
from redrive.engine.effect_entry import EffectEntry
from redrive.engine.handlers import Handler
from redrive.engine.stops import Stops
from redrive.errors import LedgerAwayError, PayloadError, PermanentError
from redrive.ports import Ledger, Transaction

Around = Callable[[str, Claim], AbstractContextManager[Any]]
"""What encloses each call of a handler, such as a span."""


_DONE = Done()
_RETURNED = (Done, Snoozed, Cancelled)


def _was_cancelled() -> bool:
    """Whether somebody cancelled the task that runs this."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


class Ran(NamedTuple):
    """What a run came to. A transactional handler's settlement is written already, or was refused by the fence."""

    settlement: Settlement
    written: bool = False
    lost: bool = False
    perhaps: Settlement | None = None
    """What a commit without an answer may have written instead."""


_NEW: Any = tuple.__new__
"""Makes named tuples of all their values: their own ways are functions of Python's, called for each run."""


def _ran(settlement: Settlement) -> Ran:
    """What the usual run came to: a settlement that is still to be written."""
    return _NEW(Ran, (settlement, False, False, None))  # type: ignore[no-any-return]


class Runner:
    """Runs the claims of one ledger."""

    def __init__(
        self, ledger: Ledger, worker: str, threads: Executor, around: Around | None = None, stops: Stops | None = None
    ) -> None:
        self._ledger = ledger
        self._worker = worker
        self._threads = threads
        self._around = around
        self._stops = stops or Stops()

    async def run(self, claim: Claim, handler: Handler, stopped: Callable[[], bool] = _was_cancelled) -> Ran:
        """Run one claim to its settlement. Never raises for what the handler does.

        `stopped` says whether a cancellation is the caller's own, and passes through. Any other is the handler's doing,
        also one of its own task, and a failure: a handler that cancels itself would otherwise run for ever uncharged.
        """
        started = time.monotonic_ns()
        if handler.effect is not None:
            return Ran(await self._run_with_effect(claim, handler, handler.effect, stopped, started))
        deadline = deadline_of(claim, handler.policy)
        if claim.unreadable is not None:
            outcome: Outcome = Failed(PermanentError(claim.unreadable))
        elif deadline is not None and claim.claimed_at >= deadline:
            outcome = Failed(PermanentError("the deadline has passed, so it was not tried any more"))
        elif handler.transactional:
            return await self._run_in_transaction(claim, handler, stopped, started)
        else:
            outcome = await self._call(claim, handler, None, stopped)
        return _ran(decide(claim, outcome, handler.policy, elapsed=_since(started)))

    async def _run_with_effect(
        self, claim: Claim, handler: Handler, effect: Effect, stopped: Callable[[], bool], started: int
    ) -> Settlement:
        """The same for a handler with an effect: if nobody knows whether it happened, its probe is asked first."""
        marks, probe = self._ledger.effects, handler.probe
        assert marks is not None, "it was refused when it was registered"
        assert probe is not None
        marks.in_use = True
        try:
            mark = (await marks.of([claim.task.id])).get(claim.task.id)
        except (Exception, asyncio.CancelledError):  # nothing was tried, and nobody may end what may be in question
            return decide(claim, Released(), handler.policy, elapsed=_since(started))
        unreadable = None if claim.unreadable is None else Failed(PermanentError(claim.unreadable))
        if mark is not None and mark.is_open:
            try:
                outcome = unreadable or await self._call(claim, probe, None, stopped)
            except asyncio.CancelledError:
                outcome = self._stops.outcome(claim)
            answered = after_probe(claim, mark, outcome, effect, _since(started))
            if isinstance(answered, Settlement):
                return answered
            claim = claim._replace(effect=answered)
        deadline = deadline_of(claim, handler.policy)
        entry, cut = EffectEntry(marks, claim), False
        if unreadable is not None:
            outcome = unreadable
        elif deadline is not None and claim.claimed_at >= deadline:
            outcome = Failed(PermanentError("the deadline has passed, so it was not tried any more"))
        else:
            try:
                outcome = await self._call(claim, handler, None, stopped, entry)
            except asyncio.CancelledError:
                if not entry.entered:
                    raise
                cut, outcome = True, self._stops.outcome(claim)
        settlement = decide(claim, outcome, handler.policy, elapsed=_since(started))
        returned = isinstance(outcome, Cancelled) and not (cut or self._stops.obeyed(claim))
        return entry.conclude(settlement, effect, handler.policy, definite=returned)

    async def _run_in_transaction(
        self, claim: Claim, handler: Handler, stopped: Callable[[], bool], started: int
    ) -> Ran:
        begun = False
        committing: Settlement | None = None
        try:
            async with self._ledger.transaction() as transaction:
                begun = True
                outcome = await self._call(claim, handler, transaction, stopped)
                if isinstance(outcome, Failed):
                    raise _RollBack(outcome)
                settlement = decide(claim, outcome, handler.policy, elapsed=_since(started))
                lost = await self._ledger.settle([settlement], worker=self._worker, within=transaction.connection)
                if lost:
                    raise _Lost
                committing = settlement
        except _RollBack as rolled_back:
            outcome = rolled_back.failed
        except _Lost:
            return Ran(settlement, lost=True)
        except asyncio.CancelledError as error:  # asked for by the handler, and delivered after its end
            if stopped():
                raise
            outcome = Failed(error) if begun else Released()
        except Exception as error:
            # A ledger that is away before the handler was called charges nothing. Otherwise the settlement or the commit
            # failed; if the commit did happen, the fence is gone and the failure is not written.
            outcome = Failed(error) if begun or not isinstance(error, LedgerAwayError) else Released()
        else:
            return Ran(settlement, written=True)
        return Ran(decide(claim, outcome, handler.policy, elapsed=_since(started)), perhaps=committing)

    async def _call(
        self,
        claim: Claim,
        handler: Handler,
        transaction: Transaction | None,
        stopped: Callable[[], bool],
        entry: EffectEntry | None = None,
    ) -> Outcome:
        try:
            if self._around is not None:
                with self._around(self._ledger.name, claim):
                    result = await self._invoke(claim, handler, transaction, entry)
            elif handler.is_plain:  # the common case, spared one coroutine
                result = await handler.function(claim.task)
            else:
                result = await self._invoke(claim, handler, transaction, entry)
        except asyncio.CancelledError as error:
            if stopped():
                raise
            return Failed(error)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # also SystemExit: a handler does not end the worker
            if self._stops.obeyed(claim) and transaction is None:
                return self._stops.outcome(claim)
            # Not by a name: this frame is in the traceback of the error, and the two would hold each other.
            return _NEW(Failed, (error,))  # type: ignore[no-any-return]
        if self._stops.obeyed(claim) and transaction is None:
            return self._stops.outcome(claim)
        if result is None:
            return _DONE
        return result if isinstance(result, _RETURNED) else Done(result)

    async def _invoke(
        self, claim: Claim, handler: Handler, transaction: Transaction | None, entry: EffectEntry | None = None
    ) -> Any:
        arguments: tuple[Any, ...] = (claim.task if handler.payload is None else _typed(claim.task, handler.payload),)
        context = None
        if handler.takes_context:
            context = Context(
                claim=claim, attempts_max=failures_max_of(claim, handler.policy),
                connection=None if transaction is None else transaction.connection,
                ledger=self._ledger, entry=entry, stops=self._stops, loop=asyncio.get_running_loop(),
            )  # fmt: skip
            arguments += (context,)
        try:
            if handler.is_async:
                if handler.timeout is None:
                    return await handler.function(*arguments)
                return await _within_time(handler, arguments, handler.timeout)
            if transaction is not None:
                job = transaction.submit(self._threads, partial(_call_with_connection, handler, arguments))
            else:
                job = self._threads.submit(contextvars.copy_context().run, _call_in_thread, handler.function, arguments)
            result = await _to_its_end(job)
            # An async function behind a plain decorator or a lambda looks plain; unawaited it would pass for done.
            return await result if inspect.isawaitable(result) else result
        finally:
            if context is not None and context.told is not None:
                await context.told.end()


def _typed(task: Task, wanted: PayloadType) -> Task:
    """The task with its payload as its handler wants it. What does not fit now will not fit at the next try either."""
    try:
        return task._replace(payload=wanted.read(task.payload))
    except PayloadError as error:
        raise PermanentError(str(error)) from error


async def _to_its_end(job: "Future[Any]") -> Any:
    """What a thread comes to. Nothing can stop it, so a cancellation is not obeyed before it has ended.

    Whoever gave its claim up would let the task run a second time beside it.
    """
    stopped = False
    while not job.done() or not stopped:
        try:
            result = await asyncio.wrap_future(job)
            break
        except asyncio.CancelledError:
            if job.cancelled():  # it had not begun
                raise
            stopped = True
    else:
        result = job.result()
    if stopped and inspect.iscoroutine(result):  # the rest of it can be stopped
        result.close()
        raise asyncio.CancelledError
    return result


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


def _call_with_connection(handler: Handler, arguments: tuple[Any, ...], connection: Any) -> Any:
    """The same with the transaction's connection, which a plain function gets as a synchronous one."""
    if handler.takes_context:
        arguments[1].connection = connection
    return _call_in_thread(handler.function, arguments)


class _RollBack(Exception):  # noqa: N818 - not an error: the way out of a transaction
    def __init__(self, failed: Failed) -> None:
        self.failed = failed


class _Lost(Exception):  # noqa: N818 - the same, when the claim was lost
    pass


_SHORT = tuple(timedelta(microseconds=one) for one in range(1000))
"""What most handlers that never wait take: to look a span up takes a quarter of what it takes to make it."""


def _since(started_ns: int) -> timedelta:
    ran = (time.monotonic_ns() - started_ns) // 1000
    return _SHORT[ran] if ran < 1000 else timedelta(0, 0, ran)
