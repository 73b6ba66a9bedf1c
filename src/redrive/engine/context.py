"""What a handler may ask for beside its task."""

from dataclasses import dataclass, field
from typing import Any

from redrive.core.effect import effect_key
from redrive.core.task import Claim
from redrive.engine.effect_entry import EffectEntry
from redrive.errors import UsageError
from redrive.ports import Ledger


@dataclass(slots=True, kw_only=True)
class Context:
    """What a handler may ask for as its second parameter."""

    claim: Claim
    attempts_max: int
    """How many tries the task has in all."""
    connection: Any = None
    """The open transaction's connection, for transactional handlers only."""
    ledger: Ledger | None = field(default=None, repr=False)
    entry: EffectEntry | None = field(default=None, repr=False)

    @property
    def attempt(self) -> int:
        """Which try this is, counted from one."""
        return self.claim.number

    @property
    def effect_key(self) -> str:
        """The same for every try of the task, and for no other task: the idempotency key to send."""
        if self.ledger is None:
            raise UsageError("only a handler that redrive runs has a key for its effect")
        return effect_key(self.ledger.name, self.claim.task)

    def effect(self) -> EffectEntry:
        """What is done inside may have happened from here on, whatever becomes of this process.

            async with context.effect():
                await bank.transfer(..., idempotency_key=context.effect_key)

        The mark is durable before the body runs. A try that ends inside without an answer is not tried again before the probe
        of its `Effect`, or a person, has said whether it happened. A plain handler says `with context.effect():`.
        """
        if self.entry is None:
            raise UsageError(
                "register the handler with effect=Effect(probe=…): nobody could find out whether it happened"
            )
        return self.entry
