"""The application of redrive on a database of Django's: the same tables, reached by Django's connection where that matters."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from redrive.app import Redrive
from redrive.core.policy import read_policy
from redrive.django.policies import policies
from redrive.django.run import KIND, DjangoRunner
from redrive.errors import SettingsError, needs_extra
from redrive.ledgers.sql.borrowed import borrowed
from redrive.ledgers.sql.ledger import SqlLedger

with needs_extra("redrive.django", "django"):
    from django.db import connections
    from django.utils.module_loading import autodiscover_modules
    from sqlalchemy import URL, Connection

_VENDORS = ("sqlite", "postgresql")
_apps: dict[tuple[str, str], Redrive] = {}
_lock = threading.Lock()


def get_app(database: str = "default") -> Redrive:
    """The application on a database of Django's, named by its alias; one for each in a process.

    It has no handlers before `handle_tasks`: a process that only enqueues needs none.
    """
    url = url_of(database)
    with _lock:
        key = (database, url)  # the test runner of Django gives an alias another database
        if key not in _apps:
            _apps[key] = Redrive(url)
        return _apps[key]


def handle_tasks(app: Redrive, options: Mapping[str, Any]) -> Redrive:
    """Give an application the handlers of all tasks of Django's: one for all, and one for each that was `retried` in its own way."""
    autodiscover_modules("tasks")
    words = {name: value for name, value in options.items() if name != "database"}
    for kind, policy in {**policies(), "*": read_policy(None, **words)}.items():
        app.handler(f"{KIND}{kind}", policy=policy)(DjangoRunner(policy))
    return app


@cache
def _ledger_of(app: Redrive) -> SqlLedger:
    ledger = app.store.own_ledger()
    assert isinstance(ledger, SqlLedger), "Django's databases are SQL's"
    return ledger


def own_ledger(database: str) -> SqlLedger:
    """The ledger of redrive's own table on a database of Django's."""
    return _ledger_of(get_app(database))


@contextmanager
def django_connection(database: str) -> Iterator[Connection]:
    """Django's own connection of this thread, under our statements; its transaction is Django's business alone."""
    with borrowed(plain_connection(database)) as connection:
        yield connection


def plain_connection(database: str) -> Any:
    """The connection of the driver behind Django's, in this thread."""
    django = connections[database]
    django.ensure_connection()
    return django.connection


def url_of(database: str) -> str:
    """The URL of a database of Django's, as redrive takes it."""
    django = connections[database]
    if django.vendor not in _VENDORS:
        raise SettingsError(
            f"redrive works on SQLite and PostgreSQL, and the database {database!r} is {django.vendor}: give TASKS an OPTIONS "
            "with the alias of one that is, as 'database'"
        )
    settings = django.settings_dict
    if django.vendor == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    host = settings["HOST"] or ""
    socket = {"host": host} if host.startswith("/") else {}
    return URL.create(
        "postgresql",
        username=settings["USER"] or None,
        password=settings["PASSWORD"] or None,
        host=None if socket else host or None,
        port=int(settings["PORT"]) if settings["PORT"] else None,
        database=settings["NAME"],
        query={
            **socket,
            **{name: str(value) for name, value in settings["OPTIONS"].items() if name in ("sslmode", "sslrootcert")},
        },
    ).render_as_string(hide_password=False)
