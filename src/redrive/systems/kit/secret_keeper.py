"""Sealing and opening the secrets of one database, with the keys of the environment or of the file beside it.

Keys are looked for when a secret is to be sealed or opened, and not before: who keeps none needs none. They are looked for again when a
secret does not open, as somebody may have put a new key into the file since.
"""

from pathlib import Path

from redrive.access.secret_box import CannotOpenError, SecretBox, is_sealed, new_key
from redrive.access.secret_keys import make_key_file, read_key_file, read_keys
from redrive.errors import SettingsError
from redrive.settings import Settings, load

NO_KEY = (
    "secrets are kept encrypted, and there is no key for them: set REDRIVE_SECRET_KEY for every process of this service; "
    "`redrive secrets new-key` makes one"
)


class SecretKeeper:
    """Keeps the secrets of a database; `file` is that database, where it is one."""

    def __init__(self, file: Path | None) -> None:
        self.file = None if file is None else file.with_name(f"{file.name}.key")
        """Where the keys may lie beside the environment; None where no file can."""
        self._box: SecretBox | None = None

    def seal(self, secret: str) -> str:
        """The secret as it is stored. Makes the first key, where a file may hold it."""
        return self.box(make=True).seal(secret)

    def open(self, stored: str) -> str:
        """The secret in what is stored."""
        if not is_sealed(stored):
            return stored
        try:
            return self.box().open(stored)
        except CannotOpenError:
            self._box = None
            return self.box().open(stored)

    def box(self, *, make: bool = False) -> SecretBox:
        """The box with all keys; a `SettingsError` with the remedy where there is none."""
        if self._box is None:
            keys = self._keys()
            if not keys and make and self.file is not None:
                make_key_file(self.file, new_key())
                keys = self._keys()
            if not keys:
                raise SettingsError(NO_KEY)
            self._box = SecretBox(keys)
        return self._box

    def has_key(self) -> bool:
        """Whether there is a key now."""
        return bool(self._keys())

    def _keys(self) -> list[str]:
        given = load(Settings).redrive_secret_key
        keys = [] if given is None else read_keys(given.get_secret_value())
        if self.file is not None:
            keys += read_keys(read_key_file(self.file) or "")
        return list(dict.fromkeys(keys))
