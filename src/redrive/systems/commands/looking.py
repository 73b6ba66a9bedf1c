"""Looking things up on the bus, which never changes anything; and taking replies, which does."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Integer, bindparam, delete, func, select

from redrive import Redrive, UsageError
from redrive.systems.commands.model import (
    AuditEvent,
    BatchRecord,
    BatchStatus,
    CommandPage,
    CommandRecord,
    CommandStatus,
    Outcome,
    Reply,
    check_reply_queue,
)
from redrive.systems.commands.table import COUNTED, Tables
from redrive.tables import Instant, Queues, archive_table, message_table, run_within

PAGE_MAX = 1000
_KNOWN = (
    "domain", "command_id", "command_type", "status", "attempts", "max_attempts", "queue_name", "msg_id", "due_at",
    "lease_until", "last_error_type", "last_error_code", "last_error_msg", "correlation_id", "batch_id", "created_at",
    "updated_at", "troubled_at",
)  # fmt: skip


class Looking:
    """What can be asked of the bus."""

    def __init__(self, app: Redrive, tables: Tables, queues: Queues) -> None:
        self._app = app
        self._tables = tables
        self._queues = queues
        self._postgres = app.database.dialect.name == "postgresql"

    async def get_command(self, domain: str, command_id: str | UUID) -> CommandRecord | None:
        """One command, with its data as long as its message is there; None if there is no such command."""
        await self._app.open()
        return await self._app.database.read(self._get_command, domain, str(command_id))

    def _get_command(self, connection: Connection, domain: str, command_id: str) -> CommandRecord | None:
        c = self._tables.command.c
        found = (
            connection.execute(select(self._tables.command).where(c.domain == domain, c.command_id == command_id))
            .mappings()
            .first()
        )
        if found is None:
            return None
        return _record(found, data=self._data(connection, found))

    def _data(self, connection: Connection, row: Any) -> Any:
        if not self._postgres:
            return row["data"]
        for table in (message_table(row["queue_name"]), archive_table(row["queue_name"])):
            asked = select(table.c.message["data"]).where(table.c.msg_id == row["msg_id"])
            if found := connection.execute(asked).first():
                return found[0]
        return None

    async def query_commands(
        self,
        domain: str | None = None,
        status: CommandStatus | str | None = None,
        type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> CommandPage:
        """A page of commands, newest first; pass its cursor for the next one. `created_before` is not included."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
            raise UsageError(f"limit must lie between 1 and {PAGE_MAX}, not {limit!r}")
        for name, instant in (("created_after", created_after), ("created_before", created_before)):
            if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
                raise UsageError(f"{name} must be a datetime with a time zone, not {instant!r}")
        c = self._tables.command.c
        asked = []
        if domain is not None:
            asked.append(c.domain == domain)
        if status is not None:
            try:
                wanted = CommandStatus(status)
            except ValueError:
                raise UsageError(f"status must be one of {', '.join(CommandStatus)}, not {status!r:.80}") from None
            asked.append(c.status == wanted.value)
            if wanted is CommandStatus.IN_TROUBLESHOOTING_QUEUE:
                asked.append(c.troubled_at.is_not(None))
        if type is not None:
            asked.append(c.command_type == type)
        if created_after is not None:
            asked.append(c.created_at >= created_after)
        if created_before is not None:
            asked.append(c.created_at < created_before)
        if cursor is not None:
            asked.append(c.id < _cursor(cursor))
        await self._app.open()
        return await self._app.database.read(self._query, asked, limit)

    def _query(self, connection: Connection, asked: list[Any], limit: int) -> CommandPage:
        c = self._tables.command.c
        found = select(c.id, c.reply_queue, *(c[name] for name in _KNOWN)).where(*asked)
        rows = connection.execute(found.order_by(c.id.desc()).limit(limit + 1)).mappings().all()
        cursor = str(rows[limit - 1]["id"]) if len(rows) > limit else None
        return CommandPage(commands=[_record(row) for row in rows[:limit]], cursor=cursor)

    async def audit_trail(self, command_id: str | UUID, domain: str | None = None) -> list[AuditEvent]:
        """Everything that happened to a command, oldest first; name the domain where several use the id."""
        await self._app.open()
        return await self._app.database.read(self._audit_trail, str(command_id), domain)

    def _audit_trail(self, connection: Connection, command_id: str, domain: str | None) -> list[AuditEvent]:
        c = self._tables.audit.c
        asked = select(self._tables.audit).where(
            c.command_id == command_id, *([c.domain == domain] if domain is not None else [])
        )
        return [
            AuditEvent(
                domain=row.domain,
                command_id=row.command_id,
                event_type=row.event_type,
                at=row.at,
                details=row.details or {},
            )
            for row in connection.execute(asked.order_by(c.id))
        ]

    async def get_batch(self, domain: str, batch_id: str | UUID) -> BatchRecord | None:
        """A batch with its commands counted by state; None if there is no such batch."""
        await self._app.open()
        return await self._app.database.read(self._get_batch, domain, str(batch_id))

    def _get_batch(self, connection: Connection, domain: str, batch_id: str) -> BatchRecord | None:
        c, command = self._tables.batch.c, self._tables.command.c
        row = (
            connection.execute(select(self._tables.batch).where(c.domain == domain, c.batch_id == batch_id))
            .mappings()
            .first()
        )
        if row is None:
            return None
        running = select(func.count()).where(
            command.batch_id == batch_id, command.domain == domain, command.status == "IN_PROGRESS"
        )
        open_ = row["total"] - sum(row[name] for name in COUNTED)
        in_progress = min(connection.execute(running).scalar_one(), open_)
        return BatchRecord(
            domain=domain,
            batch_id=batch_id,
            name=row["name"],
            custom_data=row["custom_data"],
            status=BatchStatus(row["status"]),
            total=row["total"],
            pending=open_ - in_progress,
            in_progress=in_progress,
            **{name: row[name] for name in COUNTED},
            created_at=row["created_at"],
            completed_at=row["completed_at"],
        )

    async def ids_of(self, domain: str, command_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """The rows of commands, by their ids, and where they stand."""
        return await self._app.database.read(self._ids_of, domain, command_ids)

    def _ids_of(self, connection: Connection, domain: str, command_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        c = self._tables.command.c
        asked = select(c.command_id, c.id, c.status).where(c.domain == domain, c.command_id.in_(command_ids))
        return {command_id: (id_, status) for command_id, id_, status in connection.execute(asked)}

    async def count_troubled(self, domain: str | None) -> int:
        """How many commands wait for a person."""
        await self._app.open()
        return await self._app.database.read(self._count_troubled, domain)

    def _count_troubled(self, connection: Connection, domain: str | None) -> int:
        c = self._tables.command.c
        asked = select(func.count()).where(c.troubled_at.is_not(None))
        return int(connection.execute(asked if domain is None else asked.where(c.domain == domain)).scalar_one())

    # --- replies ----------------------------------------------------------------------------------------------------

    async def take_replies(self, queue: str, *, limit: int = 100, connection: Any = None) -> list[Reply]:
        """Take replies out of their queue, oldest first.

        With your own `connection` they are gone only when your transaction commits, so none is lost if you fail. On
        PostgreSQL the queue is one of PGMQ's, and any of its clients can read it instead.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
            raise UsageError(f"limit must lie between 1 and {PAGE_MAX}, not {limit!r}")
        check_reply_queue("queue", queue)
        await self._app.open()
        if connection is not None:
            return await run_within(connection, self._take_replies, queue, limit)
        return await self._app.database.write(self._take_replies, queue, limit)

    def _take_replies(self, connection: Connection, queue: str, limit: int) -> list[Reply]:
        if self._postgres:
            self._queues.ensure(connection, queue)
        table = message_table(queue) if self._postgres else self._tables.reply
        assert table is not None
        oldest = select(table.c.msg_id).order_by(table.c.msg_id).limit(bindparam("limit", type_=Integer))
        if self._postgres:  # what another client has read is hidden until it has dealt with it
            database = self._app.database
            now = (
                func.statement_timestamp() if database.server_clock else bindparam(None, database.now(), type_=Instant)
            )
            oldest = oldest.where(table.c.vt <= now).with_for_update(skip_locked=True)
        else:
            oldest = oldest.where(table.c.queue_name == queue)
        ids = list(connection.execute(oldest, {"limit": limit}).scalars())
        if not ids:
            return []
        taken = delete(table).where(table.c.msg_id.in_(ids)).returning(table.c.msg_id, table.c.message)
        rows = sorted(connection.execute(taken).all(), key=lambda row: int(row[0]))
        return [_reply(message) for _, message in rows]


def _record(row: Any, *, data: Any = None) -> CommandRecord:
    known = {name: row[name] for name in _KNOWN}
    known["status"] = CommandStatus(row["status"])
    return CommandRecord(**known, reply_to=row["reply_queue"], data=data)


def _reply(message: Any) -> Reply:
    return Reply(
        domain=message["domain"],
        command_id=message["command_id"],
        command_type=message["command_type"],
        correlation_id=message["correlation_id"],
        outcome=Outcome(message["outcome"]),
        result=message.get("result"),
        error=message.get("error"),
    )


def _cursor(text: str) -> int:
    if not isinstance(text, str) or not text.isdecimal() or len(text) > 18:
        raise UsageError(f"cursor must be the one that the last page gave, not {text!r:.80}")
    return int(text)
