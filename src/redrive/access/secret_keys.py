"""The keys that secrets are encrypted with: how they are written, and the file beside a SQLite database that may hold them.

The file is for its owner alone. It is made when the first secret is kept, and not before.
"""

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from redrive.errors import SettingsError

MODE = 0o600
_KEY = re.compile(r"[A-Za-z0-9+/_-]{43}=?")


def read_keys(written: str) -> list[str]:
    """The keys in a text, with commas or white space between them, the first of which seals."""
    keys = [key for key in re.split(r"[,\s]+", written) if key]
    if not all(_KEY.fullmatch(key) for key in keys):
        raise SettingsError(
            "a key for secrets is the base64 of 32 random bytes: `redrive secrets new-key` makes one; several are "
            "separated by commas, the one that encrypts first"
        )
    return [key.rstrip("=").replace("+", "-").replace("/", "_") + "=" for key in keys]


def read_key_file(file: Path) -> str | None:
    """What the file holds; None where there is none."""
    try:
        return file.read_text("ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the keys in {file} cannot be read ({error}): correct the file, or set REDRIVE_SECRET_KEY"
        ) from error


def make_key_file(file: Path, key: str) -> None:
    """Make the file with this key, whole and on disk, unless somebody else was quicker: then theirs stands."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODE), "w", encoding="ascii") as written:
            written.write(f"{key}\n")
            written.flush()
            os.fsync(written.fileno())
        with suppress(FileExistsError):
            os.link(draft, file)
        # Before anything is encrypted with it: a power cut must not leave secrets that nothing opens.
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise SettingsError(
            f"no key can be kept in {file} ({error}): make the folder writable, or set REDRIVE_SECRET_KEY"
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def is_private(file: Path) -> bool:
    """Whether nobody but its owner may read it."""
    return not file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
