"""A lane: one ledger together with the handlers that work it off. An application has one for each table."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, TypedDict, TypeVar, Unpack, overload

from redrive.core.backoff import Backoff
from redrive.core.durations import ZERO, Span, read_span
from redrive.core.effect import Effect
from redrive.core.effect_mark import EffectAnswer, EffectMark
from redrive.core.failure import Rule
from redrive.core.gates import Breaker, GateRule, Priority, read_priority, read_rule
from redrive.core.jitter import Jitter
from redrive.core.payload_types import as_json
from redrive.core.policy import Policy, read_policy
from redrive.core.preview import Try, preview
from redrive.core.progress import Progress
from redrive.core.states import Act, State
from redrive.core.table import TASKS, Counts, LedgerTable
from redrive.core.task import (
    GATE_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    Added,
    Attempt,
    Deed,
    NewTask,
    P,
    Task,
    TaskId,
    check_text,
)
from redrive.engine.announce import announce
from redrive.engine.handlers import Handler, HandlerFunction, Handlers, function_name, make_handler
from redrive.engine.own_loop import run_in_own_loop
from redrive.engine.worker import WorkerSettings
from redrive.errors import HandlerError, LedgerAwayError, NoResultError, PayloadError, StaleError, UsageError
from redrive.events import Event, TaskAdded
from redrive.ledgers.sql.beside import Beside
from redrive.observe.traces import current_trace
from redrive.operator.acts import Acted, ActOptions, Acts, Which
from redrive.operator.backtests import TRIES_MAX, Tried, try_policy
from redrive.operator.effects import UnknownEffect, answer_effects, cancel_running, read_answer, unknown_effects
from redrive.operator.gates import KEEP, GateDoes, GateView, Keep, ParkedTask, changed_rule, read_does
from redrive.operator.headcount import Headcount
from redrive.operator.names import Names
from redrive.operator.operating import LaneOperations
from redrive.operator.ports import Census, Gates, OperatorLedger, ReadProgress, TaskPages
from redrive.ports import Actor, Filter, Observer, Page, Within
from redrive.stores.port import Store

__all__ = ["Acted", "Actor", "AddOptions", "Added", "Attempt", "Lane", "NewTask", "Page", "make_task"]

F = TypeVar("F", bound=Callable[..., Any])

EVERYTHING = Filter()
CHANGE_TRIES_MAX = 5
"""How often a change of some limits is made anew because others were changed meanwhile."""
HANDLERS_NAMED_MAX = 10
RESULT_LOOKS_SECONDS = (0.02, 1.0)
"""How long whoever waits for a result pauses between two looks: at first, and at most. A look is two reads by key."""
SEEN_KINDS_MAX = 10_000
"""How many kinds are remembered, so that each is looked up and warned of once."""

NO_EFFECTS = "cannot wait for the probe of an effect: keep such tasks in a table of SQLite or PostgreSQL"

_log = logging.getLogger("redrive")


class AddOptions(TypedDict, total=False):
    """What can be said of a task when it is added, beside its kind and payload."""

    key: str | None
    """What you know it by: adding it again is the same task. Without one it gets a random key."""
    delay: Span
    """How long after now its first try is due."""
    attempts: int | None
    """How many tries it has, in place of the policy's number."""
    deadline: Span | None
    """How long after now it is tried."""
    gate: str | None
    """The destination that it is for, whose limits it waits for."""
    tenant: str | None
    """Whose it is."""
    priority: Priority | str | None
    """`"high"` or `"low"` goes before or behind others of its gate."""


class Lane:
    """Handlers over one table, and all that can be asked and done there."""

    def __init__(
        self,
        store: Store,
        table: LedgerTable,
        *,
        open_app: Callable[[], Awaitable[object]],
        observers: list[Observer],
        own_observers: Iterable[Observer] = (),
        tune: Callable[[WorkerSettings], WorkerSettings] | None = None,
        ledger: OperatorLedger | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.name = table.name if ledger is None else ledger.name
        self.table = table
        self.handlers = Handlers()
        self._store = store
        self._open_app = open_app
        self._shared_observers = observers
        self.own_observers = list(own_observers)
        self.tune = tune
        self._ledger = store.own_ledger() if table is TASKS else ledger
        self._beside = beside
        self._seen_kinds: set[str] = set()
        self._gate_rules: dict[str, GateRule] = {}
        self._observing: tuple[tuple[Observer, ...], list[Observer]] | None = None
        self.headcount: Headcount | None = None
        """What people count here, where that is not tasks."""
        self.checked = table is not TASKS and ledger is None
        """Whether the table is somebody's, and looked at when it is opened."""

    def again(self, ledger: OperatorLedger | None = None) -> "Lane":
        """Another set of handlers over the same ledger, or over a part of it, for a worker of its own."""
        return Lane(
            self._store, self.table, open_app=self._open_app, observers=self._shared_observers,
            own_observers=self.own_observers, tune=self.tune, ledger=ledger or self._ledger, beside=self._beside,
        )  # fmt: skip

    @property
    def observers(self) -> list[Observer]:
        """Who is told what happens here: the application's observers and the lane's own.

        A lane may tell its story in words of its own: a `LogObserver` of the lane takes the place of the application's,
        and stays silent where the application has none.
        """
        own, shared = self.own_observers, self._shared_observers
        if not own:
            return shared
        given = (*shared, *own)
        if self._observing is None or self._observing[0] != given:
            self._observing = given, self._chosen(shared, own)
        return self._observing[1]

    @staticmethod
    def _chosen(shared: Sequence[Observer], own: Sequence[Observer]) -> list[Observer]:
        from redrive.observe.logs import LogObserver  # structlog is for those who log

        logged = any(isinstance(one, LogObserver) for one in shared)
        speaks = any(isinstance(one, LogObserver) for one in own)
        return [
            *(one for one in shared if not (speaks and isinstance(one, LogObserver))),
            *(one for one in own if logged or not isinstance(one, LogObserver)),
        ]

    @property
    def counted_as(self) -> str:
        """What the minutes call that which people count here."""
        return self.name if self.headcount is None else self.headcount.name

    def tell(self, events: list[Event]) -> None:
        """Announce facts to all observers."""
        announce(self.observers, events)

    @property
    def refused_ends(self) -> frozenset[State]:
        """How no task here can be ended by a person, because what is written beside refuses it always."""
        return frozenset() if self._beside is None else self._beside.refused_ends

    @property
    def refused_edit(self) -> str | None:
        """Why no payload here may be changed; None where nothing is against it."""
        beside: Beside | None = self._beside or getattr(
            self._ledger, "beside", None
        )  # a system may bring a ledger with its own
        return None if beside is None else beside.refused_edit

    @property
    def operations(self) -> LaneOperations:
        """Bringing dead tasks back step by step, with a brake."""
        return LaneOperations(self, self._store.operations)

    async def ledger(self) -> OperatorLedger:
        """The ledger; the application is opened and a foreign table is checked when it is first asked for."""
        await self._open_app()
        if self._ledger is None:
            self._ledger = await self._store.open_ledger(self.table, beside=self._beside)
        for pattern, rule in list(self._gate_rules.items()):
            await self._ledger.set_rule(pattern, rule, Actor(name="code"), by_code=True)
            self._gate_rules.pop(pattern, None)  # only then: a store that was away is told when it is back
        return self._ledger

    def now(self) -> datetime:
        """The instant, by the clock of the application's store."""
        return self._store.now()

    async def pages(self, *, limited: bool = True) -> TaskPages:
        """Pages of the tasks here; `limited` is for people who wait."""
        return self._store.pages(await self.ledger(), limited=limited)

    async def census(self) -> Census:
        """Who counts the tasks here."""
        return self._store.census(await self.ledger())

    async def acts(self, *, limited: bool = False) -> Acts:
        """Acts on the tasks here; `limited` as in `pages`."""
        return Acts(await self.ledger(), await self.pages(limited=limited), self.tell)

    async def try_policy(
        self,
        policy: Policy,
        *,
        since: Span,
        kind: str | None = None,
        tries_max: int = TRIES_MAX,
        progress: ReadProgress | None = None,
    ) -> Tried:
        """What another policy would have made of what was tried here within this span until now, beside what happened.

        Give the `kind` whose policy it would be. At most `tries_max` tries are read; `progress` is told how many more were. Nothing is changed.
        """
        ledger = await self.ledger()
        begins = await (await self.pages()).present() - read_span("since", since)
        history = self._store.history(ledger)
        return await try_policy(ledger, history, policy, begins, kind=kind, tries_max=tries_max, progress=progress)

    # --- gates ------------------------------------------------------------------------------------------------------

    def gate(
        self,
        pattern: str,
        *,
        concurrency: int | None = None,
        rate: str | int | None = None,
        burst: int | None = None,
        breaker: Breaker | None = None,
        budget: float | None = None,
    ) -> None:
        """Limits for all gates whose names the pattern fits best; `*` in it stands for any text.

            app.gate("bank:*", concurrency=5, rate="20/s", breaker=Breaker(failures=10), budget=0.2)

        `concurrency` is how many of a gate's tasks run at once, over all processes, `rate` how many start in any second, minute
        or hour (`"20/s"`, `"100/m"`, `"1000/h"`), `burst` how many of them at once. A `Breaker` lets one try at a time through while the destination is
        down. `budget` is which share of first tries may be retried. What is kept back is not charged. The limits are written when the
        application opens, and what a person has set since stays.
        """
        rule = read_rule(concurrency=concurrency, rate=rate, burst=burst, breaker=breaker, budget=budget)
        self._gate_rules[check_text("pattern", pattern, GATE_CHARS_MAX)] = rule

    async def pause_gate(
        self,
        name: str,
        *,
        actor: str,
        reason: str,
        span: Span | None = None,
        until: datetime | None = None,
        version: int | None = None,
    ) -> bool:
        """Let nothing of a gate through until somebody resumes it, or the span or the instant is over; whether it was changed.

        `kind:mail` or `kind:mail.*` pauses kinds, and `kind:*` the whole ledger, whether or not their tasks have gates. What runs ends, what
        waits waits, and adding goes on. `version` is that of the view that the person saw: a `StaleError` if somebody was quicker.
        """
        if until is not None:
            if span is not None:
                raise UsageError("give either span or until")
            span = until - await self._store.present()
            if span <= ZERO:
                raise UsageError(f"until must lie in the future, not at {until.isoformat()}")
        who = Actor(name=actor, reason=reason)
        return await (await self.ledger()).pause_gate(name, who, span=span, version=version)

    async def resume_gate(self, name: str, *, actor: str, reason: str, version: int | None = None) -> bool:
        """Give a paused gate, kind or ledger free; whether it was changed. The parameters are those of `pause_gate`."""
        return await (await self.ledger()).resume_gate(name, Actor(name=actor, reason=reason), version=version)

    async def set_gate(
        self,
        pattern: str,
        *,
        actor: str,
        reason: str,
        concurrency: int | Keep | None = KEEP,
        rate: str | int | Keep | None = KEEP,
        burst: int | Keep | None = KEEP,
        breaker: Breaker | Keep | None = KEEP,
        budget: float | Keep | None = KEEP,
        version: int | None = None,
    ) -> bool:
        """Change the limits of a gate, or of all that the pattern fits best, in place of those that stand in code; whether they changed.

        The limits are those of `gate`. None takes one away, and what is not given stays as it holds now. `version` as in `pause_gate`.
        """
        ledger, gates = await self.ledger(), await self.gate_reader()
        given = {"concurrency": concurrency, "rate": rate, "burst": burst, "breaker": breaker, "budget": budget}
        for _ in range(CHANGE_TRIES_MAX):
            before, last = await gates.rule_for(pattern)
            rule = changed_rule(before, **given)
            try:
                seen = last if version is None else version
                return await ledger.set_rule(pattern, rule, Actor(name=actor, reason=reason), version=seen)
            except StaleError:  # what is not given stays as it holds: without a version, as it holds since just now
                if version is not None:
                    raise
        raise StaleError(f"others keep changing {pattern!r}: try again")

    async def unset_gate(self, pattern: str, *, actor: str, reason: str, version: int | None = None) -> bool:
        """Take the limits of a pattern away, so that a wider one holds or none; whether there were any. What code says comes back when it next opens."""
        return await (await self.ledger()).set_rule(pattern, None, Actor(name=actor, reason=reason), version=version)

    async def gate_reader(self, *, limited: bool = False) -> Gates:
        """The gates here, as people see them; `limited` as in `pages`."""
        return self._store.gates(await self.ledger(), limited=limited)

    async def gates(
        self, *, does: GateDoes | str | None = None, prefix: str = "", cursor: str | None = None, limit: int = 100
    ) -> Page[GateView]:
        """A page of gates: those that hold, return or are paused first, then the others, by name; pass `page.cursor` for the next one.

        `does` is one of "paused", "holding", "returning" and "letting through", `prefix` how their names begin.
        """
        asked = None if does is None else read_does(does)
        return await (await self.gate_reader()).page(does=asked, prefix=prefix, cursor=cursor, limit=limit)

    async def gate_state(self, name: str) -> GateView | None:
        """What one gate does now, why and until when, and what it keeps back; None where no task has named it yet."""
        return await (await self.gate_reader()).one(name)

    async def parked(self, task: Task) -> ParkedTask | None:
        """What keeps a waiting task back: its gate, or the pause of its kind; None where nothing does."""
        try:
            gates = await self.gate_reader()
        except UsageError:  # a ledger without gates keeps nothing back
            return None
        return await gates.parked(task)

    # --- handlers ---------------------------------------------------------------------------------------------------

    @overload
    def handler(self, kind: F, /) -> F: ...

    @overload
    def handler(
        self,
        kind: str | None = None,
        *,
        retries: int | None = None,
        attempts: int | None = None,
        wait: Backoff | Span | Sequence[Span] | None = None,
        jitter: Jitter | None = None,
        permanent: Rule | Collection[Rule] | None = None,
        business: Rule | Collection[Rule] | None = None,
        rate_limited: Rule | Collection[Rule] | None = None,
        transient: Rule | Collection[Rule] | None = None,
        deadline: Span | None = None,
        policy: Policy | None = None,
        transactional: bool = False,
        timeout: Span | None = None,
        gate: str | Callable[[Any], str | None] | None = None,
        effect: Effect | None = None,
    ) -> Callable[[F], F]: ...

    def handler(
        self,
        kind: str | F | None = None,
        *,
        policy: Policy | None = None,
        transactional: bool = False,
        timeout: Span | None = None,
        gate: str | Callable[[Any], str | None] | None = None,
        effect: Effect | None = None,
        **words: Any,
    ) -> F | Callable[[F], F]:
        """Register a function, sync or async, for the tasks of a kind.

            @app.handler                                          # tasks of the kind "send_invoice"
            async def send_invoice(task): ...

            @app.handler("mail.*", retries=3, wait=[1, 5, 15], permanent=ValueError)
            async def send_mail(task, context): ...

        The kind is the function's name if none is given; it may hold `*` for any text. A table without a kind column has
        one handler, which names no kind. The function takes the task, or the task and a `Context`.

        How often and how long: `retries` or `attempts`, `wait` (a span, a list of spans or a backoff), `jitter`,
        `permanent`, `business`, `rate_limited`, `transient` and `deadline`, as in `Policy`; or a whole `policy`, not both.
        With `transactional` the context holds a connection whose writes commit together with the settlement. An async
        function that takes longer than `timeout` has failed. `gate` names the gate of the tasks, or makes its name from a
        payload: `gate=lambda payload: f"bank:{payload['country']}"`. It is asked once, when a task is added. `effect` says how to
        find out whether what the handler does outside has happened, when a try ends without an answer.
        """
        if kind is not None and not isinstance(kind, str):
            return self.handler()(kind)
        if self.table.kind is None and kind is not None:
            raise UsageError(
                f"{self.name!r} has no kind column: register its one handler with .handler, without a kind"
            )
        if effect is not None and self._ledger is not None and self._ledger.effects is None:
            raise UsageError(f"a queue hands the tasks of {self.name!r} out, which {NO_EFFECTS}")
        chosen = read_policy(policy, **words)

        def register(function: F) -> F:
            named = self._kind_of(function) if kind is None else kind
            made = make_handler(
                named, function, chosen, transactional=transactional, timeout=timeout, gate=gate, effect=effect
            )
            self.handlers.add(made)
            return function

        return register

    def _kind_of(self, function: Any) -> str:
        if self.table.kind is None:
            return self.name
        name = function_name(function)
        if name is None or not name.isidentifier():  # `<lambda>`, or an object that can be called
            raise HandlerError(f"{function!r} has no name to take as its kind: .handler('send_invoice')")
        return name

    # --- adding -----------------------------------------------------------------------------------------------------

    @overload
    async def add(
        self,
        kind: HandlerFunction[P],
        payload: P,
        *,
        within: Within | None = None,
        **how: Unpack[AddOptions],
    ) -> Added: ...

    @overload
    async def add(
        self,
        kind: str | Callable[..., Any],
        payload: Any = None,
        *,
        within: Within | None = None,
        **how: Unpack[AddOptions],
    ) -> Added: ...

    async def add(
        self,
        kind: str | Callable[..., Any],
        payload: Any = None,
        *,
        within: Within | None = None,
        **how: Unpack[AddOptions],
    ) -> Added:
        """Store a task; when this returns it is durable.

            await app.add("send_invoice", {"invoice": 7}, key="invoice-7")
            await app.add(pay, Payment(account="DE1", cents=700), key="payment-7", delay="5m")

        A kind, or the function that handles it. Where a handler here takes `Task[Payment]`, the payload is a `Payment` or JSON that
        fits it; what does not fit is refused with the path. Idempotent on the key: adding again returns the task that is there, and
        says whether its payload is the same. A kind that no handler here takes is stored all the same, with one warning in the
        log. The other parameters are those of `AddOptions`.
        `within` takes your own connection or session of SQLAlchemy, or a plain connection of `sqlite3` or `psycopg`: the task is then
        stored if and only if your transaction commits.
        """
        [added] = await self.add_many([self._make_task(kind, payload, how)], within=within)
        return added

    async def add_many(self, tasks: Iterable[NewTask], *, within: Within | None = None) -> list[Added]:
        """Store many tasks in one commit, all or nothing; make them with `redrive.lane.make_task`."""
        given = self._prepared(tasks)
        if not given:
            return []
        added = await (await self.ledger()).add(given, within=within)
        self._announce(given, added)
        return added

    @overload
    def add_sync(
        self, kind: HandlerFunction[P], payload: P, *, within: Within | None = None, **how: Unpack[AddOptions]
    ) -> Added: ...

    @overload
    def add_sync(
        self,
        kind: str | Callable[..., Any],
        payload: Any = None,
        *,
        within: Within | None = None,
        **how: Unpack[AddOptions],
    ) -> Added: ...

    def add_sync(
        self,
        kind: str | Callable[..., Any],
        payload: Any = None,
        *,
        within: Within | None = None,
        **how: Unpack[AddOptions],
    ) -> Added:
        """The same for code without an event loop; when this returns it is durable.

        With `within`, your own `Connection` or `Session` of SQLAlchemy or a plain connection of `sqlite3` or `psycopg`, it is stored if
        and only if your transaction commits. redrive's own table needs no opening for that, only to be there; an adopted table
        must have been checked by `open` before.
        """
        [task] = self._prepared([self._make_task(kind, payload, how)])
        if within is None:
            [added] = run_in_own_loop(lambda: self._add_own([task]), instead="await app.add(…)")
        elif self._ledger is None:
            raise UsageError(
                f"table {self.name!r} must be checked before: `asyncio.run(app.open())`, or use `add` from async code"
            )
        else:
            [added] = self._ledger.add_sync([task], within=within)
        self._announce([task], [added])
        return added

    async def _add_own(self, tasks: list[NewTask]) -> list[Added]:
        return await (await self.ledger()).add(tasks)

    def _make_task(self, kind: str | Callable[..., Any], payload: Any, how: AddOptions) -> NewTask:
        return make_task(kind if isinstance(kind, str) else self.handlers.kind_of(kind), payload, **how)

    def _prepared(self, tasks: Iterable[NewTask]) -> list[NewTask]:
        """The tasks with payloads that fit their handlers, behind the gates that those name."""
        given = list(tasks)
        if self.handlers.has_typed:
            for task in given:
                self._value_of(task, self.handlers.find(task.kind))
        return self._behind_gates(given)

    def _value_of(self, task: NewTask, handler: Handler | None) -> Any:
        """The payload as its handler gets it, or a `PayloadError`."""
        if handler is None or handler.payload is None:
            return task.payload
        try:
            return handler.payload.read(task.payload)
        except PayloadError as error:
            raise PayloadError(f"{task.kind!r}: {error}") from error

    def _behind_gates(self, given: list[NewTask]) -> list[NewTask]:
        """The tasks behind the gates that their handlers name."""
        if not self.handlers.has_gates and all(task.gate is None and task.tenant is None for task in given):
            return given
        return [self._behind_gate(task) for task in given]

    def _behind_gate(self, task: NewTask) -> NewTask:
        handler = self.handlers.find(task.kind)
        if handler is None:
            return task
        gate = (
            task.gate if task.gate is not None or handler.gate is None else handler.gate(self._value_of(task, handler))
        )
        return task if gate is None and task.tenant is None else task.behind(gate, handler.policy.deadline)

    def _announce(self, tasks: Sequence[NewTask], added: Sequence[Added]) -> None:
        if len(self.handlers):  # a process without handlers only adds, and others work: it is not warned
            self._warn_of_unhandled({task.kind for task in tasks})
        if self.observers:
            pairs = zip(tasks, added, strict=True)
            self.tell([TaskAdded(self.name, task.kind, one.key, one.id, one.new) for task, one in pairs])

    def _warn_of_unhandled(self, kinds: set[str]) -> None:
        """Once for each kind."""
        if kinds <= self._seen_kinds:
            return
        for kind in sorted(kinds - self._seen_kinds):
            if self.handlers.find(kind) is None:
                there = ", ".join(handler.kind for handler in islice(self.handlers, HANDLERS_NAMED_MAX))
                more = len(self.handlers) - HANDLERS_NAMED_MAX
                there += f" and {more} more" if more > 0 else ""
                _log.warning("nobody here handles %r: its tasks wait for a worker that does; there is %s", kind, there)
        if len(self._seen_kinds) < SEEN_KINDS_MAX:
            self._seen_kinds |= kinds

    # --- looking ----------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Task | None:
        """The task with this key."""
        return await (await self.ledger()).get_by_key(key)

    async def get_by_id(self, id: TaskId) -> Task | None:
        """The task with this id."""
        return await (await self.ledger()).get(id)

    async def result(self, key: str, *, wait: Span = ZERO) -> Any:
        """What the handler of a task returned, once it is done; `wait` is how long to wait for that.

            total = await app.result("sum-7", wait=seconds(5))

        Any JSON up to 64 KiB is kept with the task; None where the handler returned nothing, or something else. A task that is dead
        or cancelled, or not done in time, is a `NoResultError`.
        """
        ends = time.monotonic() + read_span("wait", wait).total_seconds()
        pause = RESULT_LOOKS_SECONDS[0]
        while True:
            task = await self.get(key)
            if task is None:
                raise UsageError(f"there is no task with key {key!r}")
            if task.state is State.DONE:
                return await (await self.ledger()).result(task.id)
            if task.state in (State.DEAD, State.CANCELLED):
                raise NoResultError(
                    f"task {key!r} is {task.state}: {task.last_error or 'no error is known'}", ended=True
                )
            left = ends - time.monotonic()
            if left <= 0:
                raise NoResultError(f"task {key!r} is not done yet: it is {task.state}", ended=False)
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, RESULT_LOOKS_SECONDS[1])

    async def find(
        self, filter: Filter = EVERYTHING, *, cursor: TaskId | None = None, limit: int = 100, newest_first: bool = False
    ) -> Page[Task]:
        """A page of tasks in the order of their ids; pass `page.cursor` for the next one."""
        pages = await self.pages(limited=False)
        return await pages.page(filter, cursor=cursor, limit=limit, newest_first=newest_first)

    async def attempts(self, id: TaskId) -> list[Attempt]:
        """Every try of a task so far, with what it came to and why."""
        return await (await self.ledger()).attempts(id)

    async def deeds(self, id: TaskId) -> list[Deed]:
        """Who redrove, cancelled or resolved a task, and why."""
        return await (await self.ledger()).deeds(id)

    async def effect(self, id: TaskId) -> EffectMark | None:
        """What is known of the effect of a task; None where it has not entered one."""
        marks = (await self.ledger()).effects
        return None if marks is None else (await marks.of([id])).get(id)

    async def progress(self, id: TaskId) -> Progress | None:
        """How far the tries of a task have come, and its checkpoint; None where they have told nothing."""
        notes = (await self.ledger()).progress
        return None if notes is None else await notes.read(id)

    def to_come(self, task: Task, *, parked: ParkedTask | None = None) -> list[Try] | None:
        """The tries still to come if each fails, the first of them included; None where no handler's policy is known here.

        `parked` is what keeps it back, as the method of that name says: the tries begin when that lets something through at the
        earliest, and behind a gate that has tripped the waits between them are longer.
        """
        handler = self.handlers.find(task.kind)
        if handler is None:
            return None
        if task.state not in (State.WAITING, State.CLAIMED):
            return []
        now = self.now()
        ends = [task.deadline_at] if task.deadline_at else []
        if handler.policy.deadline is not None and task.created_at is not None:
            ends.append(task.created_at + handler.policy.deadline)
        earliest = now if parked is None or parked.earliest is None else parked.earliest
        begins = max(task.due_at or now, now, earliest) if task.state is State.WAITING else now
        tries = preview(
            handler.policy.for_task(task), task.key, begins,
            failures=task.failures, failures_max=task.failures_max, deadline_at=min(ends, default=None),
            stretch=1 if parked is None else parked.stretch,
        )  # fmt: skip
        if self.table.counts is Counts.DONE:
            tries = tries[:1]  # its failures are not counted: all that is known is when it is due
        return tries if task.state is State.WAITING else tries[1:]

    async def counts(self, *, counted_max: int = 100_000) -> dict[State, int]:
        """How many tasks are in each state, counted up to `counted_max`."""
        return dict(await (await self.ledger()).counts(counted_max=counted_max))

    async def count_soon(self) -> None:
        """Have the figures counted again soon: somebody has acted and wants to see it. What was done is done, store or not."""
        with suppress(LedgerAwayError):
            await (await self.census()).hurry()

    # --- acting -----------------------------------------------------------------------------------------------------

    async def redrive(self, which: Which, *, actor: str, reason: str = "", **how: Unpack[ActOptions]) -> Acted:
        """Send dead tasks back to waiting, due now, with a fresh budget; their history stays.

        `which` is an id, a key, several of either, or a `Filter`. A number or a UUID is an id; a text is an id or a key, and
        where it is the id of one task and the key of another, neither is touched. Who and why are recorded with each task.
        A dry run only counts (`dry_run=True`). `until` takes only what was dead at that instant already, `at_most` no more
        than so many; `progress` is told after each page how many tasks it held.
        """
        return await self._act(Act.REDRIVE, State.WAITING, which, Actor(name=actor, reason=reason), **how)

    async def cancel(self, which: Which, *, actor: str, reason: str = "", **how: Unpack[ActOptions]) -> Acted:
        """End waiting tasks as cancelled; the parameters are those of `redrive`. What runs is not touched."""
        return await self._act(Act.CANCEL, State.CANCELLED, which, Actor(name=actor, reason=reason), **how)

    async def resolve(
        self, which: Which, state: State = State.DONE, *, actor: str, reason: str = "", **how: Unpack[ActOptions]
    ) -> Acted:
        """End dead tasks as done or cancelled, because a person has dealt with them; the parameters are those of `redrive`."""
        return await self._act(Act.RESOLVE, state, which, Actor(name=actor, reason=reason), **how)

    async def _act(self, act: Act, end: State, which: Which, actor: Actor, **how: Unpack[ActOptions]) -> Acted:
        acted = await (await self.acts()).act(act, end, which, actor, **how)
        if acted.changed:
            await self.count_soon()
        return acted

    async def cancel_running(self, which: Names, *, actor: str, reason: str) -> Acted:
        """Have tasks that run cancelled; `changed` are those that are asked to end.

        An async handler is cancelled at its next await, a thread is told through `context.cancelled`. The task ends as cancelled by
        this person, or as what it was if it ended first. Which of the two the history tells.
        """
        return await cancel_running(await self.ledger(), which, Actor(name=actor, reason=reason))

    async def unknown_effects(
        self, *, needs_person: bool = True, cursor: str | None = None, limit: int = 100
    ) -> Page[UnknownEffect]:
        """A page of tasks of which nobody knows whether their effects happened: those that need a person, or whose probe is asked."""
        return await unknown_effects(await self.ledger(), needs_person=needs_person, cursor=cursor, limit=limit)

    async def answer(self, which: Names, answer: EffectAnswer | str, *, actor: str, reason: str) -> Acted:
        """Say whether the effects of tasks happened: "happened" (done), "not-happened" (retried) or "close" (cancelled)."""
        said = answer if isinstance(answer, EffectAnswer) else read_answer(answer)
        acted = await answer_effects(await self.ledger(), which, said, Actor(name=actor, reason=reason))
        if acted.changed:
            await self.count_soon()
        return acted

    def cancel_sync(self, ids: Sequence[TaskId], *, actor: str, reason: str = "", within: Within) -> list[TaskId]:
        """End waiting tasks as cancelled in your own transaction, `within` as in `add_sync`; those that changed.

        They are cancelled if and only if your transaction commits, so no observer is told here. An adopted table must have
        been checked by `open` before.
        """
        if self._ledger is None:
            raise UsageError(f"table {self.name!r} must be checked before: `await app.open()`")
        return self._ledger.cancel_sync(ids, Actor(name=actor, reason=reason), within=within)


def make_task(
    kind: str, payload: Any = None, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX, **how: Unpack[AddOptions]
) -> NewTask:
    """A task to be added; without a key it gets a random one, and adding it again makes another task.

    `payload_bytes_max` is for a system whose payloads may be larger than 1 MiB.
    """
    return _new_task(kind, as_json(payload), payload_bytes_max, **how)


def _new_task(
    kind: str,
    payload: Any,
    payload_bytes_max: int,
    *,
    key: str | None = None,
    delay: Span = ZERO,
    attempts: int | None = None,
    deadline: Span | None = None,
    gate: str | None = None,
    tenant: str | None = None,
    priority: Priority | str | None = None,
) -> NewTask:
    return NewTask(
        kind=kind,
        key=secrets.token_hex(16) if key is None else key,
        payload=payload,
        delay=delay if delay is ZERO else read_span("delay", delay),
        failures_max=attempts,
        deadline=None if deadline is None else read_span("deadline", deadline),
        trace=current_trace(),
        gate=gate,
        tenant=tenant,
        priority=None if priority is None else read_priority(priority).level,
        payload_bytes_max=payload_bytes_max,
    )
