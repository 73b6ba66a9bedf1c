"""Cursors: where the next page begins, signed, and good only for the user and the filter that they were given for.

The secret stands in the store, so that all processes read each other's cursors, also after a restart.
"""

import base64
import hashlib
import hmac
import json

from redrive.systems.triggers.ports import CursorSecret

CURSOR_CHARS_MAX = 500
_SIGNATURE_BYTES = 16


class Cursors:
    """Writes and reads cursors."""

    def __init__(self, shared: CursorSecret) -> None:
        self._shared = shared
        self._secret: bytes | None = None

    async def write(self, after: str, *bound_to: str | None) -> str:
        """A cursor behind this id, for whoever asks for the same again."""
        sealed = self._seal(await self._key(), after, bound_to)
        return base64.urlsafe_b64encode(sealed + after.encode()).rstrip(b"=").decode()

    async def read(self, cursor: str, *bound_to: str | None) -> str | None:
        """The id behind which the page begins; None for a cursor that was not written for this."""
        if len(cursor) > CURSOR_CHARS_MAX:
            return None
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            seal, after = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:].decode()
        except ValueError:
            return None
        good = hmac.compare_digest(seal, self._seal(await self._key(), after, bound_to))
        return after if good else None

    @staticmethod
    def _seal(key: bytes, after: str, bound_to: tuple[str | None, ...]) -> bytes:
        said = json.dumps([after, *bound_to]).encode()
        return hmac.digest(key, said, hashlib.sha256)[:_SIGNATURE_BYTES]

    async def _key(self) -> bytes:
        if self._secret is None:
            self._secret = bytes.fromhex(await self._shared.read())
        return self._secret
