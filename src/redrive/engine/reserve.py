"""Slots beside those of a worker, for tenants that have less than their share of it.

Turns between tenants are of no help while every slot hangs for one of them. So a worker whose slots are all taken still claims for
others, into a reserve, and names those that are busy here. It knows that without asking anybody. Without tenants it has no reserve.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from redrive.core.task import Claim
from redrive.engine.gate_looks import EVERY_SECONDS, WOKEN_EVERY_SECONDS


class Reserve:
    """The reserve of one worker, and when it looks for who may use it: after a wake-up, and twice a second."""

    def __init__(self, slots: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = max(1, slots // 4)
        self.in_use = False
        """Whether a tenant was seen here."""
        self._clock = clock
        self._at = -math.inf
        self._looked_at = -math.inf

    def see(self, claims: Sequence[Claim]) -> None:
        """Claims behind gates: some may have a tenant."""
        self.in_use = self.in_use or any(claim.task.tenant is not None for claim in claims)

    def soon(self) -> None:
        """Something may have come."""
        self._at = min(self._at, self._looked_at + WOKEN_EVERY_SECONDS)

    @property
    def wait_seconds(self) -> float:
        """How long until the next look; none is needed before a wake-up."""
        return max(0.0, min(EVERY_SECONDS, self._at - self._clock()))

    def looked(self, claims: Sequence[Claim]) -> None:
        """What a look gave. After one that gave something the next follows at once."""
        self._looked_at = self._clock()
        self._at = -math.inf if claims else self._looked_at + EVERY_SECONDS

    def portion(self, left: int, running: Iterable[Claim]) -> tuple[int, list[str]]:
        """How many to claim where so many places are left, and which tenants have their share.

        One that has it gets no more, and one claim does not take all: the next tenant that hangs must find a place too.
        """
        held = Counter(claim.task.tenant for claim in running if claim.task.tenant is not None)
        share = max(1, self.size // (len(held) + 1))
        return min(left, share), [tenant for tenant, amount in held.items() if amount >= share]
