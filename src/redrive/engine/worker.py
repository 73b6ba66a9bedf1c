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
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from redrive.core.decide import decide
from redrive.core.durations import ZERO, SpanField, format_duration, read_span
from redrive.core.outcome import LeaseExpired, Released
from redrive.core.states import TERMINAL, State
from redrive.core.stop import Stop
from redrive.core.task import Claim, ClaimLocked, ClaimLost, TaskId
from redrive.engine.announce import announce
from redrive.engine.gate_looks import LOOK_AGAIN as GATE_LOOK_AGAIN
from redrive.engine.gate_looks import GateLooks
from redrive.engine.handlers import Handler, Handlers
from redrive.engine.keeper import Keeper
from redrive.engine.kinds import Kinds
from redrive.engine.lanes import Lanes
from redrive.engine.patience import Patience
from redrive.engine.pauses import Pauses
from redrive.engine.places import Places
from redrive.engine.reserve import Reserve
from redrive.engine.run import Around, Runner
from redrive.engine.settler import Settler
from redrive.engine.stops import Stops
from redrive.engine.tally import KindTally
from redrive.engine.watchdog import Watchdog
from redrive.errors import LedgerAwayError, SettingsError
from redrive.events import AttemptEnded, AttemptStarted, Event, LoopBlocked, SettleLost, ThreadsLeft
from redrive.ports import Ledger, Observer, Waiter

LOOK_AGAIN = timedelta(milliseconds=14)
"""How soon a worker that was woken looks once more: announcements are rate-limited to half of this."""
SLOT_LINGER_SECONDS = 0.002
"""How long a nearly full worker lets more slots come free before it claims again, so that claims stay batches."""
AHEAD_FROM = 500
"""The smallest batch that is worth a claim of its own while another runs."""
UNWRITTEN_BATCHES_MAX = 4
"""How far the settler may be behind before no more is claimed: what is not written yet is kept in memory."""
CHANGE_LOOK = timedelta(seconds=0.5)
"""How long a worker naps at most while there are gates or pauses: nobody tells of a pause that ends by itself, and what a person changes holds
within a second though word of it was lost."""
CANCEL_PATIENCE_SECONDS = 2.0
STOP_LOOK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker works; the defaults are sane."""

    concurrency: int = 100
    """How many handlers run at once. Where tasks have tenants a quarter more, for tenants that have less than their share."""
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
                raise SettingsError(f"{name} must be at least {least}s, not {format_duration(getattr(self, name))}")
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
    lost: bool = field(default=False, kw_only=True)


@dataclass(slots=True, eq=False)
class _Running(_Held):
    """One run; compared by identity, because a lost run and the next one of the same task may overlap."""

    handler: Handler
    task: asyncio.Task[None] | None = None
    fencing: asyncio.Task[Claim | None] | None = None
    """The fence of a run alone, asked for. Until it is answered nobody knows which of the two fences the row has."""
    stopped: bool = False
    """Whether the worker itself cancelled it; whatever else cancels a run is the handler's doing."""

    def is_stopped(self) -> bool:
        return self.stopped

    def stop(self) -> None:
        self.stopped = True
        if self.task is not None:
            self.task.cancel()


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
        sharers: int = 1,
    ) -> None:
        """`sharers` is how many workers of this process run transactional handlers on the ledger's database."""
        self.name = name or worker_name()
        self._ledger = ledger
        self._handlers = handlers
        self._settings = settings or WorkerSettings()
        # Half of the slots, so that the next batch can be sent for while one runs.
        self._batch = min(self._settings.batch, max(AHEAD_FROM, self._settings.concurrency // 2))
        self._observers = tuple(observers)
        self._reserve = Reserve(self._settings.concurrency)
        self._threads = ThreadPoolExecutor(
            self._settings.concurrency + self._reserve.size, thread_name_prefix="redrive-handler"
        )
        self._patience = Patience(ledger.name, self._tell)
        self._looks = GateLooks(ledger)
        self._pauses = Pauses(ledger, resumed=self._looks.soon)
        self._kinds = Kinds(ledger, handlers, self._pauses)
        self._stops = Stops()
        self._runner = Runner(ledger, self.name, self._threads, around, self._stops)
        self.tally = KindTally(ledger.name, handlers)
        """What it has counted of each kind, for whoever writes it down."""
        self._lanes = Lanes(self._run_one)
        self._settler = Settler(
            ledger, self.name, self._patience, self._tell, batch=self._batch, observed=bool(self._observers),
            plan=self._plan_retry, tally=self.tally, more_to_come=self._lanes.has_line,
        )  # fmt: skip
        self._keeper = Keeper(
            ledger, handlers, self._settler, self._patience, self._tell,
            held=self._held, lease=self._settings.lease,
            retention=self._settings.retention, prune_every=self._settings.prune_every,
        )  # fmt: skip
        self._running: set[_Running] = set()
        self._places = Places(handlers, ledger, sharers)
        self._suspects: deque[_Running] = deque()
        self._alone: asyncio.Task[None] | None = None
        self._extending = asyncio.Lock()
        self._slot_freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._until_idle = False
        self._retry_at = math.inf
        self._napping: asyncio.Timeout | None = None
        self._asking: asyncio.Task[list[Claim]] | None = None
        self._fence = uuid4()
        self._unheard = False
        self._for_reserve = False
        self._watchdog = Watchdog(self._kinds_of, self._tell_blocked)
        self.ready = asyncio.Event()
        """Set after the first look for work was answered."""

    @property
    def running(self) -> int:
        """How many handlers run now."""
        return len(self._running) - len(self._suspects)

    @property
    def ledger_name(self) -> str:
        """Whose tasks it runs."""
        return self._ledger.name

    @property
    def lease(self) -> timedelta:
        """For how long a task stays its own without being extended."""
        return self._settings.lease

    @property
    def slots(self) -> int:
        """How many handlers may run at once."""
        return self._settings.concurrency

    def holds(self) -> dict[str, int]:
        """How many tasks of each kind it holds now."""
        return dict(Counter(claim.task.kind for claim in self._held()))

    def held_since(self) -> datetime | None:
        """When it claimed the oldest task that it holds now."""
        return min((claim.claimed_at for claim in self._held()), default=None)

    def _held(self) -> list[Claim]:
        """All that this worker runs or will run, or has run and not written yet."""
        return [*(one.claim for one in self._running), *self._settler.claims]

    def stop(self) -> None:
        """Ask the worker to stop: no new claims, wait for `grace`, release the rest. `run` then returns."""
        self._stopping.set()

    async def run(self, *, until_idle: bool = False, then_exit: bool = False) -> None:
        """Work until `stop` is called, or with `until_idle` until nothing is due any more.

        Plain handlers run in threads, which nothing can stop. One that outlives the grace keeps its claim, and `run` returns
        when it has ended; or at once if the process is going to exit then (`then_exit`), and the lease brings it back.
        """
        self._until_idle = until_idle
        if until_idle:
            await self._keeper.keep_once()  # its own loop may not come round before this run is over
        with self._watchdog:
            helpers = [
                asyncio.create_task(self._settler.run(), name="redrive-settle"),
                asyncio.create_task(self._extend_for_ever(), name="redrive-extend"),
                asyncio.create_task(self._keeper.run(), name="redrive-keep"),
                asyncio.create_task(
                    self._stops.watch(self._ledger, lambda: bool(self._running), self._stop_asked), name="redrive-stops"
                ),
            ]
            claiming = asyncio.create_task(self._claim_for_ever(), name="redrive-claim")
            stopping = asyncio.create_task(self._stopping.wait())
            loops = (claiming, stopping, *helpers)
            try:
                await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
                claiming.cancel()
                await asyncio.wait([claiming])
                await self._wind_down(then_exit=then_exit)
            finally:
                self._lanes.give_up()
                for one in self._running:
                    one.stop()
                for loop in (*loops, *([] if self._alone is None else [self._alone])):
                    loop.cancel()
                ended = await asyncio.gather(*loops, return_exceptions=True)
                self._threads.shutdown(wait=False, cancel_futures=True)
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error  # one of our own loops broke, which must not pass in silence

    # --- claiming ---------------------------------------------------------------------------------------------------

    async def _claim_for_ever(self) -> None:
        try:
            # Whoever stops waits no more: where waiting is done at a queue, it would be handed what it gives back itself.
            with self._ledger.waiter() as waiter:
                await self._claim_and_nap(waiter)
        finally:
            await self._give_back()

    async def _claim_and_nap(self, waiter: Waiter) -> None:
        tries = 0
        woken = False
        while True:
            if self._asking is None:
                free = await self._free_slots(waiter)
                self._heed(waiter)
                self._retry_at = math.inf
            asked_at = time.monotonic()
            try:
                if self._asking is None:
                    if self._unheard:
                        self._ask_again()
                    elif free <= 0:
                        await self._ask_for_reserve()
                    else:
                        await self._looks.prepare()
                        self._ask(*self._places.portion(free, await self._kinds.to_claim()))
                recalling, for_reserve = self._unheard, self._for_reserve
                claims = await self._answer()
                if not claims and for_reserve and not recalling:
                    self._answered(asked_at)
                    await self._keeper.discovery.look()
                    continue
                if not claims and (recalling or self._places.others_left()):
                    continue
                if not claims:
                    self._answered(asked_at)
                    if self._until_idle and await self._is_idle():
                        self.stop()
                    if woken and self._looks.in_use and await self._keeper.discovery.look():
                        self._looks.soon()
                        continue
                    soon = woken or self._until_idle
                    look_again = GATE_LOOK_AGAIN if self._looks.lively else LOOK_AGAIN
                    woken = await self._nap(waiter, look_again if soon else await self._idle_time(waiter))
            except Exception as error:  # whatever it is, the ledger may be well again later
                self._patience.away(error, asked_at=asked_at)
                tries += 1
                await self._patience.pause(tries)
                continue
            tries = 0
            if claims:
                self._answered(asked_at)
                self._ask_ahead(claims)
                now = time.monotonic()
                for claim in claims:
                    self._start(claim, now)
                woken = True  # work comes in groups: look once more soon after the last
                await asyncio.sleep(0)

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

    def _heed(self, waiter: Waiter) -> None:
        """Take note of wake-ups since the last look."""
        if waiter.clear():
            self._looks.soon()
            self._reserve.soon()
            self._pauses.woken()
            self._stops.soon()

    async def _ask_for_reserve(self) -> None:
        """Send for tasks of tenants that have less than their share of this worker, though no slot is free."""
        left = self._settings.concurrency + self._reserve.size - len(self._running)
        most, busy = self._reserve.portion(left, (one.claim for one in self._running))
        limit, kinds = self._places.portion(most, await self._kinds.to_claim())
        self._fence, self._for_reserve = uuid4(), True
        self._looks.skip()
        claiming = self._ledger.claim(
            limit, self._settings.lease, kinds=kinds, fence=self._fence, held=self._held, busy=busy
        )
        self._asking = asyncio.create_task(claiming)

    def _ask(self, free: int, kinds: list[str]) -> None:
        """Send for as many tasks as free slots can start."""
        limit, lease = min(free, self._batch), self._settings.lease
        self._fence, self._for_reserve = uuid4(), False
        # A task of its own: a claim whose answer nobody awaits any more would hold its tasks until the lease ends.
        claiming = self._ledger.claim(
            limit, lease, kinds=kinds, fence=self._fence, held=self._held, gates=self._looks.take(limit)
        )
        self._asking = asyncio.create_task(claiming)

    def _ask_again(self) -> None:
        """Send for what a claim may have taken whose answer was lost: it would be held, never run, and charged in the end."""
        self._asking = asyncio.create_task(self._ledger.recall(self._fence, self._settings.lease))

    def _ask_ahead(self, claims: list[Claim]) -> None:
        """Send for the next tasks before these are run, if these filled the batch and there are slots for more.

        The store then looks for the next while this process runs these: half as much again for small handlers. It must
        not wait or raise, since these are claimed and not started yet; kinds that have to be looked up are for the next turn.
        """
        amount = len(claims)
        left = self._settings.concurrency - len(self._running) - amount
        behind = self._settler.unwritten > UNWRITTEN_BATCHES_MAX * self._batch
        kinds = self._kinds.known()
        if amount < self._batch or left < amount or behind or kinds is None or self._places.counted:
            return
        if not any(claim.suspect for claim in claims):  # nothing may come while one of them runs
            self._ask(left, kinds)

    async def _answer(self) -> list[Claim]:
        """What was sent for."""
        asking = self._asking
        assert asking is not None
        try:
            claims = await asyncio.shield(asking)
        except Exception as error:
            self._asking = None
            # Asked until the ledger answers; if it cannot, what was taken comes back by its lease.
            self._unheard = not self._unheard or isinstance(error, LedgerAwayError)
            raise
        self._asking, self._unheard = None, False  # not when cancelled: what comes then must be given back
        if self._for_reserve:
            self._reserve.looked(claims)
        elif self._looks.answered(claims):
            self._reserve.see(claims)
        if self._places.is_half:
            self._looks.again()
        if not claims:
            self._kinds.forget()
        return claims

    async def _give_back(self) -> None:
        """A worker that stops does not keep what it has just sent for, though it may not have heard of it."""
        if self._asking is None and not self._unheard:
            return
        claims = None if self._asking is None else await self._answer_in_time()
        if claims is None:
            self._ask_again()
            claims = await self._answer_in_time()
        for claim in claims or ():
            handler = self._handlers.find(claim.task.kind)
            if handler is not None:
                outcome = Released() if claim.abandoned is None else LeaseExpired()
                self._settler.put(decide(claim, outcome, handler.policy))

    async def _answer_in_time(self) -> list[Claim] | None:
        """What was sent for, if the answer comes before this process must end."""
        asking = self._asking
        assert asking is not None
        await asyncio.wait([asking], timeout=CANCEL_PATIENCE_SECONDS)
        if asking.done() and not asking.cancelled() and asking.exception() is None:
            return asking.result()
        asking.cancel()
        return None

    async def _free_slots(self, waiter: Waiter) -> int:
        """Wait until there are free slots, no suspects, and the settler is not too far behind; how many are free.

        None if it is time to look for who may use the reserve.
        """
        while True:
            if self._alone is not None:
                await asyncio.wait([self._alone])
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
            elif not self._reserve.in_use or free <= -self._reserve.size:
                await self._slot_freed.wait()
            elif (span := self._reserve.wait_seconds) > 0:
                await self._wait_full(waiter, span)
            else:
                return 0

    async def _wait_full(self, waiter: Waiter, span: float) -> None:
        """Wait for a slot or a wake-up, at most so long."""
        waits = [
            asyncio.create_task(self._slot_freed.wait()),
            asyncio.create_task(waiter.wait(timedelta(seconds=span))),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        self._heed(waiter)

    async def _is_idle(self) -> bool:
        """Whether nothing runs, everything is written and nothing is due; what is due but locked will soon be free."""
        if self._running:
            return False
        await self._settler.flushed()
        if await self._ledger.uses_gates(anew=True):
            await self._ledger.discover()
        next_due = await self._ledger.next_due(kinds=await self._kinds.to_claim())
        if next_due is not None:
            self._looks.told(next_due)
        return not self._running and (next_due is None or next_due > timedelta(0))

    async def _idle_time(self, waiter: Waiter) -> timedelta:
        """How long there is nothing to do: until the next task is due, at most the poll interval."""
        poll = self._settings.poll
        if self._pauses.any or self._looks.in_use:
            poll = min(poll, CHANGE_LOOK)
        if waiter.hears_due:
            return poll
        try:
            kinds = self._places.startable(await self._kinds.to_claim())
            next_due = await self._ledger.next_due(kinds=kinds) if kinds else None
        except Exception:
            return poll
        if next_due is None:
            return poll
        self._looks.told(next_due)
        # Due, but not to be had: somebody else holds the row for a moment.
        return min(max(next_due, timedelta(milliseconds=1)) if next_due else LOOK_AGAIN, poll)

    # --- running ----------------------------------------------------------------------------------------------------

    def _start(self, claim: Claim, now: float) -> None:
        handler = self._handlers.find(claim.task.kind)
        assert handler is not None, "a ledger hands out the kinds that it was asked for"
        if claim.abandoned is not None:
            self._settler.put(decide(claim, LeaseExpired(), handler.policy))
            return
        running = _Running(claim, now, handler)
        self._running.add(running)
        if claim.suspect:
            self._suspects.append(running)
            if self._alone is None:
                self._alone = asyncio.create_task(self._run_suspects(), name="redrive-suspects")
        else:
            self._begin(running)

    def _begin(self, running: _Running, *, apart: bool = False) -> None:
        handler = running.handler
        if self._observers:
            self._tell([AttemptStarted(self._ledger.name, running.claim)])
        if handler.transactional:
            self._places.take()
        if apart or handler.transactional or not handler.is_async:  # those always wait
            self._lanes.start_apart(running)
        else:
            self._lanes.start(running, handler.kind)

    async def _run_suspects(self) -> None:
        """Run tasks whose last run was lost with its worker: one after the other, each when nothing else runs here.

        Until then nothing new is claimed. One that kills this process too is the culprit, and takes nobody with it: those
        behind it in the line are held under the fence that they were claimed with, which charges nothing.
        """
        try:
            while self._suspects:
                while self.running:
                    self._slot_freed.clear()
                    await self._slot_freed.wait()
                if self._suspects:
                    await self._run_alone(self._suspects.popleft())
        finally:
            self._alone = None

    async def _run_alone(self, suspect: _Running) -> None:
        if not suspect.lost:
            fencing = await self._fence_alone(suspect)
            while not fencing.done() and not self._stopping.is_set():
                # However long, also behind a locked row: no other may run while this one may have the fence of a run alone.
                await asyncio.wait([fencing], timeout=STOP_LOOK_SECONDS)
            if not fencing.done():
                fencing.cancel()
            elif fencing.exception() is None:  # else it runs all the same: to be lost uncharged is the smaller evil
                alone = fencing.result()
                suspect.lost, suspect.claim = alone is None, alone or suspect.claim
            suspect.extended_at = -math.inf  # with the next round
        if not suspect.lost and not self._stopping.is_set():
            self._begin(suspect, apart=True)
            assert suspect.task is not None
            await asyncio.wait([suspect.task])
            return
        self._running.discard(suspect)
        released = decide(suspect.claim, Released(), suspect.handler.policy)
        if suspect.lost:
            self._tell([SettleLost(self._ledger.name, released)])
        else:
            self._settler.put(released)

    async def _fence_alone(self, suspect: _Running) -> "asyncio.Task[Claim | None]":
        """Ask for the fence of a run alone. Until it is answered the claim is not extended: it would pass for lost."""
        if suspect.fencing is None:
            claim = suspect.claim
            async with self._extending:
                suspect.extended_at = math.inf
            fence = self._patience.until_answered(lambda: self._ledger.run_alone(claim))
            suspect.fencing = asyncio.create_task(fence)
        return suspect.fencing

    async def _run_one(self, running: _Running) -> None:
        claim, began = running.claim, time.monotonic_ns()
        try:
            if running.stopped:  # before it began
                raise asyncio.CancelledError
            ran = await self._runner.run(claim, running.handler, running.is_stopped)
        except asyncio.CancelledError:
            ran_for = timedelta(microseconds=(time.monotonic_ns() - began) // 1000)
            released = decide(claim, self._stops.outcome(claim), running.handler.policy, elapsed=ran_for)
            if running.lost:
                self._tell([SettleLost(self._ledger.name, released)])
            else:  # stopped before the end
                self._settler.put(released)
        else:
            if ran.written:
                if ran.settlement.delay is not None:
                    self._plan_retry(ran.settlement.delay)
                if claim.task.gate is not None:
                    self._looks.soon()
                    self._plan_retry(ZERO)
                self.tally.add([ran.settlement])
                self._tell([AttemptEnded(self._ledger.name, ran.settlement)])
            elif ran.lost:
                self._tell([SettleLost(self._ledger.name, ran.settlement)])
            else:
                self._settler.put(ran.settlement, perhaps=ran.perhaps)
        finally:
            self._running.discard(running)
            self._stops.forget(claim)
            self._slot_freed.set()
            if running.handler.transactional and self._places.give_back():
                self._plan_retry(ZERO)

    def _stop_asked(self, stop: Stop) -> None:
        """Cancel the run that a person wants to end. A thread is told when it looks; what has not begun yet begins and is told."""
        for one in self._running:
            if (one.claim.task.id, one.claim.claim_id) == (stop.task_id, stop.claim_id):
                if self._stops.note(stop) and one.handler.is_async:
                    one.stop()
                return

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
            async with self._extending:
                old = [one for one in held if now - one.extended_at >= half and not one.lost]
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
                    if isinstance(one, _Running) and one in self._running:
                        one.lost = True
                        one.stop()

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def _wind_down(self, *, then_exit: bool) -> None:
        self._stopping.set()
        for suspect in self._suspects:
            self._running.discard(suspect)
            self._settler.put(decide(suspect.claim, Released(), suspect.handler.policy))
        self._suspects.clear()
        for one in self._lanes.give_up():
            self._running.discard(one)
            self._settler.put(decide(one.claim, Released(), one.handler.policy))
        tasks = [one.task for one in self._running if one.task is not None]
        if self._alone is not None:
            tasks.append(self._alone)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settings.grace.total_seconds())
            for one in self._running:
                one.stop()
            if late and (stoppable := [one.task for one in self._running if one.task and one.handler.is_async]):
                _, stuck = await asyncio.wait(stoppable, timeout=CANCEL_PATIENCE_SECONDS)
                if stuck:
                    self._release_stuck()
            if late:
                await self._let_threads_end(then_exit=then_exit)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._settings.grace.total_seconds(), CANCEL_PATIENCE_SECONDS)):
                await self._settler.flushed()

    def _release_stuck(self) -> None:
        """Handlers that do not end when cancelled: their tasks go back all the same, since this process is ending."""
        for one in self._running:
            if one.handler.is_async:
                self._settler.put(decide(one.claim, Released(), one.handler.policy))

    async def _let_threads_end(self, *, then_exit: bool) -> None:
        """A task is not given back while its thread goes on: it would be run a second time beside itself."""
        await asyncio.sleep(0)  # what had not begun ends here
        left = [one for one in self._running if one.task is not None and not one.handler.is_async]
        if left:
            kinds = tuple(sorted({one.claim.task.kind for one in left}))
            self._tell([ThreadsLeft(self._ledger.name, kinds, len(left))])
            if not then_exit:
                await asyncio.wait([one.task for one in left if one.task is not None])

    # --- telling ----------------------------------------------------------------------------------------------------

    def _kinds_of(self, task: "asyncio.Task[None] | None") -> tuple[str, ...]:
        """The kind that a task of the loop runs, or all that run here, of which one may have started it. Thread-safe."""
        runs = [one for one in tuple(self._running) if one.task is not None]
        return tuple(sorted({one.claim.task.kind for one in [one for one in runs if one.task is task] or runs}))

    def _tell_blocked(self, kinds: tuple[str, ...], span: timedelta) -> None:
        self._tell([LoopBlocked(self._ledger.name, kinds, span)])

    def _tell(self, events: list[Event]) -> None:
        announce(self._observers, events)
