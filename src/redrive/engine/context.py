"""What a handler may ask for beside its task."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from redrive.core.effect import effect_key
from redrive.core.task import Claim
from redrive.engine.effect_entry import EffectEntry
from redrive.engine.progress import RunProgress, SavedCheckpoint, Told
from redrive.engine.stops import Stops
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
    stops: Stops | None = field(default=None, repr=False)
    loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)
    told: RunProgress | None = field(default=None, repr=False)
    """What the run has told of itself, once it has."""

    @property
    def attempt(self) -> int:
        """Which try this is, counted from one."""
        return self.claim.number

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants this run to end: for threads, and for loops that do not await. Return when it is so.

        The task is then cancelled, whatever is returned.
        """
        return self.stops is not None and self.stops.tell(self.claim)

    @property
    def effect_key(self) -> str:
        """The same for every try of the task, and for no other task: the idempotency key to send."""
        if self.ledger is None:
            raise UsageError("only a handler that redrive runs has a key for its effect")
        return effect_key(self.ledger.name, self.claim.task)

    def progress(self, share: float, words: str = "") -> Told:
        """Tell how far this run has come: `await context.progress(0.4, "page 2 of 5")`. A plain handler just calls it.

        Shown on the task's page. Written at most once a second, whatever is told last.
        """
        return self._progress().tell(share, words)

    @property
    def checkpoint(self) -> SavedCheckpoint:
        """What the tries before have left: `await context.checkpoint`, or `context.checkpoint.get()` in a plain handler.

        Set it to leave something for the next try, any JSON up to 64 KiB: `context.checkpoint = {"page": 3}`. Written at most once
        a second, and when the run ends; a process that is killed loses no more than that second.
        """
        return SavedCheckpoint(self._progress())

    @checkpoint.setter
    def checkpoint(self, value: Any) -> None:
        self._progress().save(value)

    def _progress(self) -> RunProgress:
        if self.told is None:
            if self.connection is not None:
                raise UsageError("a transactional handler ends whole or not at all: it has no progress to keep")
            if self.ledger is None or self.loop is None or self.ledger.progress is None:
                raise UsageError("no progress can be kept here: keep such tasks in a table of SQLite or PostgreSQL")
            self.told = RunProgress(self.ledger.progress, self.claim, self.loop)
        return self.told

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
