"""Senders that sign, as `redrive.toml` describes them.

    [webhooks.sources.github]
    scheme = "github"
    secrets = ["GITHUB_SECRET", "GITHUB_SECRET_OLD"]    # names of environment variables, not the secrets

Where the identity and the event type stand has a default in each scheme, and can be said as `header:NAME` or
`json:path.to.it`. What is wrong here stops the start.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from redrive.errors import SettingsError
from redrive.settings import span, variable
from redrive.systems.webhooks.signatures import Verify, make_verifier

SECRETS_MAX = 4
SECRET_CHARS_MIN = 8
PATH_PARTS_MAX = 10
DEFAULTS = {
    "standard": ("header:webhook-id", "json:type"),
    "github": ("header:X-GitHub-Delivery", "header:X-GitHub-Event"),
    "stripe": ("json:id", "json:type"),
}
"""Where each scheme's senders put the identity and the event type."""
SIGNED_HEADERS = {"standard": frozenset({"webhook-id"})}
"""The headers that a signature covers beside the body, by scheme: none in the others."""
REPLAY_WINDOW = timedelta(days=7)
"""For how long a body is remembered where its sender's identity is not signed, unless the source says otherwise."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: in a header, or in the JSON at a path."""

    header: str | None = None
    path: tuple[str, ...] = ()

    @classmethod
    def read(cls, written: Any) -> "Place":
        """From `header:NAME` or `json:path.to.it`."""
        where, _, name = written.partition(":") if isinstance(written, str) else ("", "", "")
        path = tuple(name.split("."))
        if where == "header" and _HEADER.fullmatch(name):
            return cls(header=name)
        if where == "json" and all(path) and len(path) <= PATH_PARTS_MAX:
            return cls(path=path)
        raise SettingsError(f"{written!r} is not a place: write header:NAME or json:path.to.it")

    def find(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
        """The value there, as text; None if there is none."""
        if self.header is not None:
            return headers.get(self.header)
        found: Any = body
        for part in self.path:
            found = found.get(part) if isinstance(found, dict) else None
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        return found if isinstance(found, str) else None

    def __str__(self) -> str:
        return f"header {self.header}" if self.header is not None else f"JSON path {'.'.join(self.path)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One sender: how it signs, and where the identity and the type of its events stand."""

    name: str
    verify: Verify
    """Raises `SignatureError` unless the body is signed by the sender, just now where that can be known."""
    identity: Place
    event_type: Place
    replay_window: timedelta = timedelta(0)
    """For how long a body is remembered, to know it again under another identity; zero where the identity is signed."""

    @classmethod
    def make(
        cls,
        name: str,
        scheme: str,
        secrets: list[str],
        *,
        identity: str | None = None,
        event_type: str | None = None,
        replay_window: timedelta | str | int = REPLAY_WINDOW,
    ) -> "Source":
        """A source in code; `secrets` are the secrets themselves, all of them valid.

        `replay_window` counts only where the identity stands in a header that the signature does not cover. A sender that
        sends equal bodies and means each of them needs zero.
        """
        if scheme not in DEFAULTS:
            raise SettingsError(f"scheme {scheme!r} is unknown: use {', '.join(DEFAULTS)}")
        if not _NAME.fullmatch(name):
            raise SettingsError(
                "a source's name may have lowercase letters, digits, - and _ only, because it is part of a path"
            )
        if not 1 <= len(secrets) <= SECRETS_MAX:
            raise SettingsError(f"secrets must list one to {SECRETS_MAX} secrets")
        if any(len(secret) < SECRET_CHARS_MIN for secret in secrets):
            raise SettingsError(f"a secret has {SECRET_CHARS_MIN} characters or more")
        usual = DEFAULTS[scheme]
        place = Place.read(identity or usual[0])
        is_signed = place.header is None or place.header.lower() in SIGNED_HEADERS.get(scheme, ())
        return cls(
            name=name,
            verify=make_verifier(scheme, secrets),
            identity=place,
            event_type=Place.read(event_type or usual[1]),
            replay_window=timedelta(0) if is_signed else _window(replay_window),
        )


def load_sources(file: Path) -> dict[str, Source]:
    """The sources in a configuration file by name; none where there is no file."""
    try:
        read = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from error
    tables = read.get("webhooks", {})
    tables = tables.get("sources", {}) if isinstance(tables, dict) else None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingsError(f"{file}: write each source as a table, [webhooks.sources.NAME]")
    sources = {}
    for name, table in tables.items():
        try:
            sources[name] = _source(name, table)
        except SettingsError as error:
            raise SettingsError(f"{file}: [webhooks.sources.{name}] cannot be used: {error}") from None
    return sources


def _source(name: str, table: dict[str, Any]) -> Source:
    known = {"scheme", "secrets", "identity", "event_type", "replay_window"}
    if unknown := sorted(set(table) - known):
        raise SettingsError(f"{', '.join(unknown)} is unknown: it may have {', '.join(sorted(known))}")
    scheme, names = table.get("scheme"), table.get("secrets")
    if scheme not in DEFAULTS:
        raise SettingsError(f"it must say its scheme: {', '.join(DEFAULTS)}")
    if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
        raise SettingsError('it must name the variables that hold its secrets: secrets = ["SHOP_WEBHOOK_SECRET"]')
    return Source.make(
        name, scheme, [_secret(one) for one in names],
        identity=table.get("identity"), event_type=table.get("event_type"),
        replay_window=table.get("replay_window", REPLAY_WINDOW),
    )  # fmt: skip


def _window(given: Any) -> timedelta:
    try:
        return span(timedelta(0))(given)
    except (ValueError, TypeError):
        raise SettingsError(
            f"replay_window must be a span such as 7d, or 0 to remember no bodies, not {given!r:.80}"
        ) from None


def _secret(name: str) -> str:
    found = variable(name)
    if not found:
        # The name is not shown if it may be the secret itself, put where its name belongs.
        shown = name if re.fullmatch(r"[A-Z][A-Z0-9_]{0,99}", name) else "a secret's name"
        raise SettingsError(
            f"{shown} is not set: secrets lists names of environment variables; set it there or in .env"
        )
    return found
