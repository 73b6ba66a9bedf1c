"""Settings become parts of an application: its log, and the systems that they name."""

import importlib
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from redrive.app import Redrive
from redrive.core import jitter
from redrive.core.backoff import Exponential, Schedule
from redrive.core.durations import minutes, seconds
from redrive.core.policy import Policy
from redrive.errors import MissingExtraError, SettingsError, needs_extra
from redrive.observe.logs import LogObserver, configure_logs
from redrive.settings import Section, Settings, load, variable
from redrive.stores.port import NO_TASKS, ON_ITEMS

if TYPE_CHECKING:
    from sqlalchemy import Column

    from redrive.systems.relay.settings import RelaySettings


def set_up_logs(settings: Settings) -> None:
    """Logs as the settings say; call it before any observer is made. On a terminal they are pretty unless told otherwise."""
    told = "log_format" in settings.model_fields_set
    chosen = settings.log_format if told or not sys.stderr.isatty() else "pretty"
    configure_logs(service=settings.service_name, level=settings.log_level, format=chosen)


def observe_with_logs(app: Redrive) -> None:
    """Every transition becomes a log line, unless the application brought an observer for that itself."""
    if not any(isinstance(observer, LogObserver) for observer in app.observers):
        app.observers.append(LogObserver())


class KnownSystem(NamedTuple):
    """A system that comes with redrive, by names: nothing of it is imported before it is wanted, and it need not be installed."""

    what: str
    extra: str
    """What brings it and all that it needs."""
    made_by: str
    """`module:name` of what makes it for an application."""
    sections: tuple[str, ...]
    secret_columns: str | None = None
    needs: str | None = None
    """A setting without which no service runs it: where its server is, which is not there unless somebody says so."""

    def make(self, app: Redrive) -> None:
        """Give an application the system, with the settings of the environment."""
        self._named(self.made_by)(app)

    @property
    def settings(self) -> tuple[type[Section], ...]:
        """What it can be told."""
        return tuple(self._named(path) for path in self.sections)

    @property
    def secrets(self) -> "tuple[Column[Any], ...]":
        """The columns whose values are encrypted."""
        found: tuple[Column[Any], ...] = () if self.secret_columns is None else self._named(self.secret_columns)
        return found

    @property
    def can_run(self) -> bool:
        """Whether a service has been told what it must be told."""
        return self.needs is None or self.needs.lower() in load(self.settings[0]).model_fields_set

    def _named(self, path: str) -> Any:
        module, _, name = path.partition(":")
        with needs_extra(self.what, self.extra):
            return getattr(importlib.import_module(module), name)


KNOWN_SYSTEMS = {
    "commands": KnownSystem(
        "commands",
        "commands",
        "redrive.systems.commands:Commands",
        ("redrive.systems.commands.settings:CommandSettings",),
    ),
    "flags": KnownSystem(
        "flags", "service", "redrive.systems.flags:Flags", ("redrive.systems.flags.settings:FlagSettings",)
    ),
    "relay": KnownSystem(
        "the relay",
        "rabbitmq",
        "redrive.wiring:make_relay",
        ("redrive.systems.relay.settings:RelaySettings", "redrive.systems.relay.settings:DeadLetterSettings"),
        needs="RABBITMQ_URL",
    ),
    "triggers": KnownSystem(
        "triggers",
        "service",
        "redrive.systems.triggers.system:Triggers",
        ("redrive.systems.triggers.settings:TriggerSettings", "redrive.systems.triggers.aws.settings:AwsSettings"),
        "redrive.systems.triggers.sql.tables:SECRETS",
    ),
    "webhooks": KnownSystem(
        "webhooks",
        "service",
        "redrive.systems.webhooks:Webhooks",
        ("redrive.systems.webhooks.settings:WebhookSettings",),
    ),
}


def store_url(settings: Settings) -> str:
    """Where an application is kept that brings no store of its own: in the table of EVENTS_TABLE_NAME, or else in the database."""
    try:
        from redrive.systems.triggers.aws.settings import AwsSettings
    except MissingExtraError as error:
        if variable("EVENTS_TABLE_NAME"):
            raise MissingExtraError("EVENTS_TABLE_NAME", "aws", error.missing) from error
        return settings.database_url
    return load(AwsSettings).store_url or settings.database_url


def attach_systems(app: Redrive, names: Iterable[str]) -> None:
    """Give the application the systems with these names that it does not have yet, with the settings of the environment.

    One that has not been told what it needs is left out. A store that keeps one system alone has that one.
    """
    if not app.store.keeps_tasks:
        if others := sorted({*names} - {ON_ITEMS}):
            raise SettingsError(f"{', '.join(others)} cannot run here: {NO_TASKS}")
        names = [ON_ITEMS]
    for name in names:
        if name not in app.systems and KNOWN_SYSTEMS[name].can_run:
            KNOWN_SYSTEMS[name].make(app)


class PublishedPolicy(StrEnum):
    """The system whose policy is meant."""

    COMMANDS = "commands"
    FLAGS = "flags"
    RELAY = "relay"
    TRIGGERS = "triggers"
    WEBHOOKS = "webhooks"


PUBLISHED: dict[str, Policy] = {
    "commands": Policy(Schedule([seconds(60), seconds(300)]), attempts=3, jitter=jitter.none, name="commands"),
    "flags": Policy(Exponential(minutes(2), minutes(60)), retries=3, jitter=jitter.additive(seconds(30)), name="flags"),
    "relay": Policy(Exponential(seconds(2), seconds(60)), retries=3, jitter=jitter.additive(seconds(1)), name="relay"),
    "triggers": Policy(Schedule([minutes(1), minutes(5), minutes(15)]), retries=3, jitter=jitter.none, name="triggers"),
    "webhooks": Policy(Exponential(seconds(10), seconds(300)), attempts=5, jitter=jitter.none, name="webhooks"),
}
"""The policies of the five systems with their defaults, for previews: also where the systems are not installed."""


async def attach_found(app: Redrive) -> dict[str, str]:
    """Give an application the systems that its store knows of, to look and to act there: nothing of them runs.

    Returns those that cannot be looked at from here, and why.
    """
    unseen = {}
    for name in await app.store.find_systems():
        if name in KNOWN_SYSTEMS and name not in app.systems:
            try:
                KNOWN_SYSTEMS[name].make(app)
            except MissingExtraError as error:
                unseen[name] = str(error)
    return unseen


def check_settings(systems: Iterable[str] = ()) -> Settings:
    """The settings of the service. Every wrong one is named at once, those of these systems and of the named ones too."""
    settings = load(Settings)
    wrong = []
    for name in sorted({*settings.redrive_systems, *systems}):
        try:
            sections = KNOWN_SYSTEMS[name].settings
        except MissingExtraError:  # said where it is to run; whoever only looks at tasks needs it not
            continue
        for section in sections:
            try:
                load(section)
            except SettingsError as error:
                wrong.append(str(error))
    if wrong:
        raise SettingsError("; ".join(wrong))
    return settings


def make_relay(app: Redrive) -> None:
    """Give the application the relay with the settings of the environment."""
    from redrive.systems.relay.settings import RelaySettings

    attach_relay(app, load(RelaySettings), service=load(Settings).service_name)


def attach_relay(app: Redrive, settings: "RelaySettings", *, service: str) -> None:
    """Give the application the relay, which signs its messages with the name of the service, or say which extra it needs."""
    with needs_extra("the relay", "rabbitmq"):
        from redrive.systems.relay.system import Relay
    Relay(app, settings, service=service)
