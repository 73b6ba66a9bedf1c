"""The command bus on an application: its parts put together.

app = Redrive("postgresql://…")
bus = Commands(app)

@commands.handler("payments", "DebitAccount")
async def debit(command, context): ...

await bus.send("payments", "DebitAccount", "debit-7", {"amount": 10}, reply_to="payments__replies")
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from redrive import Redrive
from redrive.app import WorkerSettings
from redrive.extend import System
from redrive.lane import Lane
from redrive.settings import load
from redrive.sql import run_within
from redrive.systems.commands.beside import CommandBeside
from redrive.systems.commands.desk import Troubleshooting
from redrive.systems.commands.intake import CommandIntake
from redrive.systems.commands.logs import CommandLogs
from redrive.systems.commands.messages import open_messages
from redrive.systems.commands.policy import RetryPolicy
from redrive.systems.commands.reader import Reader
from redrive.systems.commands.registry import Registration, Registry, registry
from redrive.systems.commands.settings import CommandSettings
from redrive.systems.commands.unhandled import UnhandledCommands
from redrive.systems.commands.values import Reply, check_limit, check_reply_queue
from redrive.systems.commands.work import Keeping, engine_handler


class Commands(System):
    """A command bus on the application's database.

    Its verbs are those of its parts: sending is in `CommandIntake`, looking things up in `Reader`, and what people do in
    `Troubleshooting`.
    """

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
        super().__init__(app)
        self.app = app
        self.settings = settings or load(CommandSettings)
        self.retry_policy = retry_policy or RetryPolicy(self.settings.commands_max_attempts, self.settings.backoff)
        self.handlers = registry if handlers is None else handlers
        self.messages = open_messages(app.database)
        beside = CommandBeside(self.messages)
        self.ledger = self.messages.ledger(beside, beside.extra)
        self.lane = app.adopt(
            self.messages.ledger_table,
            ledger=self.ledger,
            tune=self._tune,
            observers=[CommandLogs()],
        )

        intake = CommandIntake(app, self.messages, self.lane, self.ledger)
        self._gates, reader = intake.gates, Reader(app, self.messages)
        self.send, self.send_sync = intake.send, intake.send_sync
        self.send_batch, self.create_batch = intake.send_batch, intake.create_batch
        self.get_command, self.get_batch, self.audit_trail = reader.get_command, reader.get_batch, reader.audit_trail
        self.query_commands, self.browse_commands = reader.query_commands, reader.browse_commands
        self.troubleshooting = Troubleshooting(reader, self.messages.tables, self.lane, self.ledger)
        self._reader = reader

        self._keeping = Keeping(self.ledger, one_writer=self.messages.one_writer)
        self._unhandled = self.unhandled(self.lane)
        self.handlers.listen(self)

    # --- handling ---------------------------------------------------------------------------------------------------

    def registered(self, registration: Registration) -> None:
        """Take a handler in; the registry calls this."""
        self.take(self.lane, registration, self.retry_policy)

    def take(self, lane: Lane, registration: Registration, otherwise: RetryPolicy) -> None:
        """Let a lane handle what is registered, by its own policy or by another."""
        policy = (registration.retry_policy or otherwise).policy
        register = lane.handler(registration.kind, policy=policy, transactional=registration.transactional)
        register(engine_handler(registration, self._keeping))

    def unhandled(self, lane: Lane, otherwise: RetryPolicy | None = None) -> UnhandledCommands:
        """Who looks after the commands that no worker handles; `otherwise` is the policy for what has no handler."""
        after, policy = self.settings.commands_unhandled_after, (otherwise or self.retry_policy).policy
        return UnhandledCommands(self.messages, self.ledger, lane, after=after, policy=policy)

    def _tune(self, settings: WorkerSettings) -> WorkerSettings:
        # Called when a worker is made, on its own loop. Commands stay on record: nothing is pruned.
        self._keeping.loop = asyncio.get_running_loop()
        return replace(settings, lease=self.settings.commands_visibility_timeout, retention={})

    # --- replies ----------------------------------------------------------------------------------------------------

    async def take_replies(self, queue: str, *, limit: int = 100, connection: Any = None) -> list[Reply]:
        """Take replies out of their queue, oldest first.

        With your own `connection` they are gone only when your transaction commits, so none is lost if you fail. On
        PostgreSQL the queue is one of PGMQ's, and any of its clients can read it instead.
        """
        check_limit(limit)
        check_reply_queue("queue", queue)
        await self.app.open()
        if connection is not None:
            taken = await run_within(connection, self.messages.take_replies, queue, limit)
        else:
            taken = await self.app.database.write(self.messages.take_replies, queue, limit)
        return [Reply.of(message) for message in taken]

    # --- as a system ------------------------------------------------------------------------------------------------

    def routes(self) -> Sequence[Any]:
        from redrive.systems.commands.routes import make_routes

        return [make_routes(self._reader, self.troubleshooting)]

    def panel(self) -> Any:
        from redrive.systems.commands.page import make_panel

        return make_panel(self._reader, self.troubleshooting)

    async def run(self, stopped: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._unhandled.run(stopped))
            if self._gates is not None:
                loops.create_task(self._gates.run(stopped))
