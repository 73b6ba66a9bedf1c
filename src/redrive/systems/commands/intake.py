"""Sending: commands and their batches, all or none, in a commit of their own or in the caller's."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, literal_column, select, tuple_

from redrive import Redrive
from redrive.errors import UsageError
from redrive.extend import Gated, NamedGate
from redrive.lane import Lane
from redrive.sql import Gather, run_within, sync_connection
from redrive.systems.commands.errors import DuplicateBatchError, DuplicateCommandError
from redrive.systems.commands.messages import Messages
from redrive.systems.commands.tables import LANE
from redrive.systems.commands.values import BatchStatus, NewCommand, check_domain, check_text, json_text, queues_of
from redrive.systems.kit.gates import GatesWhenSet

COMMANDS_MAX = 10_000
LOOKED_UP_AT_ONCE = 500


class CommandIntake:
    """Takes commands in."""

    def __init__(self, app: Redrive, messages: Messages, lane: Lane, ledger: Gated) -> None:
        self._app = app
        self._messages = messages
        self._ledger = ledger
        command = messages.tables.command
        self.gates: GatesWhenSet | None = None
        """With PGMQ there are none: its queues hand commands out, and know no gates."""
        if messages.one_writer:
            self.gates = GatesWhenSet(
                lane, app.database, command, command.c.kind, command.c.status == literal_column("'PENDING'")
            )
        self._sends: Gather[NewCommand, None] = Gather(self._send_gathered)

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
        self._store_within(sync_connection(connection), [command])

    async def send_batch(self, commands: Iterable[NewCommand], *, connection: Any = None) -> None:
        """Send many commands in one commit, all or none."""
        given = _checked(commands)
        if not given:
            return
        await self._app.open()
        await self._look()
        if connection is not None:
            await self._send_within(connection, given)
        else:
            self._app.database.check_free()
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
        """Send many commands of a domain as a batch, all or none; it counts them until it is complete. Returns its id.

        A `batch_id` that the domain already has is a `DuplicateBatchError`.
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
        await self._look()
        batch = {"domain": domain, "batch_id": id_, "name": name, "custom_data": custom_data, "total": len(given)}
        if connection is not None:
            await self._send_within(connection, given, batch)
        else:
            await self._app.database.write(self.store, given, batch, soon=True)
            self._app.database.wake(LANE)
        return id_

    async def _look(self) -> None:
        if self.gates is not None:
            await self.gates.look()

    # --- storing ----------------------------------------------------------------------------------------------------

    async def _send_gathered(self, commands: Sequence[NewCommand]) -> list[None]:
        await self._app.database.write(self.store, commands, soon=True)
        return [None] * len(commands)

    async def _send_within(
        self, connection: Any, commands: Sequence[NewCommand], batch: Mapping[str, Any] | None = None
    ) -> None:
        # Queues are made in a transaction of their own: otherwise others would wait for them until the caller's commits.
        queues = queues_of(commands)
        if lacking := await run_within(connection, self._messages.lacking_queues, queues):
            await self._app.database.write(self._messages.make_queues, lacking)
        await run_within(connection, self._store_within, commands, batch)

    def _store_within(
        self, connection: Connection, commands: Sequence[NewCommand], batch: Mapping[str, Any] | None = None
    ) -> None:
        """All or none, also for a caller who goes on with its transaction after the error.

        A savepoint sees to that, but not on SQLite: where Python's driver has begun no transaction yet, releasing it would
        commit. There is one writer there, so it is enough to look first.
        """
        if self._messages.one_writer:
            self._refuse_known(connection, commands)
            self.store(connection, commands, batch)
        else:
            with connection.begin_nested():
                self.store(connection, commands, batch)

    def store(
        self,
        connection: Connection,
        commands: Sequence[NewCommand],
        batch: Mapping[str, Any] | None = None,
        *,
        soon: bool = False,
    ) -> None:
        """Store the commands, and the batch that they are, in the transaction of this connection."""
        domains: dict[str, dict[str, NewCommand]] = defaultdict(dict)
        for command in commands:
            id_ = str(command.command_id)
            if id_ in domains[command.domain]:
                raise DuplicateCommandError(command.domain, id_)
            domains[command.domain][id_] = command
        if batch is not None:
            self._store_batch(connection, batch)
        self._messages.make_queues(connection, queues_of(commands))
        batch_id = None if batch is None else batch["batch_id"]
        for domain, some in sorted(domains.items()):
            new = self._messages.send(connection, domain, some.values(), batch_id)
            if len(new) < len(some):
                raise DuplicateCommandError(domain, next(id_ for id_ in some if id_ not in new))
        self._put_behind_gates(connection, commands, soon=soon)
        self._app.database.announce(connection, LANE, soon=soon)

    def _put_behind_gates(self, connection: Connection, commands: Sequence[NewCommand], *, soon: bool) -> None:
        if self.gates is None:
            return
        named = {kind for one in commands if self.gates.name(kind := f"{one.domain}/{one.command_type}") is not None}
        if named:
            self.gates.put(connection, named)
            if soon:
                self._ledger.make_gates(connection, [NamedGate(kind, kind, "") for kind in sorted(named)])

    def _store_batch(self, connection: Connection, batch: Mapping[str, Any]) -> None:
        table, now = self._messages.tables.batch, self._messages.now
        made = self._app.database.insert(table).values(
            **batch, status=BatchStatus.OPEN.value, created_at=now, updated_at=now
        )
        if connection.execute(made.on_conflict_do_nothing().returning(table.c.batch_id)).first() is None:
            raise DuplicateBatchError(batch["domain"], batch["batch_id"])

    def _refuse_known(self, connection: Connection, commands: Sequence[NewCommand]) -> None:
        """Raise `DuplicateCommandError` if one of the commands is there already."""
        c = self._messages.tables.command.c
        for start in range(0, len(commands), LOOKED_UP_AT_ONCE):
            some = [(one.domain, str(one.command_id)) for one in commands[start : start + LOOKED_UP_AT_ONCE]]
            asked = select(c.domain, c.command_id).where(tuple_(c.domain, c.command_id).in_(some)).limit(1)
            if found := connection.execute(asked).first():
                raise DuplicateCommandError(found.domain, found.command_id)


def _checked(commands: Iterable[NewCommand]) -> list[NewCommand]:
    given = list(commands)
    for one in given:
        if not isinstance(one, NewCommand):
            raise UsageError(
                f"commands are sent as NewCommand(domain=…, command_type=…, command_id=…), not {one!r:.80}"
            )
    if len(given) > COMMANDS_MAX:
        raise UsageError(f"at most {COMMANDS_MAX:,} commands at once, not {len(given):,}: split them up")
    return given
