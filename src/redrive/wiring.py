"""Settings become parts of an application: its log, and the systems that they name."""

import importlib
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Column

from redrive.app import Redrive
from redrive.core import jitter
from redrive.core.backoff import Exponential, Schedule
from redrive.core.durations import minutes, seconds
from redrive.core.policy import Policy
from redrive.errors import MissingExtraError, SettingsError, needs_extra
from redrive.observe.logs import LogObserver, configure_logs
from redrive.settings import Section, Settings, load
from redrive.stores.port import NO_TASKS, ON_ITEMS
from redrive.systems.commands.settings import CommandSettings
from redrive.systems.flags.policy import POLICY as FLAGS
from redrive.systems.flags.settings import FlagSettings
from redrive.systems.relay.settings import DeadLetterSettings, RelaySettings
from redrive.systems.triggers.aws.settings import AwsSettings
from redrive.systems.triggers.settings import TriggerSettings
from redrive.systems.triggers.sql import tables as trigger_tables
from redrive.systems.webhooks.settings import WebhookSettings


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
    """A system that comes with redrive: how it is made for an application, what it can be told, and what a service must be told."""

    make: Callable[[Redrive], object]
    settings: tuple[type[Section], ...]
    secrets: tuple[Column[Any], ...] = ()
    """The columns whose values are encrypted."""
    needs: str | None = None
    """A setting without which no service runs it: where its server is, which is not there unless somebody says so."""

    @property
    def can_run(self) -> bool:
        """Whether a service has been told what it must be told."""
        return self.needs is None or self.needs.lower() in load(self.settings[0]).model_fields_set


def _made_by(path: str, extra: str) -> Callable[[Redrive], object]:
    """Import the class only when it is wanted: extras that are not used need not be installed."""
    module, _, name = path.partition(":")

    def make(app: Redrive) -> object:
        with needs_extra(name.lower(), extra):
            system = getattr(importlib.import_module(module), name)
        return system(app)

    return make


def _make_relay(app: Redrive) -> None:
    attach_relay(app, load(RelaySettings), service=load(Settings).service_name)


KNOWN_SYSTEMS = {
    "commands": KnownSystem(_made_by("redrive.systems.commands:Commands", "commands"), (CommandSettings,)),
    "flags": KnownSystem(_made_by("redrive.systems.flags:Flags", "service"), (FlagSettings,)),
    "relay": KnownSystem(_make_relay, (RelaySettings, DeadLetterSettings), needs="RABBITMQ_URL"),
    "triggers": KnownSystem(
        _made_by("redrive.systems.triggers.system:Triggers", "service"),
        (TriggerSettings, AwsSettings),
        trigger_tables.SECRETS,
    ),
    "webhooks": KnownSystem(_made_by("redrive.systems.webhooks:Webhooks", "service"), (WebhookSettings,)),
}
SECTIONS: tuple[type[Section], ...] = (
    Settings,
    *(section for known in KNOWN_SYSTEMS.values() for section in known.settings),
)
"""All settings that there are: the service's and those of each system."""


def store_url(settings: Settings) -> str:
    """Where an application is kept that brings no store of its own: in the table of EVENTS_TABLE_NAME, or else in the database."""
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
    "flags": FLAGS,
    "relay": Policy(Exponential(seconds(2), seconds(60)), retries=3, jitter=jitter.additive(seconds(1)), name="relay"),
    "triggers": Policy(Schedule([minutes(1), minutes(5), minutes(15)]), retries=3, jitter=jitter.none, name="triggers"),
    "webhooks": Policy(Exponential(seconds(10), seconds(300)), attempts=5, jitter=jitter.none, name="webhooks"),
}
"""The policies of the five systems with their defaults, for previews."""


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
        for section in KNOWN_SYSTEMS[name].settings:
            try:
                load(section)
            except SettingsError as error:
                wrong.append(str(error))
    if wrong:
        raise SettingsError("; ".join(wrong))
    return settings


def attach_relay(app: Redrive, settings: RelaySettings, *, service: str) -> None:
    """Give the application the relay, which signs its messages with the name of the service, or say which extra it needs."""
    with needs_extra("the relay", "rabbitmq"):
        from redrive.systems.relay.system import Relay
    Relay(app, settings, service=service)
