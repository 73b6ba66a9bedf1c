"""The rules of endpoints that hold on every store: which events go there, what a secret is, what switching one writes. Pure."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Any

from redrive.errors import UsageError
from redrive.operator.words import redact
from redrive.systems.triggers.values import EndpointState

ENDPOINTS_PER_USER_MAX = 100
NOTICES_PER_USER_MAX = 100
SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin, not one
SECRET_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
OLD_SECRET_LASTS = timedelta(hours=24)
"""How long the secret before the current one signs too, so that a receiver can change over without a gap."""
FAILING_MAX = timedelta(days=5)
"""An endpoint that has only failed for so long is disabled."""


def matches(patterns: Sequence[str], event_type: str) -> bool:
    """Whether an event of this type goes to an endpoint with these patterns; `*` stands for any text."""
    return any(_fits(pattern, event_type) for pattern in patterns)


def _fits(pattern: str, text: str) -> bool:
    # Not a regular expression: a user's pattern with many stars would take it for ever.
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    *middle, last = others
    if not text.startswith(first):
        return False
    at = len(first)
    for part in middle:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - at >= len(last) and text.endswith(last)


def new_secret() -> str:
    """A new signing secret."""
    return SECRET_PREFIX + b64encode(token_bytes(SECRET_BYTES)).decode()


def check_secret(secret: str) -> str:
    """The secret, if it can sign, else a `UsageError`."""
    try:
        raw = b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        raw = b""
    if not secret.startswith(SECRET_PREFIX) or not SECRET_BYTES_MIN <= len(raw) <= SECRET_BYTES_MAX:
        raise UsageError(
            f"a secret is {SECRET_PREFIX} and the base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes"
        )
    return secret


BY_OWNER = "switched off by its owner"
BY_OPERATOR = "switched off by an operator: {}"
SWITCHED_ON: Mapping[str, Any] = {
    "enabled": True, "disabled_at": None, "disabled_reason": None, "disabled_by": None, "failing_since": None,
}  # fmt: skip
"""What is written when an endpoint is switched on: whoever does it means a fresh start."""


def switched_off(now: datetime, reason: str, *, by: str | None = None) -> dict[str, Any]:
    """What is written when an endpoint is switched off, by somebody or, without a name, by its failures."""
    return {"enabled": False, "disabled_at": now, "disabled_reason": reason, "disabled_by": by}


def switch_notice(url: str, reason: str, *, enabled: bool) -> str:
    """What an owner is told when an operator switches an endpoint."""
    return f"the endpoint {url} was {'enabled' if enabled else 'disabled'} by an operator: {reason}"


def disable_notice(url: str, reason: str) -> str:
    """What an owner is told when its failures switch an endpoint off."""
    return f"the endpoint {url} was disabled: {reason}"


def state_of(
    created_at: datetime, failing_since: datetime | None, disabled_at: datetime | None
) -> tuple[EndpointState, datetime]:
    """The state of an endpoint, and since when it is in it."""
    if disabled_at is not None:
        return "disabled", disabled_at
    return ("enabled", created_at) if failing_since is None else ("failing", failing_since)


def shown_url(url: str) -> str:
    """The URL without what may be a secret: its query, and what looks like a token in its path."""
    bare, asks, _ = url.partition("#")[0].partition("?")
    scheme, _, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return redact(f"{scheme}://{host.rpartition('@')[2]}{slash}{path}") + ("?…" if asks else "")


class TooManyEndpointsError(UsageError):
    """The user has as many endpoints as one may have."""

    def __init__(self) -> None:
        super().__init__(f"a user has at most {ENDPOINTS_PER_USER_MAX} endpoints: delete one first")
