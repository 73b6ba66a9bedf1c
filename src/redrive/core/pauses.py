"""Pauses of kinds: a person stops all work of a kind, or of a whole ledger, whether its tasks have gates or not.

Such a pause is kept like that of a gate, under a name that no gate can have: `kind:mail`, `kind:mail.*`, or `kind:*` for the whole
ledger. What runs ends, what waits waits, and adding goes on. Workers leave paused kinds out of what they claim.
"""

from collections.abc import Iterable, Sequence

from redrive.core.gate_rules import fits
from redrive.core.task import PAUSED_KIND

KIND = PAUSED_KIND
EVERYTHING = "kind:*"
"""The pause of a whole ledger."""


def is_of_kinds(name: str) -> bool:
    """Whether a name is that of a pause, and not of a gate."""
    return name.startswith(KIND)


def pausing(names: Iterable[str], kind: str) -> str | None:
    """The pause that holds tasks of this kind, the widest first; None if there is none."""
    held = [name for name in names if is_of_kinds(name) and fits(name.removeprefix(KIND), kind)]
    return min(held, key=lambda name: (name != EVERYTHING, "*" not in name, name), default=None)


def without_paused(kinds: list[str], names: Sequence[str]) -> list[str]:
    """Those of the kinds that nobody has paused."""
    return [kind for kind in kinds if pausing(names, kind) is None]
