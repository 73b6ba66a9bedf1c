"""The worker: one loop that never waits for the slowest.

Free slots are refilled as soon as some are free, outcomes are settled in groups, leases are extended in groups. A worker
claims only what its free slots can start, so a crash charges only what was really running.
"""

import asyncio
import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from redrive.core.decide import decide
from redrive.core.durations import ZERO
from redrive.core.outcome import LeaseExpired, Released
from redrive.core.stop import Stop
from redrive.core.task import Claim
from redrive.engine.announce import announce
from redrive.engine.asks import Asks
from redrive.engine.gate_looks import LOOK_AGAIN as GATE_LOOK_AGAIN
from redrive.engine.gate_looks import GateLooks
from redrive.engine.handlers import Handlers
from redrive.engine.held import HeldRun
from redrive.engine.keeper import Keeper
from redrive.engine.kinds import Kinds
from redrive.engine.lanes import Lanes
from redrive.engine.leases import Leases
from redrive.engine.nap import Nap
from redrive.engine.patience import Patience
from redrive.engine.pauses import Pauses
from redrive.engine.places import Places
from redrive.engine.reserve import Reserve
from redrive.engine.run import Around, Runner
from redrive.engine.settler import Settler
from redrive.engine.stops import Stops
from redrive.engine.tally import KindTally
from redrive.engine.watchdog import Watchdog
from redrive.engine.worker_settings import WorkerSettings, worker_name
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
        self._nap = Nap()
        self._lanes = Lanes(self._run_one)
        self._settler = Settler(
            ledger, self.name, self._patience, self._tell, batch=self._batch, observed=bool(self._observers),
            plan=self._nap.end_in, tally=self.tally, more_to_come=self._lanes.has_line,
        )  # fmt: skip
        self._keeper = Keeper(
            ledger, handlers, self._settler, self._patience, self._tell,
            held=self._held, lease=self._settings.lease,
            retention=self._settings.retention, prune_every=self._settings.prune_every,
        )  # fmt: skip
        self._running: set[HeldRun] = set()
        self._places = Places(handlers, ledger, sharers)
        self._suspects: deque[HeldRun] = deque()
        self._alone: asyncio.Task[None] | None = None
        self._leases = Leases(
            ledger, self.name, self._running, self._settler, self._patience,
            lease=self._settings.lease, batch=self._batch,
        )  # fmt: skip
        self._slot_freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._until_idle = False
        self._asks = Asks(ledger, self._settings.lease, self._held)
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
                asyncio.create_task(self._leases.run(), name="redrive-extend"),
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
            if not self._asks.under_way:
                free = await self._free_slots(waiter)
                self._heed(waiter)
                self._nap.begin()
            asked_at = time.monotonic()
            try:
                if not self._asks.under_way:
                    if self._asks.unheard:
                        self._asks.send_again()
                    elif free <= 0:
                        await self._ask_for_reserve()
                    else:
                        await self._looks.prepare()
                        self._ask(*self._places.portion(free, await self._kinds.to_claim()))
                recalling, for_reserve = self._asks.unheard, self._asks.for_reserve
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
                    woken = await self._nap.take(waiter, look_again if soon else await self._idle_time(waiter))
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
        self._looks.skip()
        self._asks.send(limit, kinds, busy=busy)

    def _ask(self, free: int, kinds: list[str]) -> None:
        """Send for as many tasks as free slots can start."""
        limit = min(free, self._batch)
        self._asks.send(limit, kinds, gates=self._looks.take(limit))

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
        """What was sent for, and what it tells of where to look next."""
        claims = await self._asks.answer()
        if self._asks.for_reserve:
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
        for claim in await self._asks.end(CANCEL_PATIENCE_SECONDS):
            handler = self._handlers.find(claim.task.kind)
            if handler is not None:
                outcome = Released() if claim.abandoned is None else LeaseExpired()
                self._settler.put(decide(claim, outcome, handler.policy))

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
        running = HeldRun(claim, now, handler)
        self._running.add(running)
        if claim.suspect:
            self._suspects.append(running)
            if self._alone is None:
                self._alone = asyncio.create_task(self._run_suspects(), name="redrive-suspects")
        else:
            self._begin(running)

    def _begin(self, running: HeldRun, *, apart: bool = False) -> None:
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

    async def _run_alone(self, suspect: HeldRun) -> None:
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

    async def _fence_alone(self, suspect: HeldRun) -> "asyncio.Task[Claim | None]":
        """Ask for the fence of a run alone. Until it is answered the claim is not extended: it would pass for lost."""
        if suspect.fencing is None:
            claim = suspect.claim
            await self._leases.leave_out(suspect)
            fence = self._patience.until_answered(lambda: self._ledger.run_alone(claim))
            suspect.fencing = asyncio.create_task(fence)
        return suspect.fencing

    async def _run_one(self, running: HeldRun) -> None:
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
                    self._nap.end_in(ran.settlement.delay)
                if claim.task.gate is not None:
                    self._looks.soon()
                    self._nap.end_in(ZERO)
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
                self._nap.end_in(ZERO)

    def _stop_asked(self, stop: Stop) -> None:
        """Cancel the run that a person wants to end. A thread is told when it looks; what has not begun yet begins and is told."""
        for one in self._running:
            if (one.claim.task.id, one.claim.claim_id) == (stop.task_id, stop.claim_id):
                if self._stops.note(stop) and one.handler.is_async:
                    one.stop()
                return

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
