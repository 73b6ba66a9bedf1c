"""For your tests: a clock that you move, a drain that runs until nothing waits, and assertions that explain themselves.

    >>> import asyncio
    >>> from redrive import Fixed, Policy, Redrive, hours
    >>> async def test_invoice_is_given_up():
    ...     clock = VirtualClock()
    ...     async with Redrive(temporary_url(), clock=clock) as app:
    ...
    ...         @app.handler("send_invoice", policy=Policy(Fixed(hours(1)), retries=2))
    ...         async def send_invoice(task):
    ...             raise ConnectionError("mail server down")
    ...
    ...         await app.add("send_invoice", key="invoice-7")
    ...         drained = await drain(app, clock=clock)     # run, retry, move the clock, until nothing waits
    ...         await assert_dead(app, "invoice-7", error="mail server down", verdict="exhausted")
    ...         return drained.of("invoice-7")
    >>> asyncio.run(test_invoice_is_given_up())
    ['failed', 'failed', 'failed']

Time moves only when you move it, so a retry after an hour costs no second. Everything works on PostgreSQL too.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from redrive.app import Redrive
from redrive.core.decide import Settlement, decide
from redrive.core.durations import Span, format_duration, read_span
from redrive.core.outcome import LeaseExpired
from redrive.core.states import State
from redrive.core.task import Attempt, Claim, Task
from redrive.engine.keeper import Keeper
from redrive.engine.kinds import Kinds
from redrive.engine.patience import Patience
from redrive.engine.pauses import Pauses
from redrive.engine.run import Runner
from redrive.engine.settler import Settler
from redrive.errors import HandlerError, UsageError
from redrive.events import AttemptEnded, AttemptStarted, Event, SettleFailed, SettleLost
from redrive.lane import Lane
from redrive.observe.traces import span_around
from redrive.operator.ports import OperatorLedger
from redrive.ports import Filter

LEASE = timedelta(minutes=5)
"""How long a drain holds the one task that it runs."""
TICK = timedelta(milliseconds=1)
"""The clock moves at least this far: ISO text in a table of yours is compared to the millisecond."""
LOOKS_MAX = 100


def _span(name: str, span: Span) -> timedelta:
    """As everywhere; but time that is moved may be long, and go backwards."""
    return span if isinstance(span, timedelta) else read_span(name, span)


class VirtualClock:
    """A clock that stands still until it is moved. It is what a ledger believes, also on PostgreSQL."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        if start.tzinfo is None:
            raise UsageError("a virtual clock must start with a time zone, such as datetime(2030, 1, 1, tzinfo=UTC)")
        self._now = start

    def now(self) -> datetime:
        """The instant at which the clock stands."""
        return self._now

    def advance(self, span: Span) -> datetime:
        """Move the clock; a timedelta may be negative, as clocks sometimes go backwards."""
        self._now += _span("span", span)
        return self._now


def temporary_url() -> str:
    """A SQLite file in a new folder of the system's temporary one."""
    return f"sqlite:///{Path(tempfile.mkdtemp(prefix='redrive-')) / 'test.db'}"


# --- draining ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did: every settlement that it wrote, in order."""

    settlements: list[Settlement] = field(default_factory=list)

    @property
    def outcomes(self) -> Counter[str]:
        """How many attempts came to what: `done`, `failed`, `snoozed`, `cancelled`, `lease_expired`."""
        return Counter(one.outcome for one in self.settlements)

    def of(self, key: str) -> list[str]:
        """The outcomes of one task, in order."""
        return [one.outcome for one in self.settlements if one.claim.task.key == key]


async def drain(
    app: Redrive,
    *,
    clock: VirtualClock | None = None,
    until: datetime | Span | None = None,
    tasks_max: int = 10_000,
) -> Drained:
    """Run every task that is due, one after the other, in all lanes with handlers; settle leases that ran out.

    With the app's clock it then moves the clock to the next due time, or to the end of a lease, and goes on until nothing
    waits, or until `until` (an instant, or a span from now), where it leaves the clock. Without a clock it ends when
    nothing is due any more. Tasks whose kind has no handler stay waiting. More than `tasks_max` attempts, such as those
    of a handler that snoozes for ever, are an `AssertionError`.
    """
    if until is not None and clock is None:
        raise UsageError("until is a time of the virtual clock: pass clock= too")
    if clock is not None and app.store.now() != clock.now():
        raise UsageError("clock is not the application's: make it with Redrive(url, clock=clock)")
    await app.open()
    drained = Drained()
    with ThreadPoolExecutor(1, thread_name_prefix="redrive-drain") as threads:
        handled = [lane for lane in app.lanes.values() if len(lane.handlers)]
        if not handled:
            raise HandlerError("the application has no handlers: register one with @app.handler('kind')")
        lanes = [_LaneDrain(lane, await lane.ledger(), threads, drained) for lane in handled]
        if clock is None:
            await _run_due(lanes, tasks_max)
        else:
            ends = until if until is None or isinstance(until, datetime) else clock.now() + _span("until", until)
            await _run_all(lanes, tasks_max, clock, ends)
    return drained


async def _run_due(lanes: "list[_LaneDrain]", tasks_max: int) -> None:
    """Run until nothing is due; one lane may give work to another."""
    while sum([await lane.run_due(tasks_max) for lane in lanes]):
        pass


async def _run_all(lanes: "list[_LaneDrain]", tasks_max: int, clock: VirtualClock, end: datetime | None) -> None:
    """Run until nothing waits, or to the end, with the clock always at the next thing to do."""
    looks = 0
    while looks < LOOKS_MAX:
        await _run_due(lanes, tasks_max)
        waits = [wait for lane in lanes if (wait := await lane.next_wait()) is not None]
        if not waits or (end is not None and clock.now() + min(waits) > end):
            if end is not None and clock.now() < end:
                clock.advance(end - clock.now())
            return
        looks = 0 if min(waits) else looks + 1
        clock.advance(max(min(waits), TICK) if min(waits) else timedelta(0))
    raise AssertionError(f"tasks are due but cannot be claimed, after {LOOKS_MAX} looks: does somebody lock them?")


class _LaneDrain:
    """The worker of one lane, without its loops: the real runner, settler and keeper, one task at a time."""

    def __init__(self, lane: Lane, ledger: OperatorLedger, threads: Executor, drained: Drained) -> None:
        self._lane = lane
        self._ledger = ledger
        self._drained = drained
        patience = Patience(ledger.name, self._tell)
        self._pauses = Pauses(ledger)
        self._kinds = Kinds(ledger, lane.handlers, self._pauses)
        self._runner = Runner(ledger, "drain", threads, span_around())
        self._settler = Settler(ledger, "drain", patience, self._tell, batch=1)
        self._keeper = Keeper(ledger, lane.handlers, self._settler, patience, self._tell)

    async def run_due(self, tasks_max: int) -> int:
        """Run all that is due now; how many there were."""
        ran = await self._keeper.settle_expired()
        if await self._ledger.uses_gates(anew=True):
            await self._ledger.discover()
            await self._ledger.keep_gates(recount=False)
        for kind in await self._known_kinds():
            while claims := await self._ledger.claim(1, LEASE, kinds=[kind]):
                for claim in claims:
                    if len(self._drained.settlements) >= tasks_max:
                        raise AssertionError(
                            f"{tasks_max:,} attempts were run and {claim.task.key!r} is still due: "
                            "does a handler snooze or fail for ever? Raise tasks_max= or stop with until="
                        )
                    await self._run(claim)
                    ran += 1
        return ran

    async def _known_kinds(self) -> list[str]:
        self._kinds.forget()
        await self._pauses.look()
        return await self._kinds.to_claim()

    async def _run(self, claim: Claim) -> None:
        handler = self._lane.handlers.find(claim.task.kind)
        assert handler is not None, "a ledger hands out the kinds that it was asked for"
        if claim.abandoned is not None:
            await self._settler.write([decide(claim, LeaseExpired(), handler.policy)])
            return
        if claim.suspect:
            claim = await self._ledger.run_alone(claim) or claim
        self._tell([AttemptStarted(self._ledger.name, claim)])
        ran = await self._runner.run(claim, handler)
        if ran.written:
            self._tell([AttemptEnded(self._ledger.name, ran.settlement)])
        elif ran.lost:
            self._tell([SettleLost(self._ledger.name, ran.settlement)])
        else:
            await self._settler.write([ran.settlement])
            await self._settler.flushed()  # also what is written later, where somebody has locked its row

    async def next_wait(self) -> timedelta | None:
        """How long until a task is due or a lease ends; None if nothing waits."""
        waits = []
        for kind in await self._known_kinds():
            wait = await self._ledger.next_due(kinds=[kind])
            if wait is not None:
                waits.append(wait)
        held = await self._ledger.find(Filter(state=State.CLAIMED), limit=1000)
        for task in held.items:
            if task.lease_until is not None and self._lane.handlers.find(task.kind) is not None:
                waits.append(max(task.lease_until - self._lane.now(), timedelta(0)))
        return min(waits, default=None)

    def _tell(self, events: list[Event]) -> None:
        self._lane.tell(events)
        for event in events:
            match event:
                case AttemptEnded(_, settlement):
                    self._drained.settlements.append(settlement)
                case SettleFailed(_, settlement, error):
                    raise AssertionError(f"{settlement.claim.task.key!r} could not be settled: {error}")
                case _:
                    pass


# --- assertions -------------------------------------------------------------------------------------------------------


async def assert_done(app: Redrive | Lane, key: str) -> Task:
    """The task with this key is done; returns it. `app` is the application (its own tasks) or one of its lanes."""
    seen = await _look(app, key)
    seen.check(State.DONE)
    return seen.task


async def assert_dead(app: Redrive | Lane, key: str, *, error: str | None = None, verdict: str | None = None) -> Task:
    """The task is dead; its last error holds the text `error`, and it died by `verdict`, such as `exhausted`."""
    seen = await _look(app, key)
    seen.check(State.DEAD)
    last = seen.attempts[-1] if seen.attempts else None
    if error is not None and error not in (shown := (last and last.error) or seen.task.last_error or ""):
        seen.fail(f"died of {shown!r}, which does not hold {error!r}")
    if verdict is not None and verdict != (found := ((last and last.explanation) or {}).get("verdict")):
        seen.fail(f"died by verdict {found!r}, not {verdict!r}")
    return seen.task


async def assert_waiting(
    app: Redrive | Lane,
    key: str,
    *,
    failures: int | None = None,
    due_in: Span | None = None,
    tolerance: Span = TICK,
) -> Task:
    """The task waits after so many failures and is due after `due_in`; give a `tolerance` where time is real."""
    seen = await _look(app, key)
    seen.check(State.WAITING)
    if failures is not None and seen.task.failures != failures:
        seen.fail(f"has failed {seen.task.failures} times, not {failures}")
    if due_in is not None:
        wait, wanted = (seen.task.due_at or seen.now) - seen.now, _span("due_in", due_in)
        if abs(wait - wanted) > _span("tolerance", tolerance):
            seen.fail(f"is due in {format_duration(wait)}, not in {format_duration(wanted)}")
    return seen.task


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    task: Task
    attempts: list[Attempt]
    now: datetime

    def check(self, state: State) -> None:
        if self.task.state is not state:
            self.fail(f"is {self.task.state}, not {state}")

    def fail(self, what: str) -> None:
        raise AssertionError("\n".join([f"task {self.task.key!r} {what}", *self._story()]))

    def _story(self) -> Iterator[str]:
        task = self.task
        facts = [f"state {task.state}", f"failures {task.failures}", f"kind {task.kind}"]
        if task.due_at is not None:
            facts.append(f"due in {format_duration(task.due_at - self.now)}")
        if task.redrives:
            facts.append(f"redriven {task.redrives} times")
        yield f"  now: {', '.join(facts)}"
        for attempt in self.attempts:
            then = f", again after {format_duration(attempt.delay)}" if attempt.delay is not None else ""
            verdict = f" ({attempt.explanation['verdict']})" if attempt.explanation else ""
            error = f": {attempt.error}" if attempt.error else ""
            yield f"  attempt {attempt.number}: {attempt.outcome}, then {attempt.state}{then}{verdict}{error}"
        if not self.attempts:
            yield "  it has never been run"


async def _look(app: Redrive | Lane, key: str) -> _Seen:
    lane = app.tasks if isinstance(app, Redrive) else app
    ledger = await lane.ledger()
    task = await ledger.get_by_key(key)
    if task is None:
        page = await ledger.find(Filter(), limit=10, newest_first=True)
        there = ", ".join(repr(one.key) for one in page.items) or "no tasks at all"
        raise AssertionError(f"{lane.name!r} has no task with key {key!r}; the newest there are: {there}")
    return _Seen(task=task, attempts=await ledger.attempts(task.id), now=lane.now())
