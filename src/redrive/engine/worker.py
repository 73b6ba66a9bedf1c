"""The worker: one loop that never waits for the slowest.

Free slots are refilled as soon as some are free, outcomes are settled in groups, leases are extended in groups. A worker
claims only what its free slots can start, so a crash charges only what was really running.
"""

import asyncio
import contextlib
import math
import os
import secrets
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from redrive.core.decide import decide
from redrive.core.durations import SpanField, read_span
from redrive.core.outcome import LeaseExpired, Released
from redrive.core.states import TERMINAL, State
from redrive.core.task import Claim, ClaimLocked, ClaimLost, TaskId
from redrive.engine.announce import announce
from redrive.engine.handlers import Handler, Handlers
from redrive.engine.keeper import Keeper
from redrive.engine.kinds import Kinds
from redrive.engine.patience import Patience
from redrive.engine.run import Around, Runner
from redrive.engine.settler import Settler
from redrive.errors import SettingsError
from redrive.events import AttemptEnded, AttemptStarted, Event, SettleLost
from redrive.ports import Ledger, Observer, Waiter

LOOK_AGAIN = timedelta(milliseconds=20)
"""How soon a worker that was woken looks once more: announcements are rate-limited to half of this."""
SLOT_LINGER_SECONDS = 0.002
"""How long a nearly full worker lets more slots come free before it claims again, so that claims stay batches."""
AHEAD_FROM = 500
"""The smallest batch that is worth a claim of its own while another runs."""
UNWRITTEN_BATCHES_MAX = 4
"""How far the settler may be behind before no more is claimed: what is not written yet is kept in memory."""
CANCEL_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker works; the defaults are sane."""

    concurrency: int = 100
    """How many handlers run at once."""
    lease: SpanField = SpanField(timedelta(seconds=30))
    """How long a claim holds without a sign of life; extended at half time."""
    batch: int = 1000
    """How many tasks are claimed or settled in one statement, at most."""
    grace: SpanField = SpanField(timedelta(seconds=10))
    """How long a stopping worker waits for its handlers before it releases them."""
    poll: SpanField = SpanField(timedelta(seconds=1))
    """The safety net: how long a worker waits for a wake-up before it looks by itself."""
    retention: Mapping[State, timedelta] = field(default_factory=dict)
    """How long ended tasks are kept, by state; a state that is not named here is kept for ever."""
    prune_every: SpanField = SpanField(timedelta(hours=1))
    """How often tasks older than that are deleted."""

    def __post_init__(self) -> None:
        for name, most in (("concurrency", 10_000), ("batch", 5_000)):
            amount = getattr(self, name)
            if isinstance(amount, bool) or not isinstance(amount, int) or not 1 <= amount <= most:
                raise SettingsError(f"{name} must be a whole number from 1 to {most:,}, not {amount!r}")
        for name, least in (("lease", 1), ("poll", 0.01), ("grace", 0), ("prune_every", 1)):
            if getattr(self, name) < timedelta(seconds=least):
                raise SettingsError(f"{name} must be at least {least} s, not {getattr(self, name)}")
        for state in self.retention:
            if state not in TERMINAL:
                raise SettingsError(f"retention is for tasks that have ended, not for {state!r}")
        kept = {state: read_span("retention", span) for state, span in self.retention.items()}
        object.__setattr__(self, "retention", kept)


def worker_name() -> str:
    """A name that no other worker has: host, process and a few random letters."""
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(3)}"


@dataclass(slots=True, eq=False)
class _Held:
    """A claim, and when it was last extended."""

    claim: Claim
    extended_at: float


@dataclass(slots=True, eq=False)
class _Running(_Held):
    """One run; compared by identity, because a lost run and the next one of the same task may overlap."""

    handler: Handler
    task: asyncio.Task[None] | None = None
    lost: bool = False


class Worker:
    """Works off one ledger with its handlers until told to stop."""

    def __init__(
        self,
        ledger: Ledger,
        handlers: Handlers,
        settings: WorkerSettings | None = None,
        *,
        name: str | None = None,
        observers: Iterable[Observer] = (),
        around: Around | None = None,
    ) -> None:
        self.name = name or worker_name()
        self._ledger = ledger
        self._handlers = handlers
        self._settings = settings or WorkerSettings()
        # Half of the slots, so that the next batch can be sent for while one runs.
        self._batch = min(self._settings.batch, max(AHEAD_FROM, self._settings.concurrency // 2))
        self._observers = tuple(observers)
        self._threads = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="redrive-handler")
        self._patience = Patience(ledger.name, self._tell)
        self._kinds = Kinds(ledger, handlers)
        self._runner = Runner(ledger, self.name, self._threads, around)
        self._settler = Settler(
            ledger, self.name, self._patience, self._tell,
            batch=self._batch, observed=bool(self._observers), plan=self._plan_retry,
        )  # fmt: skip
        self._keeper = Keeper(
            ledger, handlers, self._settler, self._patience, self._tell,
            held=self._held, lease=self._settings.lease,
            retention=self._settings.retention, prune_every=self._settings.prune_every,
        )  # fmt: skip
        self._running: set[_Running] = set()
        self._slot_freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._until_idle = False
        self._retry_at = math.inf
        self._napping: asyncio.Timeout | None = None
        self._asking: asyncio.Task[list[Claim]] | None = None
        self.ready = asyncio.Event()
        """Set after the first look for work was answered."""

    @property
    def running(self) -> int:
        """How many handlers run now."""
        return len(self._running)

    def _held(self) -> list[Claim]:
        """All that this worker runs, or has run and not written yet."""
        return [*(one.claim for one in self._running), *self._settler.claims]

    def stop(self) -> None:
        """Ask the worker to stop: no new claims, wait for `grace`, release the rest. `run` then returns."""
        self._stopping.set()

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop` is called, or with `until_idle` until nothing is due any more."""
        self._until_idle = until_idle
        if until_idle:
            await self._keeper.keep_once()  # its own loop may not come round before this run is over
        with self._ledger.waiter() as waiter:
            helpers = [
                asyncio.create_task(self._settler.run(), name="redrive-settle"),
                asyncio.create_task(self._extend_for_ever(), name="redrive-extend"),
                asyncio.create_task(self._keeper.run(), name="redrive-keep"),
            ]
            claiming = asyncio.create_task(self._claim_for_ever(waiter), name="redrive-claim")
            stopping = asyncio.create_task(self._stopping.wait())
            loops = (claiming, stopping, *helpers)
            try:
                await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
                claiming.cancel()
                await asyncio.wait([claiming])
                await self._wind_down()
            finally:
                runs = [one.task for one in self._running if one.task is not None]
                for task in (*loops, *runs):
                    task.cancel()
                ended = await asyncio.gather(*loops, return_exceptions=True)
                self._threads.shutdown(wait=False, cancel_futures=True)
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error  # one of our own loops broke, which must not pass in silence

    # --- claiming ---------------------------------------------------------------------------------------------------

    async def _claim_for_ever(self, waiter: Waiter) -> None:
        tries = 0
        woken = False
        try:
            while True:
                if self._asking is None:
                    free = await self._free_slots()
                    waiter.clear()
                    self._retry_at = math.inf
                asked_at = time.monotonic()
                try:
                    if self._asking is None:
                        self._ask(free, await self._kinds.to_claim())
                    claims = await self._answer()
                    if not claims:
                        self._answered(asked_at)
                        if self._until_idle and await self._is_idle():
                            self.stop()
                        soon = woken or self._until_idle
                        woken = await self._nap(waiter, LOOK_AGAIN if soon else await self._idle_time())
                except Exception as error:  # whatever it is, the ledger may be well again later
                    self._patience.away(error, asked_at=asked_at)
                    tries += 1
                    await self._patience.pause(tries)
                    continue
                tries = 0
                if claims:
                    self._answered(asked_at)
                    self._ask_ahead(len(claims))
                    for claim in claims:
                        self._start(claim)
                    woken = True  # work comes in groups: look once more soon after the last
                    await asyncio.sleep(0)
        finally:
            if self._asking is not None:
                await self._give_back(self._asking)

    async def _nap(self, waiter: Waiter, span: timedelta) -> bool:
        """Wait for a wake-up, but not beyond the next retry that this worker itself has written meanwhile."""
        ends = min(asyncio.get_running_loop().time() + span.total_seconds(), self._retry_at)
        try:
            async with asyncio.timeout_at(ends) as self._napping:
                return await waiter.wait(span)
        except TimeoutError:
            return False
        finally:
            self._napping = None

    def _plan_retry(self, delay: timedelta) -> None:
        """Look again when this retry is due, though it was not there when the nap began."""
        at = asyncio.get_running_loop().time() + delay.total_seconds()
        if at < self._retry_at:
            self._retry_at = at
            nap = self._napping
            if nap is not None and not nap.expired() and ((ends := nap.when()) is None or at < ends):
                nap.reschedule(at)

    def _answered(self, asked_at: float) -> None:
        self._patience.back(asked_at=asked_at)
        self.ready.set()

    def _ask(self, free: int, kinds: list[str]) -> None:
        """Send for as many tasks as free slots can start."""
        limit = min(free, self._batch)
        # A task of its own: a claim whose answer nobody awaits any more would hold its tasks until the lease ends.
        claiming = self._ledger.claim(limit, self._settings.lease, kinds=kinds, held=self._held)
        self._asking = asyncio.create_task(claiming)

    def _ask_ahead(self, amount: int) -> None:
        """Send for the next tasks before these are run, if these filled the batch and there are slots for more.

        The store then looks for the next while this process runs these: half as much again for small handlers. It must
        not wait or raise, since these are claimed and not started yet; kinds that have to be looked up are for the next turn.
        """
        left = self._settings.concurrency - len(self._running) - amount
        behind = self._settler.unwritten > UNWRITTEN_BATCHES_MAX * self._batch
        kinds = self._kinds.known()
        if amount == self._batch and left >= amount and not behind and kinds is not None:
            self._ask(left, kinds)

    async def _answer(self) -> list[Claim]:
        """What was sent for."""
        assert self._asking is not None
        try:
            claims = await asyncio.shield(self._asking)
        except Exception:
            self._asking = None
            raise
        self._asking = None  # not when cancelled: what comes then must be given back
        if not claims:
            self._kinds.forget()
        return claims

    async def _give_back(self, claiming: "asyncio.Future[list[Claim]]") -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CANCEL_PATIENCE_SECONDS):
                for claim in await claiming:
                    handler = self._handlers.find(claim.task.kind)
                    if handler is not None:
                        outcome = Released() if claim.abandoned is None else LeaseExpired()
                        self._settler.put(decide(claim, outcome, handler.policy))

    async def _free_slots(self) -> int:
        """Wait until there are free slots and the settler is not too far behind; how many are free."""
        while True:
            free = self._settings.concurrency - len(self._running)
            behind = self._settler.unwritten > UNWRITTEN_BATCHES_MAX * self._batch
            if free > 0 and not behind:
                if self._running and free < min(self._batch, self._settings.concurrency) // 4:
                    await asyncio.sleep(SLOT_LINGER_SECONDS)
                    free = self._settings.concurrency - len(self._running)
                return free
            self._slot_freed.clear()
            if behind:
                await self._settler.written()
            else:
                await self._slot_freed.wait()

    async def _is_idle(self) -> bool:
        """Whether nothing runs, everything is written and nothing is due; what is due but locked will soon be free."""
        if self._running:
            return False
        await self._settler.flushed()
        next_due = await self._ledger.next_due(kinds=await self._kinds.to_claim())
        return not self._running and (next_due is None or next_due > timedelta(0))

    async def _idle_time(self) -> timedelta:
        """How long there is nothing to do: until the next task is due, at most the poll interval."""
        try:
            next_due = await self._ledger.next_due(kinds=await self._kinds.to_claim())
        except Exception:
            return self._settings.poll
        if next_due is None:
            return self._settings.poll
        # Due, but not to be had: somebody else holds the row for a moment.
        return min(max(next_due, timedelta(milliseconds=1)) if next_due else LOOK_AGAIN, self._settings.poll)

    # --- running ----------------------------------------------------------------------------------------------------

    def _start(self, claim: Claim) -> None:
        handler = self._handlers.find(claim.task.kind)
        assert handler is not None, "a ledger hands out the kinds that it was asked for"
        if claim.abandoned is not None:
            self._settler.put(decide(claim, LeaseExpired(), handler.policy))
            return
        running = _Running(claim, time.monotonic(), handler)
        self._running.add(running)
        if self._observers:
            self._tell([AttemptStarted(self._ledger.name, claim)])
        running.task = asyncio.get_running_loop().create_task(self._run_one(running))

    async def _run_one(self, running: _Running) -> None:
        claim = running.claim
        try:
            ran = await self._runner.run(claim, running.handler)
        except asyncio.CancelledError:
            released = decide(claim, Released(), running.handler.policy)
            if running.lost:
                self._tell([SettleLost(self._ledger.name, released)])
            else:  # stopped before the end
                self._settler.put(released)
        else:
            if ran.written:
                if ran.settlement.delay is not None:
                    self._plan_retry(ran.settlement.delay)
                self._tell([AttemptEnded(self._ledger.name, ran.settlement)])
            elif ran.lost:
                self._tell([SettleLost(self._ledger.name, ran.settlement)])
            else:
                self._settler.put(ran.settlement)
        finally:
            self._running.discard(running)
            self._slot_freed.set()

    async def _extend_for_ever(self) -> None:
        lease = self._settings.lease
        half = lease.total_seconds() / 2
        unwritten: dict[tuple[TaskId, UUID], _Held] = {}
        while True:
            await asyncio.sleep(half / 4)
            now = time.monotonic()
            # What has ended and is still not written when this comes round again is kept alive too.
            keys = {(claim.task.id, claim.claim_id): claim for claim in self._settler.claims}
            unwritten = {key: unwritten.get(key) or _Held(claim, now - half * 0.8) for key, claim in keys.items()}
            held: list[_Held] = [*self._running, *unwritten.values()]
            old = [one for one in held if now - one.extended_at >= half]
            for start in range(0, len(old), self._batch):
                await self._extend(old[start : start + self._batch], lease)

    async def _extend(self, group: Sequence[_Held], lease: timedelta) -> None:
        now = time.monotonic()
        try:
            rest = await self._ledger.extend([one.claim for one in group], lease)
            # A handler's own transaction may have written its settlement just now, and with it taken the fence away.
            lost = [one.claim for one in rest if isinstance(one, ClaimLost)]
            written = await self._ledger.settled_by(lost, self.name)
        except Exception as error:  # tried again soon, well before the lease ends
            self._patience.away(error, asked_at=now)
            return
        self._patience.back(asked_at=now)
        why = {(one.claim.task.id, one.claim.claim_id): one for one in rest}
        for claim in written:
            del why[claim.task.id, claim.claim_id]
        for one in group:
            match why.get((one.claim.task.id, one.claim.claim_id)):
                case ClaimLocked():
                    pass  # not extended and not lost: tried again soon
                case None:
                    one.extended_at = now
                case ClaimLost():
                    one.extended_at = now
                    if isinstance(one, _Running) and one in self._running and one.task is not None:
                        one.lost = True
                        one.task.cancel()

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        tasks = [one.task for one in self._running if one.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settings.grace.total_seconds())
            for task in late:
                task.cancel()
            if late:
                _, stuck = await asyncio.wait(late, timeout=CANCEL_PATIENCE_SECONDS)
                if stuck:
                    self._release_stuck()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._settings.grace.total_seconds(), CANCEL_PATIENCE_SECONDS)):
                await self._settler.flushed()

    def _release_stuck(self) -> None:
        """Handlers that do not end when cancelled: their tasks go back all the same, since this process is ending."""
        for one in list(self._running):
            self._settler.put(decide(one.claim, Released(), one.handler.policy))

    def _tell(self, events: list[Event]) -> None:
        announce(self._observers, events)
