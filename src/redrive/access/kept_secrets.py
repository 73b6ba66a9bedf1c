"""How stored secrets are kept: counted, and judged one by one. Where they are stored is the business of whoever goes through them."""

from collections.abc import Callable
from dataclasses import dataclass

from redrive.access.secret_box import CannotOpenError, SecretBox, is_sealed

Progress = Callable[[int], None]
"""Is told after each block how many secrets it held."""


@dataclass(slots=True, kw_only=True)
class KeptSecrets:
    """How many secrets there are, and how they are kept."""

    total: int = 0
    plain: int = 0
    """In the clear."""
    unreadable: int = 0
    """Sealed with a key that is not given."""
    older: int = 0
    """Sealed with a key that is not the first."""
    changed: int = 0
    """Sealed anew by this rotation."""

    def judge(self, stored: str, box: SecretBox | None) -> bool:
        """Count a secret; whether it can be sealed anew and is not sealed with the first key."""
        self.total += 1
        if not is_sealed(stored):
            self.plain += 1
            return True
        if box is None:
            self.unreadable += 1
            return False
        if box.is_current(stored):
            return False
        try:
            box.open(stored)
        except CannotOpenError:
            self.unreadable += 1
            return False
        self.older += 1
        return True
