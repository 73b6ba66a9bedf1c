"""What can be asked and done on one ledger: register handlers, add tasks, look at them, act on them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

from redrive.core.backoff import Wait
from redrive.core.durations import ZERO, Span, read_span
from redrive.core.effect import Effect
from redrive.core.effect_mark import EffectAnswer, EffectMark
from redrive.core.failure import Rule
from redrive.core.gate_rules import GateRule
from redrive.core.jitter import Jitter
from redrive.core.policy import Policy, read_policy
from redrive.core.preview import Try, preview
from redrive.core.progress import Progress
from redrive.core.states import Act, State
from redrive.core.table import TASKS, Counts, LedgerTable
from redrive.core.task import Added, Attempt, Deed, NewTask, P, Task, TaskId
from redrive.engine.announce import announce
from redrive.engine.handlers import HandlerFunction, Handlers, function_name, make_handler
from redrive.engine.own_loop import run_in_own_loop
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import HandlerError, LedgerAwayError, NoResultError, UsageError
from redrive.events import Event, TaskAdded
from redrive.lane.adding import AddOptions, UnhandledKinds, check_made, check_options, make_task, prepared
from redrive.lane.gates import GatedLane
from redrive.ledgers.build import built_of
from redrive.ledgers.sql.beside import Beside
from redrive.operator.acts import Acted, ActOptions, Acts, Which
from redrive.operator.backtests import TRIES_MAX, Tried, try_policy
from redrive.operator.effects import UnknownEffect, answer_effects, cancel_running, read_answer, unknown_effects
from redrive.operator.gates import ParkedTask
from redrive.operator.headcount import Headcount
from redrive.operator.names import Names
from redrive.operator.operating import LaneOperations
from redrive.operator.ports import Census, OperatorLedger, ReadProgress, TaskPages
from redrive.ports import Actor, Filter, Observer, Page, Within
from redrive.stores.port import Store

F = TypeVar("F", bound=Callable[..., Any])

EVERYTHING = Filter()
RESULT_LOOKS_SECONDS = (0.02, 1.0)
"""How long to pause between two checks for a result: at first, and at most. A check is two reads by key."""

NO_EFFECTS = "cannot wait for the probe of an effect: keep such tasks in a table of SQLite or PostgreSQL"


class Lane(GatedLane):
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
        self._unhandled = UnhandledKinds(self.handlers)
        self._gate_rules: dict[str, GateRule] = {}
        self._observing: tuple[tuple[Observer, ...], list[Observer]] | None = None
        self.headcount: Headcount | None = None
        """What people count here, if not tasks."""
        self.checked = table is not TASKS and ledger is None
        """Whether the table is the user's own, and checked when it is opened."""

    def with_own_handlers(self, ledger: OperatorLedger | None = None) -> "Lane":
        """A lane over the same ledger, or over a part of it, with handlers of its own: for a second worker."""
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
        """The name under which the figures per minute count what people count here."""
        return self.name if self.headcount is None else self.headcount.name

    def tell(self, events: list[Event]) -> None:
        """Announce facts to all observers."""
        announce(self.observers, events)

    @property
    def refused_ends(self) -> frozenset[State]:
        """States that no person can end a task in here, because what is written beside always refuses them."""
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
        if self._gate_rules:
            await self._write_rules(self._ledger)
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
        wait: Wait | None = None,
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
            raise UsageError(f"tasks of {self.name!r} are handed out by a queue, which {NO_EFFECTS}")
        chosen = read_policy(policy, **words)

        def register(function: F) -> F:
            named = self._kind_of(function) if kind is None else kind
            made = make_handler(
                named, function, chosen, transactional=transactional, timeout=timeout, gate=gate, effect=effect
            )
            self.handlers.add(made)
            built_of(getattr(function, "__module__", None) or "")
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
        given = list(tasks)
        try:
            given = prepared(given, self.handlers)
        except AttributeError:
            check_made(given)
            raise
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
        [task] = prepared([self._make_task(kind, payload, how)], self.handlers)
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
        try:
            return make_task(kind if isinstance(kind, str) else self.handlers.kind_of(kind), payload, **how)
        except TypeError:
            check_options(how, AddOptions, "a task cannot be added with {}: besides within= there are {}")
            raise

    def _announce(self, tasks: Sequence[NewTask], added: Sequence[Added]) -> None:
        self._unhandled.look_at(tasks)
        if self.observers:
            pairs = zip(tasks, added, strict=True)
            self.tell([TaskAdded(self.name, task.kind, one.key, one.id, one.new) for task, one in pairs])

    # --- looking ----------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Task | None:
        """The task with this key."""
        if not isinstance(key, str):  # None would ask nothing, and find any task
            raise UsageError(f"a key is text, not {key!r:.80}: get_by_id takes an id")
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
        if not isinstance(filter, Filter):
            raise UsageError(f"tasks are found by a Filter, such as Filter(state=State.DEAD), not by {filter!r:.80}")
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
        check_options(how, ActOptions, "no act takes {}: besides actor= and reason= there are {}")
        acted = await (await self.acts()).act(act, end, which, actor, **how)
        if acted.changed:
            await self.count_soon()
        return acted

    async def cancel_running(self, which: Names, *, actor: str, reason: str) -> Acted:
        """Ask running tasks to end as cancelled; `changed` are those that were asked.

        An async handler is cancelled at its next await, a thread is told through `context.cancelled`. The task ends as cancelled by
        this person, or as it would have if it ended first; the history tells which.
        """
        return await cancel_running(await self.ledger(), which, Actor(name=actor, reason=reason))

    async def unknown_effects(
        self, *, needs_person: bool = True, cursor: str | None = None, limit: int = 100
    ) -> Page[UnknownEffect]:
        """A page of tasks whose effects may or may not have happened: those that need a person, or whose probe is still being asked."""
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
