"""Sending: the row, the message and the first line of the audit, in one statement or one transaction, many at once."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, Text, bindparam, cast, insert, literal_column, select, true, tuple_
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from redrive.extend import Batch, Database
from redrive.queues import Queues, message_table
from redrive.systems.commands.beside import Line, Records
from redrive.systems.commands.errors import DuplicateCommandError
from redrive.systems.commands.tables import LANE, Tables
from redrive.systems.commands.values import NewCommand, queue_of

LOOKED_UP_AT_ONCE = 500
_FIELDS = ("command_id", "command_type", "data", "reply_queue", "correlation_id", "batch_id", "trace")


class Sender:
    """Puts commands into one database."""

    def __init__(self, database: Database, tables: Tables, records: Records, queues: Queues) -> None:
        self._database = database
        self._tables = tables
        self._records = records
        self._queues = queues
        self._postgres = database.dialect.name == "postgresql"
        self._batch = Batch(database.dialect, {**{name: Text() for name in _FIELDS}, "max_attempts": Integer()})
        self._statements: dict[str, Any] = {}

    def send(
        self, connection: Connection, commands: Sequence[NewCommand], *, batch_id: str | None = None, soon: bool = False
    ) -> None:
        """Store the commands, all or none, in the transaction of this connection."""
        domains: dict[str, dict[str, NewCommand]] = defaultdict(dict)
        for command in commands:
            id_ = str(command.command_id)
            if id_ in domains[command.domain]:
                raise DuplicateCommandError(command.domain, id_)
            domains[command.domain][id_] = command
        self.make_queues(connection, queues_of(commands))
        for domain, some in sorted(domains.items()):
            self._send_to(connection, domain, some, batch_id)
        self._database.announce(connection, LANE, soon=soon)

    def refuse_known(self, connection: Connection, commands: Sequence[NewCommand]) -> None:
        """Raise `DuplicateCommandError` if one of the commands is there already."""
        c = self._tables.command.c
        for start in range(0, len(commands), LOOKED_UP_AT_ONCE):
            some = [(one.domain, str(one.command_id)) for one in commands[start : start + LOOKED_UP_AT_ONCE]]
            asked = select(c.domain, c.command_id).where(tuple_(c.domain, c.command_id).in_(some)).limit(1)
            if found := connection.execute(asked).first():
                raise DuplicateCommandError(found.domain, found.command_id)

    def lacking_queues(self, connection: Connection, commands: Sequence[NewCommand]) -> dict[str, bool]:
        """The queues that may have to be made before these commands go into the caller's transaction.

        Not those that this very transaction has made before: whoever makes them too would wait for it.
        """
        if not self._postgres:
            return {}
        needed, made = queues_of(commands), self._queues.made_here(connection)
        return {queue: by_kind for queue, by_kind in needed.items() if not (self._queues.knows(queue) or queue in made)}

    def make_queues(self, connection: Connection, queues: Mapping[str, bool]) -> None:
        """Make queues, those for replies too; with True also the index by which workers find what they can handle.

        In a transaction of its own where the commands go into the caller's: nobody then waits for a queue until that commits.
        """
        if self._postgres:
            for queue, by_kind in queues.items():
                self._queues.ensure(connection, queue, by_kind=by_kind)

    def _send_to(
        self, connection: Connection, domain: str, commands: dict[str, NewCommand], batch_id: str | None
    ) -> None:
        if domain not in self._statements:
            self._statements[domain] = self._build_for_postgres(domain) if self._postgres else self._build(domain)
        rows = [self._row(command, batch_id) for command in commands.values()]
        parameters = self._batch.parameters(rows) | self._records.times()
        new = set(connection.execute(self._statements[domain], parameters).scalars())
        if len(new) < len(commands):
            raise DuplicateCommandError(domain, next(id_ for id_ in commands if id_ not in new))
        if not self._postgres:
            self._records.audit(connection, [Line(domain, id_, "SENT") for id_ in commands])

    def _row(self, command: NewCommand, batch_id: str | None) -> tuple[Any, ...]:
        return (
            command.command_id,
            command.command_type,
            self._message(command) if self._postgres else command.data_json,
            command.reply_to,
            command.correlation_id,
            batch_id,
            command.trace,
            command.max_attempts,
        )

    @staticmethod
    def _message(command: NewCommand) -> str:
        """The message: whoever reads the queue finds all of the command in it. Its data is JSON text already."""
        known = {
            "domain": command.domain,
            "command_id": command.command_id,
            "command_type": command.command_type,
            "correlation_id": command.correlation_id,
            "reply_to": command.reply_to,
        }
        return f'{json.dumps(known, ensure_ascii=False)[:-1]}, "data": {command.data_json}}}'

    def _values(self, domain: str) -> dict[str, Any]:
        batch = self._batch.rows
        now = self._records.now()
        return {
            "domain": bindparam(None, domain, type_=Text),
            "command_id": batch.c.command_id,
            "command_type": batch.c.command_type,
            "queue_name": bindparam(None, queue_of(domain), type_=Text),
            "status": literal_column("'PENDING'"),
            "attempts": literal_column("0"),
            "max_attempts": batch.c.max_attempts,
            "due_at": now,
            "reply_queue": batch.c.reply_queue,
            "correlation_id": batch.c.correlation_id,
            "batch_id": batch.c.batch_id,
            "trace": batch.c.trace,
            "created_at": now,
            "updated_at": now,
        }

    def _build(self, domain: str) -> Any:
        """The rows; ids that are there already are left alone."""
        command, batch = self._tables.command, self._batch.rows
        values = self._values(domain) | {"data": batch.c.data}
        rows = (
            select(*values.values()).select_from(batch).where(true())
        )  # SQLite reads ON CONFLICT as a join without it
        made = sqlite_insert(command).from_select(list(values), rows, include_defaults=False)
        return made.on_conflict_do_nothing(index_elements=["domain", "command_id"]).returning(command.c.command_id)

    def _build_for_postgres(self, domain: str) -> Any:
        """Messages, rows and audit in one statement; ids that are there already get no row, and so no audit."""
        command, batch, queue = self._tables.command, self._batch.rows, message_table(queue_of(domain))
        now = self._records.now()
        messages = select(now, cast(batch.c.data, JSONB)).select_from(batch)
        id_ = queue.c.message["command_id"].astext.label("command_id")
        sent = insert(queue).from_select(["vt", "message"], messages).returning(queue.c.msg_id, id_).cte("sent")
        values = self._values(domain) | {"msg_id": sent.c.msg_id}
        rows = select(*values.values()).select_from(batch.join(sent, sent.c.command_id == batch.c.command_id))
        made = (
            postgres_insert(command)
            .from_select(list(values), rows.order_by(sent.c.msg_id), include_defaults=False)
            .on_conflict_do_nothing(index_elements=["domain", "command_id"])
            .returning(command.c.domain, command.c.command_id)
            .cte("made")
        )
        lines = select(made.c.domain, made.c.command_id, literal_column("'SENT'"), now)
        audit = insert(self._tables.audit).from_select(["domain", "command_id", "event_type", "at"], lines)
        return select(made.c.command_id).add_cte(audit.cte("audited"))


def queues_of(commands: Sequence[NewCommand]) -> dict[str, bool]:
    """The queues that commands need, in order, and whether workers choose there by kind."""
    needed = {command.reply_to: False for command in commands if command.reply_to is not None}
    needed |= {queue_of(command.domain): True for command in commands}
    return dict(sorted(needed.items()))
