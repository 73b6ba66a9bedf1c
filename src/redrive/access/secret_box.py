"""Secrets that must be read again, such as those that sign: kept encrypted, with keys that lie elsewhere than the store.

Nothing here knows where secrets or keys are kept. What is sealed says so by how it begins; a text that does not was stored before there
was a key, and is read as it is until somebody seals it. The first key seals, every key opens: that is how keys are changed.
"""

from collections.abc import Sequence
from functools import lru_cache

from redrive.errors import SettingsError, needs_extra

with needs_extra("keeping secrets", "service"):
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet

MARK = "sealed:"
OPENED_MAX = 4096
"""How many secrets are remembered once they were opened: opening one takes 30 µs, and a delivery needs one each time."""


def new_key() -> str:
    """A new key, random, as text."""
    return Fernet.generate_key().decode()


def is_sealed(stored: str) -> bool:
    """Whether a stored text is encrypted."""
    return stored.startswith(MARK)


class CannotOpenError(SettingsError):
    """A stored secret was sealed with a key that is not among those given."""


class SecretBox:
    """Seals secrets with the first of its keys, and opens what any of them has sealed."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys:
            raise SettingsError("a box without a key opens nothing: give at least one")
        fernets = [Fernet(key) for key in keys]
        self._first = fernets[0]
        self._all = MultiFernet(fernets)
        self.open = lru_cache(OPENED_MAX)(self._open)

    def seal(self, secret: str) -> str:
        """The secret, encrypted."""
        return MARK + self._first.encrypt(secret.encode()).decode()

    def _open(self, stored: str) -> str:
        """The secret in what is stored; a text that was never sealed is one."""
        if not is_sealed(stored):
            return stored
        try:
            return self._all.decrypt(stored.removeprefix(MARK)).decode()
        except (InvalidToken, ValueError):
            raise CannotOpenError("a stored secret was encrypted with a key that is no longer given here") from None

    def is_current(self, stored: str) -> bool:
        """Whether it is sealed with the first key, so that the others are not needed for it."""
        if not is_sealed(stored):
            return False
        try:
            self._first.decrypt(stored.removeprefix(MARK))
        except (InvalidToken, ValueError):
            return False
        return True
