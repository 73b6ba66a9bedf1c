"""What everybody shares who keeps items of their own beside the ledger's: the table, and a clock."""

from datetime import datetime

from redrive.ledgers.aws.client import Dynamo
from redrive.ports import Clock

KEY_BYTES_MAX = 1024
"""The most that a sort key holds."""


class OnTable:
    """Whoever keeps items in a table."""

    def __init__(self, dynamo: Dynamo, *, clock: Clock | None = None) -> None:
        self._dynamo = dynamo
        self._clock: Clock = clock or dynamo.clock

    def _now(self) -> datetime:
        return self._clock.now()


def fits_key(text: str) -> bool:
    """Whether a text could be the key of an item; where it could not, there is none."""
    try:
        return 0 < len(text.encode()) <= KEY_BYTES_MAX
    except UnicodeEncodeError:
        return False
