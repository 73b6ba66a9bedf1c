"""The one place that reads the environment.

Every setting is a variable of the environment or a line in `.env` of the working folder; the environment wins. A value
that cannot be used is a `SettingsError` that names the variable and what it may be. `.env.example` lists all of them.
Each system describes its own settings in `systems/NAME/settings.py`; they are read here too, by `load`.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_network
from typing import Annotated, Any, Literal, TypeVar

from dotenv import dotenv_values
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from redrive.access.secret_keys import read_keys
from redrive.core.durations import DURATION_MAX, format_duration, parse_duration
from redrive.core.failure import redact
from redrive.core.gate_rules import read_rate
from redrive.core.states import State
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import SettingsError, UsageError

ADMIN_KEY_CHARS_MIN = 16
ENV_FILE = ".env"
SYSTEMS: tuple[str, ...] = ("commands", "flags", "relay", "triggers", "webhooks")
"""The systems that there are."""
ALL_SYSTEMS = "all"
"""What stands for all of them where systems are named."""


def span(least: timedelta) -> Callable[[Any], timedelta]:
    """A validator: seconds or a number with a unit, at least so long."""

    def read(given: Any) -> timedelta:
        length = parse_duration(given)
        if length < least:
            raise ValueError(f"it must be at least {format_duration(least)}")
        return length

    return read


def rate(given: str | None) -> str | None:
    """A validator: how many in which span, such as `20/s`."""
    if given is not None:
        try:
            read_rate(given)
        except UsageError as error:
            raise ValueError(str(error).removeprefix("rate ")) from None
    return given


def _lowered(given: Any) -> Any:
    return given.strip().lower() if isinstance(given, str) else given


def _sendable(key: SecretStr) -> SecretStr:
    # What a header cannot carry unchanged would never match.
    if not all("!" <= letter <= "~" for letter in key.get_secret_value()):
        raise ValueError("it must be plain letters, digits and signs, without spaces")
    return key


def listed(given: Any) -> Any:
    """A validator: names separated by commas."""
    if not isinstance(given, str):
        return given
    return tuple(name.strip().lower() for name in given.split(",") if name.strip())


def _known_systems(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in (*SYSTEMS, ALL_SYSTEMS):
            raise ValueError(f"there is no system {name!r}: choose from {', '.join(SYSTEMS)}, or {ALL_SYSTEMS}")
    return SYSTEMS if ALL_SYSTEMS in names else tuple(dict.fromkeys(names))


def read_systems(text: str) -> tuple[str, ...]:
    """The systems that somebody names, separated by commas; a `ValueError` where there is no such system."""
    return _known_systems(listed(text))


def _networks(given: tuple[str, ...]) -> tuple[str, ...]:
    for network in given:
        try:
            ip_network(network, strict=False)
        except ValueError:
            raise ValueError(f"{network!r} is neither an address nor a network such as 10.0.0.0/8") from None
    return given


def _readable(keys: SecretStr) -> SecretStr:
    read_keys(keys.get_secret_value())
    return keys


AdminKey = Annotated[SecretStr, AfterValidator(_sendable)]
SecretKey = Annotated[SecretStr, AfterValidator(_readable)]
Lease = Annotated[timedelta, BeforeValidator(span(timedelta(seconds=1)))]
Poll = Annotated[timedelta, BeforeValidator(span(timedelta(milliseconds=10)))]
Grace = Annotated[timedelta, BeforeValidator(span(timedelta(0)))]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lowered)]
LogFormat = Annotated[Literal["json", "pretty"], BeforeValidator(_lowered)]
Networks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed), AfterValidator(_networks)]
Systems = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed), AfterValidator(_known_systems)]


class Section(BaseSettings):
    """Some settings that belong together. Spans of time are seconds or carry a unit: `90`, `250ms`, `5s`, `2m`."""

    model_config = SettingsConfigDict(
        env_file=ENV_FILE, env_file_encoding="utf-8", env_ignore_empty=True, extra="ignore", frozen=True
    )


class Settings(Section):
    """The settings of the service and of its workers."""

    database_url: str = Field(
        default="sqlite:///redrive.db", description="The ledger: sqlite:///file.db or postgresql://user@host/name"
    )
    db_path: str | None = Field(
        default=None, min_length=1, description="The same as DATABASE_URL=sqlite:///DB_PATH, where that is not given"
    )
    service_name: str = Field(
        default="redrive", min_length=1, max_length=100, description="The `service` of every log line"
    )
    http_host: str = Field(default="127.0.0.1", min_length=1, description="The address that `redrive serve` listens on")
    http_port: int = Field(
        default=8086, ge=0, le=65535, description="The port that `redrive serve` listens on; 0 takes a free one"
    )
    http_trust_loopback: bool = Field(
        default=False,
        description="Whether programs and browsers on this machine may look, and send webhooks, without a key",
    )
    http_trusted_proxies: Networks = Field(
        default=(), description="Proxies, as addresses or networks, whose word on who is calling is taken"
    )
    http_connections_max: int = Field(
        default=10_000, ge=16, le=1_000_000, description="How many connections are open at once, if files allow it"
    )
    http_connections_per_address: int = Field(
        default=500,
        ge=16,
        le=1_000_000,
        description="How many of them one address, or one /64 of IPv6, may have; a proxy is one",
    )
    log_level: LogLevel = Field(default="info", description="debug, info, warning or error")
    log_format: LogFormat = Field(default="json", description="json or pretty")
    redrive_admin_key: AdminKey | None = Field(
        default=None,
        min_length=ADMIN_KEY_CHARS_MIN,
        description="The first admin key; without it one is made at the first start and printed once",
    )
    redrive_secret_key: SecretKey | None = Field(
        default=None,
        description="Encrypts stored secrets: 32 bytes in base64, or several separated by commas, of which the first encrypts; optional on SQLite",
    )
    redrive_systems: Systems = Field(
        default=(),
        description="The systems that `redrive serve` runs and `redrive migrate` makes tables for, beside the application's own",
    )
    worker_concurrency: int = Field(default=100, ge=1, le=10_000, description="How many handlers run at once")
    worker_lease: Lease = Field(
        default=timedelta(seconds=30), description="How long a claim holds without a sign of life"
    )
    worker_batch: int = Field(
        default=1000, ge=1, le=5_000, description="How many tasks one statement claims or settles, at most"
    )
    worker_grace: Grace = Field(
        default=timedelta(seconds=10), description="How long a stopping worker waits for its handlers"
    )
    worker_poll: Poll = Field(
        default=timedelta(seconds=1), description="The safety net: how long a worker waits for a wake-up"
    )
    retention_days: float = Field(
        default=30, ge=0, le=DURATION_MAX.days, description="How long done and cancelled tasks are kept; 0: for ever"
    )
    audit_retention_days: float = Field(
        default=365, ge=0, le=36_500, description="How long lines of the audit are kept; 0: for ever"
    )

    redrive_approvals: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="A redrive operation on more tasks than this waits for another person's approval; 0: none does",
    )
    alert_urls: SecretStr | None = Field(
        default=None, description="Where alerts go: addresses as apprise knows them, with spaces between them"
    )
    alert_failed_percent: float = Field(
        default=5, ge=0, le=100, description="Alert when more of the tasks that ended in five minutes died"
    )
    alert_oldest_due: Grace = Field(
        default=timedelta(minutes=5), description="Alert when a due task has waited longer; 0: never"
    )
    alert_dead: str = Field(
        default="feature_flag_schedules",
        max_length=1000,
        description="Ledgers in which every death is an alert, separated by commas; empty: none",
    )
    alert_depth: int = Field(default=10_000, ge=0, description="Alert when more tasks wait in a ledger; 0: never")

    @model_validator(mode="before")
    @classmethod
    def _database_at_path(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("db_path") and not given.get("database_url"):
            return given | {"database_url": f"sqlite:///{given['db_path']}"}
        return given

    @property
    def retention(self) -> timedelta | None:
        """How long ended tasks are kept; None: for ever."""
        return timedelta(days=self.retention_days) if self.retention_days else None

    def worker(
        self,
        *,
        concurrency: int | None = None,
        lease: timedelta | None = None,
        batch: int | None = None,
        grace: timedelta | None = None,
    ) -> WorkerSettings:
        """How a worker works; what is given here goes before the environment."""
        return WorkerSettings(
            concurrency=self.worker_concurrency if concurrency is None else concurrency,
            lease=self.worker_lease if lease is None else lease,
            batch=self.worker_batch if batch is None else batch,
            grace=self.worker_grace if grace is None else grace,
            poll=self.worker_poll,
            retention={} if self.retention is None else dict.fromkeys((State.DONE, State.CANCELLED), self.retention),
        )


S = TypeVar("S", bound=Section)


def load_settings() -> Settings:
    """The settings of the service."""
    return load(Settings)


def load(section: type[S], **given: Any) -> S:
    """Read the environment and `.env`, or raise a `SettingsError` that names each variable and its remedy.

    What is given goes before both.
    """
    try:
        return section(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_sentence(problem) for problem in error.errors())) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{ENV_FILE} cannot be read ({error}): correct or remove it") from error


def variable(name: str) -> str | None:
    """One variable of the environment, or of `.env`, whose name is itself configured: a secret, for one."""
    return os.environ.get(name) or dotenv_values(ENV_FILE).get(name)


def _sentence(problem: Any) -> str:
    name = str(problem["loc"][0]).upper()
    why = problem["msg"].removeprefix("Value error, ")
    if not why[:2].isupper():  # the name of another variable stays as it is
        why = why[0].lower() + why[1:]
    if problem["input"] is None:
        return f"{name} is missing: {why}; it is read from the environment and from {ENV_FILE}"
    # A secret must not be shown, not even a wrong one.
    shown = name if name.endswith(("_KEY", "_SECRET", "_URLS")) else f"{name}={redact(str(problem['input']))!r:.80}"
    return f"{shown} cannot be used: {why}; change it in the environment or in {ENV_FILE}"
