"""The way into an effect and out again: the mark is durable before the body runs.

What follows from what happened there is decided in `core.effect`.
"""

import asyncio
from types import TracebackType
from typing import Self

from redrive.core.decide import Settlement
from redrive.core.effect import DEFINITE, Effect, after_try
from redrive.core.effect_mark import EffectMark, MarkState
from redrive.core.policy import Policy
from redrive.core.task import Claim
from redrive.errors import NotHappened, StaleError, UsageError
from redrive.ports import EffectMarks


class EffectEntry:
    """The way of one try into its effect and out again: what `context.effect()` gives.

    `async with` it in an async handler, `with` it in a plain one, which runs in a thread. Once in each try.
    """

    def __init__(self, marks: EffectMarks, claim: Claim) -> None:
        self._marks = marks
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._mark: EffectMark | None = None
        self._asked = False
        self._raised: BaseException | None = None

    async def __aenter__(self) -> Self:
        if self._asked:
            raise UsageError("a try has one effect, which is entered once: make another task for the second")
        self._asked = True
        self._mark = await self._marks.enter(self._claim)
        if self._mark is None:
            raise StaleError("somebody else owns this task now, so its effect was not begun")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raised = error

    def __enter__(self) -> Self:
        return asyncio.run_coroutine_threadsafe(self.__aenter__(), self._loop).result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raised = error

    @property
    def entered(self) -> bool:
        """Whether the effect may have happened."""
        return self._mark is not None

    def conclude(self, settlement: Settlement, effect: Effect, policy: Policy, *, definite: bool) -> Settlement:
        """The settlement with what it says of the effect; `definite` says that its handler has returned an answer."""
        if self._mark is not None:
            definite = definite or (self._raised is not None and is_definite(self._raised, policy))
            return after_try(settlement, self._mark, effect, definite=definite)
        if not self._asked:
            return settlement
        # Whether the mark was written is not known, but nothing was done under it.
        at = self._claim.claimed_at
        mark = EffectMark(state=MarkState.INSIDE, claim_id=self._claim.claim_id, first_at=at, entered_at=at)
        return after_try(settlement, mark, effect, definite=True)


def is_definite(error: BaseException, policy: Policy) -> bool:
    """Whether an error that left an effect says that it did not happen: because a rule of the policy knows it as an answer."""
    if isinstance(error, NotHappened):
        return True
    if isinstance(error, asyncio.CancelledError):
        return False
    error_class, rule = policy.classify(error)
    return error_class in DEFINITE and rule != "otherwise"
