"""How senders sign, and how a signature is checked: over the raw bytes, in constant time, with every secret that is valid now.

- `standard`: Standard Webhooks, by its own library (`webhook-id`, `webhook-timestamp`, `webhook-signature`).
- `github`: `X-Hub-Signature-256: sha256=…`, an HMAC-SHA256 of the body. It carries no time.
- `stripe`: `Stripe-Signature: t=…,v1=…`, an HMAC-SHA256 of the time, a dot and the body.

Where a signature carries its time it must lie within five minutes of ours, before or after.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from redrive.errors import MissingExtraError, SettingsError

if TYPE_CHECKING:
    from standardwebhooks import Webhook

TOLERANCE = timedelta(minutes=5)
SIGNATURES_MAX = 20
"""How many signatures a header may list: senders that rotate send two."""
SECONDS_DIGITS_MAX = 11
"""Until the year 5138; with one digit more the calendar can end."""


class SignatureError(Exception):
    """A signature that does not fit; the text says why and tells nothing of the secret."""


Verify = Callable[[bytes, Mapping[str, str], datetime], None]
"""Checks a body with its headers, at this time; raises `SignatureError`."""


def make_verifier(scheme: str, secrets: Sequence[str]) -> Verify:
    """How signatures of this scheme are checked, with one or more secrets that are valid at once."""
    match scheme:
        case "github":
            keys = [secret.encode() for secret in secrets]
            return lambda body, headers, _: _github(keys, body, headers)
        case "stripe":
            keys = [secret.encode() for secret in secrets]
            return lambda body, headers, now: _stripe(keys, body, headers, now)
        case "standard":
            checkers = [_standard_webhook(secret) for secret in secrets]
            return lambda body, headers, _: _standard(checkers, body, headers)
        case _:
            raise SettingsError(f"there is no signature scheme {scheme!r}: use standard, github or stripe")


def _github(keys: Sequence[bytes], body: bytes, headers: Mapping[str, str]) -> None:
    given = _header(headers, "X-Hub-Signature-256")
    _check_any([f"sha256={_hmac_sha256(key, body)}" for key in keys], [given])


def _stripe(keys: Sequence[bytes], body: bytes, headers: Mapping[str, str], now: datetime) -> None:
    parts = [part.strip().partition("=") for part in _header(headers, "Stripe-Signature").split(",")[:SIGNATURES_MAX]]
    times = [value for name, _, value in parts if name == "t"]
    given = [value for name, _, value in parts if name == "v1"]
    # As it was signed: `float` would read more spellings than the sender writes.
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal() and len(times[0]) <= SECONDS_DIGITS_MAX):
        raise SignatureError("the header Stripe-Signature must hold one time, t=seconds since 1970")
    age = now - datetime.fromtimestamp(int(times[0]), UTC)
    _check_any([_hmac_sha256(key, times[0].encode() + b"." + body) for key in keys], given)
    if abs(age) > TOLERANCE:
        raise SignatureError(f"the signature is {'old' if age > timedelta(0) else 'from the future'}: sign it again")


def _standard_webhook(secret: str) -> "Webhook":
    try:
        from standardwebhooks import Webhook
    except ModuleNotFoundError as error:
        raise MissingExtraError("the signature scheme `standard`", "service") from error
    try:
        return Webhook(secret)
    except Exception:  # a base64 error of the library would show the secret
        raise SettingsError("a secret of Standard Webhooks is base64, such as whsec_…") from None


def _standard(checkers: Sequence["Webhook"], body: bytes, headers: Mapping[str, str]) -> None:
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    given = {name: _header(headers, name) for name in names}
    if given["webhook-signature"].count(" ") >= SIGNATURES_MAX:
        raise SignatureError(f"more than {SIGNATURES_MAX} signatures")
    why = ""
    for checker in checkers:
        try:
            checker.verify(body, given, json_parse=False)
        except Exception as error:  # the library raises what its parsers raise: all of it means that it does not fit
            why = str(error) if type(error).__name__ == "WebhookVerificationError" else "it cannot be read"
        else:
            return
    raise SignatureError(f"the signature does not match: {why}")


def _header(headers: Mapping[str, str], name: str) -> str:
    given = headers.get(name)
    if not given:
        raise SignatureError(f"the header {name} is missing")
    return given


def _hmac_sha256(key: bytes, message: bytes) -> str:
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _check_any(expected: Sequence[str], given: Sequence[str]) -> None:
    """Every pair is compared, each in constant time: how long it takes does not tell which secret was nearly right."""
    fits = [hmac.compare_digest(one.encode(), other.encode()) for one in expected for other in given]
    if not any(fits):
        raise SignatureError("the signature does not match")
