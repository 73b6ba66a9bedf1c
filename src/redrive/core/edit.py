"""A change of payloads: a JSON Patch (RFC 6902) or a new payload, tried on a copy, and shown as a difference."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonpatch
import jsonpointer

from redrive.core.task import encode_payload
from redrive.errors import EditError, PayloadError, UsageError

OPS_MAX = 50
"""How many changes one patch makes."""
PATCH_BYTES_MAX = 64 * 1024
CHANGES_MAX = 200
"""How many changes of one payload are shown."""
_NOTHING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadChange:
    """One difference between two payloads. What is not there on one side is None there, and `op` says so."""

    op: str
    """`add`, `remove`, `replace` or `move`."""
    path: str
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True)
class Edit:
    """What is to be changed in each payload: `patch` is a list of operations, `payload` a whole new one. One of both."""

    patch: Sequence[Mapping[str, Any]] | None = None
    payload: Any = None

    def __post_init__(self) -> None:
        if self.patch is None:
            encode_payload(self.payload)
            return
        if not isinstance(self.patch, list | tuple) or not 1 <= len(self.patch) <= OPS_MAX:
            raise UsageError(f"a patch is a list of 1 to {OPS_MAX} operations, as RFC 6902 has them")
        encode_payload(self.patch, PATCH_BYTES_MAX)
        try:
            jsonpatch.JsonPatch(list(self.patch))
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, AttributeError) as error:
            raise UsageError(f"this is not a JSON Patch (RFC 6902): {error}") from None

    def apply(self, payload: Any) -> Any:
        """The payload after the edit; `EditError` where it does not fit. What was given is not changed.

        A payload that is kept as text is read as JSON, and is text again.
        """
        text = isinstance(payload, str)
        if self.patch is None:
            return encode_payload(self.payload) if text else self.payload
        if text:
            try:
                payload = json.loads(payload)
            except ValueError:
                raise EditError("the payload is not JSON") from None
        try:
            for one in (
                self.patch
            ):  # one after the other: each copy may double the payload, and the limit is looked at between them
                payload = jsonpatch.apply_patch(payload, [one])
                encoded = encode_payload(payload)
        except (
            jsonpatch.JsonPatchException,
            jsonpointer.JsonPointerException,
            PayloadError,
            TypeError,
            KeyError,
        ) as error:
            raise EditError(f"the patch cannot be applied: {_first_line(error)}") from None
        return encoded if text else payload

    def as_json(self) -> dict[str, Any]:
        """For the store; `read_edit` reads it."""
        return {"payload": self.payload} if self.patch is None else {"patch": list(self.patch)}


def read_edit(stored: Mapping[str, Any] | None) -> Edit | None:
    """An edit as `as_json` wrote it."""
    return None if stored is None else Edit(stored.get("patch"), stored.get("payload"))


def difference(before: Any, after: Any) -> list[PayloadChange]:
    """What has changed from one payload to the other, in the order of a JSON Patch."""
    before, after = _parsed(before), _parsed(after)
    changes = []
    for one in jsonpatch.make_patch(before, after).patch[:CHANGES_MAX]:
        was = _at(before, one.get("from", one["path"]))
        becomes = one["value"] if "value" in one else _at(after, one["path"]) if one["op"] == "move" else None
        changes.append(PayloadChange(op=one["op"], path=one["path"] or "/", before=was, after=becomes))
    return changes


def _parsed(payload: Any) -> Any:
    """A payload that is kept as text, as the JSON that it holds."""
    if isinstance(payload, str):
        try:
            return json.loads(payload)
        except ValueError:
            return payload
    return payload


def _at(payload: Any, path: str) -> Any:
    found = jsonpointer.resolve_pointer(payload, path, _NOTHING)
    return None if found is _NOTHING else found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
