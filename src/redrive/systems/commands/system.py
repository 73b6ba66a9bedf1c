"""The command bus: a system on an application, with its lane, its sender and its troubleshooting queue.

app = Redrive("postgresql://…")
bus = Commands(app)

@commands.handler("payments", "DebitAccount")
async def debit(command, context): ...

await bus.send("payments", "DebitAccount", "debit-7", {"amount": 10}, reply_to="payments__replies")
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID, uuid4

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from redrive import Redrive
from redrive.app import Workers, WorkerSettings
from redrive.errors import UsageError
from redrive.extend import Claim, Gather, SqlLedger, System, run_within, sync_connection
from redrive.lane import Lane
from redrive.observe.logs import LogObserver
from redrive.queues import PgmqLedger, QueueLayout, Queues
from redrive.settings import load
from redrive.systems.commands.beside import Records
from redrive.systems.commands.chores import Chores
from redrive.systems.commands.desk import Troubleshooting
from redrive.systems.commands.errors import DuplicateBatchError
from redrive.systems.commands.intake import Sender
from redrive.systems.commands.looking import Looking
from redrive.systems.commands.policy import RetryPolicy
from redrive.systems.commands.registry import Registration, Registry, registry
from redrive.systems.commands.settings import CommandSettings
from redrive.systems.commands.tables import LANE, Tables, ledger_table, make_tables
from redrive.systems.commands.values import (
    ENDING,
    BatchStatus,
    NewCommand,
    check_domain,
    check_text,
    join_kind,
    json_text,
    split_kind,
)
from redrive.systems.commands.work import Keeping, engine_handler

BATCH_MAX = 10_000
LAYOUT = QueueLayout(
    queue="queue_name",
    msg_id="msg_id",
    same=("domain", "command_id"),
    kind_field="command_type",
    data_field="data",
    split=split_kind,
    join=join_kind,
    ending=ENDING,
    dead_since="troubled_at",
)


class Commands(Looking, System):
    """A command bus on the application's database."""

    name: ClassVar[str] = "commands"

    def __init__(
        self,
        app: Redrive,
        *,
        settings: CommandSettings | None = None,
        retry_policy: RetryPolicy | None = None,
        handlers: Registry | None = None,
    ) -> None:
        """`retry_policy` is for handlers that have none of their own; `handlers` takes the place of the process's registry."""
        System.__init__(self, app)
        database = app.database
        tables, queues = make_tables(database.dialect.name), Queues(LAYOUT.kind_field)
        Looking.__init__(self, app, tables, queues)
        self.settings = settings or load(CommandSettings)
        self.retry_policy = retry_policy or RetryPolicy(self.settings.commands_max_attempts, self.settings.backoff)
        self.handlers = registry if handlers is None else handlers
        self._records = Records(database, tables, queues)
        self.ledger = self._make_ledger(tables, queues)
        self._keeping = Keeping(self._extend)
        self.lane = app.adopt(
            ledger_table(database.dialect.name),
            ledger=self.ledger,
            tune=self._tune,
            observers=[LogObserver(system=self.name)],
        )
        self._sender = Sender(database, tables, self._records, queues)
        self._sends: Gather[NewCommand, None] = Gather(self._send_gathered)
        self.troubleshooting = Troubleshooting(self, self.lane, self.ledger)
        self._chores = self.chores(self.lane)
        self.handlers.listen(self)

    def _make_ledger(self, tables: Tables, queues: Queues) -> SqlLedger:
        database, records = self._app.database, self._records
        table = ledger_table(database.dialect.name)
        if database.dialect.name == "sqlite":
            return SqlLedger(database, table, tables.command, name=LANE, beside=records, extra=records.extra)
        return PgmqLedger(
            database, table, tables.command, LAYOUT, name=LANE, beside=records, extra=records.extra, queues=queues
        )

    # --- handling ---------------------------------------------------------------------------------------------------

    def registered(self, registration: Registration) -> None:
        """Take a handler in; the registry calls this."""
        self.take(self.lane, registration, self.retry_policy)

    def take(self, lane: Lane, registration: Registration, otherwise: RetryPolicy) -> None:
        """Let a lane handle what is registered, by its own policy or by another."""
        policy = (registration.retry_policy or otherwise).policy
        register = lane.handler(registration.kind, policy=policy, transactional=registration.transactional)
        register(engine_handler(registration, self._keeping))

    def workers(self, settings: WorkerSettings, lane: Lane) -> Workers:
        """The workers of one lane over the bus."""
        return self._app.workers(settings, lanes=[lane])

    def chores(self, lane: Lane, otherwise: RetryPolicy | None = None) -> Chores:
        """The housekeeping for the handlers of a lane; `otherwise` is the policy for what has no handler."""
        after, policy = self.settings.commands_unhandled_after, (otherwise or self.retry_policy).policy
        return Chores(self._app.database, self._tables, self._records, self.ledger, lane, after, policy)

    def _tune(self, settings: WorkerSettings) -> WorkerSettings:
        # Called when a worker is made, on its own loop. Commands stay on record: nothing is pruned.
        self._keeping.loop = asyncio.get_running_loop()
        return replace(settings, lease=self.settings.commands_visibility_timeout, retention={})

    async def _extend(self, claim: Claim, span: timedelta) -> bool:
        return not await self.ledger.extend([claim], span)

    def panel(self) -> Any:
        """See `System`."""
        from redrive.systems.commands.page import PANEL

        return PANEL

    def routes(self) -> Sequence[Any]:
        """See `System.routes`."""
        from redrive.systems.commands.routes import make_routes

        return [make_routes(self)]

    async def run(self, stopped: asyncio.Event) -> None:
        """See `System.run`."""
        await self._chores.run(stopped)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def send(
        self,
        domain: str,
        command_type: str,
        command_id: str | UUID,
        data: Any = None,
        correlation_id: str | UUID | None = None,
        reply_to: str | None = None,
        max_attempts: int | None = None,
        connection: Any = None,
    ) -> None:
        """Send a command; when this returns it is durable.

        With your own SQLAlchemy `connection` or session it is sent if and only if your transaction commits. A second command
        of the same id in the domain is a `DuplicateCommandError`. `max_attempts` beats the handler's and the worker's.
        """
        command = NewCommand(
            domain=domain, command_type=command_type, command_id=command_id, data=data, correlation_id=correlation_id,
            reply_to=reply_to, max_attempts=max_attempts,
        )  # fmt: skip
        await self.send_batch([command], connection=connection)

    def send_sync(
        self,
        domain: str,
        command_type: str,
        command_id: str | UUID,
        data: Any = None,
        correlation_id: str | UUID | None = None,
        reply_to: str | None = None,
        max_attempts: int | None = None,
        *,
        connection: Any,
    ) -> None:
        """The same for code without an event loop, in your own SQLAlchemy `Connection` or `Session`."""
        command = NewCommand(
            domain=domain, command_type=command_type, command_id=command_id, data=data, correlation_id=correlation_id,
            reply_to=reply_to, max_attempts=max_attempts,
        )  # fmt: skip
        self._send_within(sync_connection(connection), [command])

    async def send_batch(self, commands: Iterable[NewCommand], *, connection: Any = None) -> None:
        """Send many commands in one commit, all or none."""
        given = _checked(commands)
        if not given:
            return
        await self._app.open()
        if connection is not None:
            await self._make_queues(connection, given)
            await run_within(connection, self._send_within, given)
        else:
            await self._sends(given)
            self._app.database.wake(LANE)

    async def create_batch(
        self,
        domain: str,
        commands: Iterable[NewCommand],
        *,
        batch_id: str | UUID | None = None,
        name: str | None = None,
        custom_data: Any = None,
        connection: Any = None,
    ) -> str:
        """Send many commands of a domain as a batch that is counted and complete in the end; all or none. Returns its id.

        A `batch_id` that the domain has already is a `DuplicateBatchError`.
        """
        check_domain(domain)
        given = _checked(commands)
        if not given:
            raise UsageError("a batch needs at least one command: an empty one would never be complete")
        if others := {one.domain for one in given} - {domain}:
            raise UsageError(f"a batch of {domain!r} cannot hold commands of {', '.join(sorted(others))}")
        id_ = str(uuid4()) if batch_id is None else check_text("batch_id", str(batch_id))
        if name is not None:
            check_text("name", name)
        json_text(custom_data)
        await self._app.open()
        row = {"domain": domain, "batch_id": id_, "name": name, "custom_data": custom_data}
        if connection is not None:
            await self._make_queues(connection, given)
            await run_within(connection, self._create_batch_within, row, given)
        else:
            await self._app.database.write(self._create_batch, row, given, soon=True)
            self._app.database.wake(LANE)
        return id_

    async def _make_queues(self, connection: Any, commands: Sequence[NewCommand]) -> None:
        """Make queues that are not known yet before the caller's transaction needs them."""
        if lacking := await run_within(connection, self._sender.lacking_queues, commands):
            await self._app.database.write(self._sender.make_queues, lacking)

    async def _send_gathered(self, commands: Sequence[NewCommand]) -> list[None]:
        await self._app.database.write(self._sender.send, commands, soon=True)
        return [None] * len(commands)

    def _send_within(self, connection: Connection, commands: Sequence[NewCommand]) -> None:
        with self._all_or_none(connection, commands):
            self._sender.send(connection, commands)

    def _all_or_none(self, connection: Connection, commands: Sequence[NewCommand]) -> AbstractContextManager[Any]:
        """What makes sure of it for a caller who goes on with its transaction after the error.

        A savepoint, but not on SQLite: where Python's driver has begun no transaction yet, releasing it would commit. There is
        one writer there, so it is enough to look first.
        """
        if self._postgres:
            return connection.begin_nested()
        self._sender.refuse_known(connection, commands)
        return nullcontext()

    def _create_batch_within(self, connection: Connection, row: dict[str, Any], commands: Sequence[NewCommand]) -> None:
        with self._all_or_none(connection, commands):
            self._create_batch(connection, row, commands)

    def _create_batch(
        self, connection: Connection, row: dict[str, Any], commands: Sequence[NewCommand], *, soon: bool = False
    ) -> None:
        table, now = self._tables.batch, self._records.now()
        insert: Any = postgres_insert if self._postgres else sqlite_insert
        made = insert(table).values(
            **row, status=BatchStatus.OPEN.value, total=len(commands), created_at=now, updated_at=now
        )
        made = made.on_conflict_do_nothing().returning(table.c.batch_id)
        if connection.execute(made, self._records.times()).first() is None:
            raise DuplicateBatchError(row["domain"], row["batch_id"])
        self._sender.send(connection, commands, batch_id=row["batch_id"], soon=soon)


def _checked(commands: Iterable[NewCommand]) -> list[NewCommand]:
    given = list(commands)
    for one in given:
        if not isinstance(one, NewCommand):
            raise UsageError(
                f"commands are sent as NewCommand(domain=…, command_type=…, command_id=…), not {one!r:.80}"
            )
    if len(given) > BATCH_MAX:
        raise UsageError(f"at most {BATCH_MAX:,} commands at once, not {len(given):,}: send them in parts")
    return given
