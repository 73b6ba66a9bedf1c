"""Where commands and replies wait: on PostgreSQL in queues of PGMQ, on SQLite in rows.

This is all that differs between the two databases; nothing else in the bus asks which one it is on. A command's row is the
same on both. In a queue its data is part of its message, and gone with it; without queues it stands in the row.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    true,
)

from redrive.extend import Beside, Database
from redrive.queues import ExtraColumns, PgmqLedger, QueueLayout, Queues, SqlLedger, archive_table, message_table
from redrive.sql import Batch, Instant
from redrive.systems.commands.tables import LANE, Tables, ledger_table, make_tables
from redrive.systems.commands.values import ENDING, NewCommand, join_kind, queue_of, split_kind

_FIELDS = ("command_id", "command_type", "data", "reply_queue", "correlation_id", "batch_id", "trace")
_SENT: ColumnElement[str] = literal_column("'SENT'")


def open_messages(database: Database) -> "Messages":
    """The messages of this database."""
    return (InQueues if database.dialect.has_queues else InRows)(database)


class Messages(ABC):
    """The tables of the bus in one database, and how commands and replies get in and out."""

    one_writer: ClassVar[bool]
    """Whether a transaction that writes has the database to itself until it ends."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.tables: Tables = make_tables(has_queues=database.dialect.has_queues)
        self.ledger_table = ledger_table(has_queues=database.dialect.has_queues)
        self.now: ColumnElement[Any] = bindparam("now", callable_=database.now, type_=Instant)
        """The clock of the ledger, for statements that are built once: the server's own where it has one, else the application's."""
        if database.server_clock:
            self.now = func.statement_timestamp(type_=Instant)
        self._sent = Batch(database.dialect, {**{name: Text() for name in _FIELDS}, "max_attempts": Integer()})
        self._replied = Batch(database.dialect, {"message": Text()})
        self._sends: dict[str, Sequence[Any]] = {}
        self._replies: dict[str, Any] = {}

    @abstractmethod
    def ledger(self, beside: Beside, extra: ExtraColumns) -> SqlLedger:
        """The commands as a ledger."""

    @abstractmethod
    def data_of(self, connection: Connection, row: RowMapping) -> Any:
        """The data of a command; None if it had none, or has none any more."""

    def lacking_queues(self, connection: Connection, queues: Mapping[str, bool]) -> Mapping[str, bool]:  # noqa: ARG002
        """Those of the queues that must be made before the caller's transaction needs them."""
        return {}

    def make_queues(self, connection: Connection, queues: Mapping[str, bool]) -> None:  # noqa: B027
        """Make queues that are not there yet; with True also the index by which workers find what they can handle."""

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self, connection: Connection, domain: str, commands: Iterable[NewCommand], batch_id: str | None
    ) -> set[str]:
        """Store commands of a domain with the first line of their audit. Returns the ids that were not there yet."""
        if domain not in self._sends:
            self._sends[domain] = self._build_send(domain)
        parameters = self._sent.parameters([self._row(command, batch_id) for command in commands])
        first, *others = self._sends[domain]
        new = set(connection.execute(first, parameters).scalars())
        for statement in others:
            connection.execute(statement, parameters)
        return new

    @abstractmethod
    def _build_send(self, domain: str) -> Sequence[Any]:
        """The statements that send commands; the first of them returns the new ids."""

    @abstractmethod
    def _content(self, command: NewCommand) -> str:
        """What is stored of a command besides its row, as JSON text."""

    def _row(self, command: NewCommand, batch_id: str | None) -> tuple[Any, ...]:
        return (
            command.command_id,
            command.command_type,
            self._content(command),
            command.reply_to,
            command.correlation_id,
            batch_id,
            command.trace,
            command.max_attempts,
        )

    def _insert_rows(self, domain: str, source: Any, **more: Any) -> Any:
        """The rows; ids that are there already are left alone."""
        command, batch = self.tables.command, self._sent.rows
        values = {
            "domain": bindparam(None, domain, type_=Text),
            "command_id": batch.c.command_id,
            "command_type": batch.c.command_type,
            "queue_name": bindparam(None, queue_of(domain), type_=Text),
            "status": literal_column("'PENDING'"),
            "attempts": literal_column("0"),
            "max_attempts": batch.c.max_attempts,
            "due_at": self.now,
            "reply_queue": batch.c.reply_queue,
            "correlation_id": batch.c.correlation_id,
            "batch_id": batch.c.batch_id,
            "trace": batch.c.trace,
            "created_at": self.now,
            "updated_at": self.now,
            **more,
        }
        # SQLite reads ON CONFLICT as the condition of a join where there is no WHERE.
        rows = select(*values.values()).select_from(source).where(true())
        if "msg_id" in more:
            rows = rows.order_by(more["msg_id"])
        made = self.database.insert(command).from_select(list(values), rows, include_defaults=False)
        fresh = made.on_conflict_do_nothing(index_elements=["domain", "command_id"])
        return fresh.returning(command.c.command_id, command.c.domain)

    def _insert_audit(self, rows: Select[Any]) -> Any:
        return insert(self.tables.audit).from_select(["domain", "command_id", "event_type", "at"], rows)

    # --- replies ----------------------------------------------------------------------------------------------------

    def reply(self, connection: Connection, queue: str, messages: Iterable[str]) -> None:
        """Put messages, which are JSON text, into a queue for replies."""
        self.make_queues(connection, {queue: False})
        if queue not in self._replies:
            self._replies[queue] = self._build_reply(queue)
        connection.execute(self._replies[queue], self._replied.parameters((message,) for message in messages))

    @abstractmethod
    def _build_reply(self, queue: str) -> Any:
        """Put messages into a queue."""

    def take_replies(self, connection: Connection, queue: str, limit: int) -> list[Mapping[str, Any]]:
        """Take messages out of a queue for replies, oldest first."""
        self.make_queues(connection, {queue: False})
        table, waiting = self._waiting_replies(queue)
        ids = list(connection.execute(waiting.order_by(table.c.msg_id).limit(limit)).scalars())
        if not ids:
            return []
        taken = delete(table).where(table.c.msg_id.in_(ids)).returning(table.c.msg_id, table.c.message)
        return [row.message for row in sorted(connection.execute(taken), key=lambda row: int(row.msg_id))]

    @abstractmethod
    def _waiting_replies(self, queue: str) -> tuple[Table, Select[Any]]:
        """Where the replies of a queue are, and the ids of those that can be taken."""


class InRows(Messages):
    """SQLite: no queues. Commands wait in their own table, replies in another."""

    one_writer = True

    def ledger(self, beside: Beside, extra: ExtraColumns) -> SqlLedger:
        command = self.tables.command
        return SqlLedger(self.database, self.ledger_table, command, name=LANE, beside=beside, extra=extra)

    def data_of(self, connection: Connection, row: RowMapping) -> Any:  # noqa: ARG002
        return row["data"]

    def _content(self, command: NewCommand) -> str:
        return command.data_json

    def _build_send(self, domain: str) -> Sequence[Any]:
        batch = self._sent.rows
        lines = select(bindparam(None, domain, type_=Text), batch.c.command_id, _SENT, self.now)
        rows = self._insert_rows(domain, batch, data=batch.c.data)
        return rows, self._insert_audit(lines)

    def _build_reply(self, queue: str) -> Any:
        rows = select(bindparam(None, queue, type_=Text), self._replied.rows.c.message, self.now)
        return insert(self._reply_table).from_select(["queue_name", "message", "enqueued_at"], rows)

    def _waiting_replies(self, queue: str) -> tuple[Table, Select[Any]]:
        table = self._reply_table
        return table, select(table.c.msg_id).where(table.c.queue_name == queue)

    @property
    def _reply_table(self) -> Table:
        assert self.tables.reply is not None
        return self.tables.reply


class InQueues(Messages):
    """PostgreSQL: queues of PGMQ, which its other clients can read too."""

    one_writer = False
    layout = QueueLayout(
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

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._queues = Queues(self.layout.kind_field)

    def ledger(self, beside: Beside, extra: ExtraColumns) -> SqlLedger:
        return PgmqLedger(
            self.database, self.ledger_table, self.tables.command, self.layout, name=LANE, beside=beside, extra=extra,
            queues=self._queues,
        )  # fmt: skip

    def data_of(self, connection: Connection, row: RowMapping) -> Any:
        for table in (message_table(row["queue_name"]), archive_table(row["queue_name"])):
            asked = select(table.c.message["data"]).where(table.c.msg_id == row["msg_id"])
            if found := connection.execute(asked).first():
                return found[0]
        return None

    def lacking_queues(self, connection: Connection, queues: Mapping[str, bool]) -> Mapping[str, bool]:
        """Not those that this very transaction has made before: whoever makes them too would wait for it."""
        made = self._queues.made_here(connection)
        return {queue: by_kind for queue, by_kind in queues.items() if not (self._queues.knows(queue) or queue in made)}

    def make_queues(self, connection: Connection, queues: Mapping[str, bool]) -> None:
        for queue, by_kind in queues.items():
            self._queues.ensure(connection, queue, by_kind=by_kind)

    def _content(self, command: NewCommand) -> str:
        """The message: whoever reads the queue finds all of the command in it. Its data is JSON text already."""
        known = {
            "domain": command.domain,
            "command_id": command.command_id,
            "command_type": command.command_type,
            "correlation_id": command.correlation_id,
            "reply_to": command.reply_to,
        }
        return f'{json.dumps(known, ensure_ascii=False)[:-1]}, "data": {command.data_json}}}'

    def _build_send(self, domain: str) -> Sequence[Any]:
        """Messages, rows and audit in one statement; ids that are there already get no row, and so no audit."""
        batch, queue = self._sent.rows, message_table(queue_of(domain))
        messages = select(self.now, cast(batch.c.data, queue.c.message.type)).select_from(batch)
        id_ = queue.c.message["command_id"].astext.label("command_id")
        sent = insert(queue).from_select(["vt", "message"], messages).returning(queue.c.msg_id, id_).cte("sent")
        source = batch.join(sent, sent.c.command_id == batch.c.command_id)
        made = self._insert_rows(domain, source, msg_id=sent.c.msg_id).cte("made")
        audit = self._insert_audit(select(made.c.domain, made.c.command_id, _SENT, self.now))
        return [select(made.c.command_id).add_cte(audit.cte("audited"))]

    def _build_reply(self, queue: str) -> Any:
        table = message_table(queue)
        rows = select(self.now, cast(self._replied.rows.c.message, table.c.message.type))
        return insert(table).from_select(["vt", "message"], rows)

    def _waiting_replies(self, queue: str) -> tuple[Table, Select[Any]]:
        """What another client has read is hidden until it has dealt with it."""
        table = message_table(queue)
        return table, select(table.c.msg_id).where(table.c.vt <= self.now).with_for_update(skip_locked=True)
