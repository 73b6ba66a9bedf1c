"""The service with sample traffic, so that everything on its pages lives within a minute: `make demo`.

Destinations that fail now and then, poison that nobody can digest, an outage that begins every two minutes and heals, people
who change their minds: for redrive's own tasks, for a table that another program fills, and for each system that runs here
(the relay only where RABBITMQ_URL names a broker). Each kind of traffic is a file of its own and a `Traffic`.

It wants a database of its own and refuses any other. What has ended is forgotten after half an hour, so it can be left alone.
"""

import asyncio
from datetime import timedelta
from typing import Self

from sqlalchemy import Connection, inspect

from examples.demo.invoices import INVOICES, Invoices, make_table
from examples.demo.tasks import Tasks
from examples.demo.traffic import Traffic, is_out
from redrive import Redrive, State
from redrive.errors import SettingsError
from redrive.ledgers.sql.migrate import migrate, with_tables
from redrive.settings import SYSTEMS, Settings, load, load_settings
from redrive.system import System

__all__ = ["Broom", "DemoApp", "app", "is_out", "make_app"]

KEPT = timedelta(minutes=30)
"""How long what has ended is kept, the dead too."""
DELIVERIES = "trigger_deliveries"
ENDED = (State.DONE, State.DEAD, State.CANCELLED)


class DemoApp(Redrive):
    """An application that makes all that the demo needs in its database, PostgreSQL too, where nothing else is."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.traffic: list[Traffic] = []
        self._preparing = asyncio.Lock()
        self._prepared = False

    async def open(self) -> Self:
        """See `Redrive.open`."""
        if not self._prepared:
            async with self._preparing:  # pages may ask while the service starts
                await self._prepare()
        return await super().open()

    async def _prepare(self) -> None:
        if self._prepared:
            return
        try:
            await self.database.open()
            await self.database.write(_take_possession)
            await migrate(self.database, with_tables(self.systems))
            for one in self.traffic:
                await self.database.write(one.prepare)
            self._prepared = True
        except BaseException:
            await self.close()
            raise


def _take_possession(connection: Connection) -> None:
    """Mark an empty database as the demo's; a `SettingsError` for one in which there is anything but an earlier demo."""
    tables = set(inspect(connection).get_table_names())
    if tables and INVOICES.name not in tables:
        raise SettingsError(
            "the demo makes traffic and forgets what has ended: it wants a database of its own, and this one has tables "
            "that are not the demo's; create an empty one and name it in DATABASE_URL, or leave that unset"
        )
    make_table().create(connection, checkfirst=True)


class Broom(Traffic):
    """Forgets what ended long ago, in all ledgers: left open over night the demo must not fill the disk."""

    every_seconds = 60.0

    def __init__(self, app: DemoApp) -> None:
        self._app = app

    async def beat(self, number: int) -> None:  # noqa: ARG002 - every beat is the same
        """See `Traffic.beat`."""
        await self.forget(KEPT)

    async def forget(self, older_than: timedelta) -> None:
        """Forget what ended longer ago. Deliveries go with their events, which have their own way."""
        for lane in self._app.lanes.values():
            ledger = await lane.ledger()
            while lane.name != DELIVERIES and await ledger.prune(ENDED, older_than):
                pass
        for one in self._app.traffic:
            await one.sweep(self._app.database.now() - older_than)


class Counting(Traffic):
    """Has every ledger counted soon again. A busy machine would wait for minutes after a slow count; here tables are small."""

    every_seconds = 10.0

    def __init__(self, app: DemoApp) -> None:
        self._app = app

    async def beat(self, number: int) -> None:  # noqa: ARG002 - every beat is the same
        """See `Traffic.beat`."""
        for lane in self._app.lanes.values():
            await (await lane.census()).hurry()


class Demo(System):
    """Sample traffic for this application and for the systems on it."""

    name = "demo"

    def __init__(self, app: DemoApp) -> None:
        super().__init__(app)
        self._app = app

    async def run(self, stopped: asyncio.Event) -> None:
        """Drive everything until told to stop."""
        async with asyncio.TaskGroup() as group:
            for one in self._app.traffic:
                group.create_task(one.run(stopped))


def make_app(settings: Settings) -> DemoApp:
    """The application with traffic for each system that the settings ask for; for all if they ask for none."""
    made = DemoApp(settings.database_url)
    made.traffic += [Tasks(made), Invoices(made), Broom(made), Counting(made)]
    for name in settings.redrive_systems or SYSTEMS:
        made.traffic += _make_traffic(made, name)
    Demo(made)
    return made


def _make_traffic(app: DemoApp, name: str) -> list[Traffic]:
    """What a system needs is imported only where it is asked for."""
    match name:
        case "commands":
            from examples.demo.commands import CommandTraffic

            return [CommandTraffic(app)]
        case "flags":
            from examples.demo.flags import FlagTraffic

            return [FlagTraffic(app)]
        case "triggers":
            from examples.demo.triggers import TriggerTraffic

            return [TriggerTraffic(app)]
        case "webhooks":
            from examples.demo.webhooks import WebhookTraffic

            return [WebhookTraffic(app)]
        case "relay":
            from redrive.systems.relay.settings import RelaySettings

            relay_settings = load(RelaySettings)
            if "rabbitmq_url" not in relay_settings.model_fields_set:
                return []
            from examples.demo.relay import RelayTraffic

            return [RelayTraffic(app, relay_settings)]
        case _:
            return []


app = make_app(load_settings())
