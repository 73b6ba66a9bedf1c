"""What a worker holds: a claim, and the run of one."""

import asyncio
from dataclasses import dataclass, field

from redrive.core.task import Claim
from redrive.engine.handlers import Handler


@dataclass(slots=True, eq=False)
class Held:
    """A claim, and when it was last extended."""

    claim: Claim
    extended_at: float
    lost: bool = field(default=False, kw_only=True)


@dataclass(slots=True, eq=False)
class HeldRun(Held):
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
