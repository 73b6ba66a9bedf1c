"""Which of a gate's due tasks go first: by priority, retries before first tries, and tenants in turn. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redrive.errors import UsageError

TENANTS = "*"
"""The tenant of a gate that several share."""
NO_TENANT = ""
"""The tenant of a gate whose tasks have none."""
BANDS = 6
"""High retries, high first tries, normal retries, and so on down to low first tries: level * 2, and one more for a first try."""
SURE_PERCENT = (0, 25, 10, 25, 10, 10)
"""What each band is sure of. In all 80 %: the rest is for whoever stands highest."""
FAVOURED = (3, 1, 5, 3, 1, 4, 3, 1, 2, 3, 1, 5, 3, 1, 4, 2, -1, -1, -1, -1)
"""Whose turn it is to go first of all, drawn for each claim: a room of one cannot be shared otherwise."""


class Priority(StrEnum):
    """What goes before the due time."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def level(self) -> int:
        """The number that rows hold."""
        return list(Priority).index(self)


def read_priority(priority: str) -> Priority:
    """One of the three levels."""
    try:
        return Priority(priority)
    except ValueError:
        raise UsageError(f"priority must be high, normal or low, not {priority!r}") from None


@dataclass(frozen=True, slots=True)
class DueRow:
    """A due row of a gate: whose turn it is in, its band, when it was due, and its id."""

    turn: int
    band: int
    due: Any
    id: Any


def in_order(rows: Iterable[DueRow], room: int, retries: int, favoured: int = -1) -> list[DueRow]:
    """Up to `room` of the due rows of a gate; at most so many retries.

    Tenants of a gate that they share take turns. Each has first one of the favoured band, then what each band is sure of, then by
    band and due time.
    """
    places: dict[tuple[int, int], int] = defaultdict(int)
    of_turn: dict[int, list[tuple[bool, bool, int, int, DueRow]]] = defaultdict(list)
    for row in sorted(rows, key=lambda one: (one.band, one.due, one.id)):
        if row.band % 2 == 0:
            retries -= 1
            if retries < 0:
                continue
        places[row.turn, row.band] += 1
        place = places[row.turn, row.band]
        sure = place <= room * SURE_PERCENT[row.band] // 100
        of_turn[row.turn].append((not (row.band == favoured and place == 1), not sure, row.band, place, row))
    ranked = []
    for turn, mine in of_turn.items():
        mine.sort(key=lambda one: one[:4])
        ranked += [(nth, turn, one[-1]) for nth, one in enumerate(mine)]
    ranked.sort(key=lambda one: one[:2])
    return [row for _, _, row in ranked[:room]]


def around(tenants: Iterable[str], last: str) -> list[str]:
    """Tenants in the order of their turns: from behind the one that was served last, once around."""
    return sorted(tenants, key=lambda one: (one <= last, one))


def mostly_gated(gates: Iterable[str | None], limit: int) -> bool:
    """Whether more than half of a claim of up to `limit` had gates: in the next one those without go first."""
    return 2 * sum(gate is not None for gate in gates) > limit
