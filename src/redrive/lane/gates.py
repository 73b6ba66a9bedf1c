"""What can be asked and done about the gates of a lane: limits from code and from people, pauses, and what is kept back."""

from datetime import datetime

from redrive.core.durations import ZERO, Span
from redrive.core.gate_rules import Breaker, GateRule, read_rule
from redrive.core.task import GATE_CHARS_MAX, Task, check_text
from redrive.errors import StaleError, UsageError
from redrive.operator.gates import KEEP, GateDoes, GateView, Keep, ParkedTask, changed_rule, read_does
from redrive.operator.ports import Gates, OperatorLedger
from redrive.ports import Actor, Page
from redrive.stores.port import Store

CHANGE_TRIES_MAX = 5
"""How often a change of some limits is tried again because others were changed meanwhile."""


class GatedLane:
    """The part of a `Lane` that is about gates."""

    _store: Store
    _gate_rules: dict[str, GateRule]
    """Limits from code that the ledger has not been told yet."""

    async def ledger(self) -> OperatorLedger:
        """See `Lane.ledger`."""
        raise NotImplementedError

    async def _write_rules(self, ledger: OperatorLedger) -> None:
        for pattern, rule in list(self._gate_rules.items()):
            await ledger.set_rule(pattern, rule, Actor(name="code"), by_code=True)
            self._gate_rules.pop(pattern, None)  # only then: a store that was away is told when it is back

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
        down. `budget` is how many retries are allowed, as a share of first tries. What is kept back is not charged. The limits are written when the
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

        `kind:mail` or `kind:mail.*` pauses kinds, and `kind:*` the whole ledger, whether or not their tasks have gates. Running tasks
        finish, waiting ones wait, and tasks can still be added. `version` is that of the view that the person saw: a `StaleError` if somebody has changed it since.
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
        """Resume a paused gate, kind or ledger; whether it was changed. The parameters are those of `pause_gate`."""
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
        """Remove the limits of a pattern, so that a wider one applies or none; whether there were any. Limits from code come back when it next opens."""
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
