"""Looking things up on the bus, which never changes anything; and taking replies, which does."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Integer, bindparam, delete, func, literal_column, select

from redrive import Redrive
from redrive.errors import UsageError
from redrive.extend import Instant, run_within
from redrive.queues import Queues, archive_table, message_table
from redrive.systems.commands.tables import COUNTED, Tables
from redrive.systems.commands.values import (
    AuditEvent,
    BatchRecord,
    BatchStatus,
    CommandPage,
    CommandRecord,
    CommandStatus,
    Outcome,
    Reply,
    can_be_stored,
    check_reply_queue,
    check_text,
)

PAGE_MAX = 1000
LOOK_WITHIN = timedelta(seconds=2)
"""How long a look may take while a person waits."""
LOOKED_AT_MAX = 50_000
"""How many commands a page for people looks at: 50 ms where no index serves its filter."""
COUNTED_MAX = 100_000
"""Up to how many of what waits for a person is counted."""
_KNOWN = (
    "id", "domain", "command_id", "command_type", "status", "attempts", "max_attempts", "queue_name", "msg_id", "due_at",
    "lease_until", "last_error_type", "last_error_code", "last_error_msg", "correlation_id", "batch_id", "created_at",
    "updated_at", "troubled_at",
)  # fmt: skip


class _Asked(NamedTuple):
    """What a filter asks for: what an index holds the commands of, and what each row must say for itself."""

    by_index: list[ColumnElement[bool]]
    by_row: list[ColumnElement[bool]]


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
        if not can_be_stored(domain, str(command_id)):
            return None
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
        """A page of commands, newest first; pass its cursor for the next one. `created_before` is not included.

        A filter that few commands match may have to read all of them: no index tells one status from another, but for the
        troubleshooting queue.
        """
        asked = self._conditions(domain, status, type, created_after, created_before)
        last = _checked_page(limit, cursor)
        await self._app.open()
        return await self._app.database.read(self._query, asked, last, limit)

    async def browse_commands(
        self,
        domain: str | None = None,
        status: CommandStatus | str | None = None,
        type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> CommandPage:
        """The same for a person who waits: a page that looks at no more than 50,000 commands.

        So it may hold fewer than `limit`, even none, and still have a cursor that goes on behind what it has looked at.
        `TooSlowError` if the database does not answer within two seconds.
        """
        asked = self._conditions(domain, status, type, created_after, created_before)
        last = _checked_page(limit, cursor)
        await self._app.open()
        return await self._app.database.look(LOOK_WITHIN, self._browse, asked, last, limit)

    def _conditions(
        self,
        domain: str | None,
        status: CommandStatus | str | None,
        type: str | None,
        created_after: datetime | None,
        created_before: datetime | None,
    ) -> "_Asked":
        for name, instant in (("created_after", created_after), ("created_before", created_before)):
            if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
                raise UsageError(f"{name} must be a datetime with a time zone, not {instant!r}")
        c, asked = self._tables.command.c, _Asked([], [])
        if status is not None:
            try:
                wanted = CommandStatus(status)
            except ValueError:
                raise UsageError(f"status must be one of {', '.join(CommandStatus)}, not {status!r:.80}") from None
            if wanted is CommandStatus.IN_TROUBLESHOOTING_QUEUE:
                asked.by_index.append(c.troubled_at.is_not(None))
            else:
                asked.by_row.append(c.status == wanted.value)
        if domain is not None:
            asked.by_row.append(c.domain == check_text("domain", domain))
        if type is not None:
            asked.by_row.append(c.command_type == check_text("type", type))
        if created_after is not None:
            asked.by_row.append(c.created_at >= created_after)
        if created_before is not None:
            asked.by_row.append(c.created_at < created_before)
        return asked

    def _query(
        self, connection: Connection, asked: "_Asked", last: int | None, limit: int, *, lowest: int | None = None
    ) -> CommandPage:
        c = self._tables.command.c
        found = select(c.reply_queue, *(c[name] for name in _KNOWN)).where(*asked.by_index, *asked.by_row)
        if last is not None:
            found = found.where(c.id < last)
        if lowest is not None:
            found = found.where(c.id >= lowest)
        rows = connection.execute(found.order_by(c.id.desc()).limit(limit + 1)).mappings().all()
        cursor = str(rows[limit - 1]["id"]) if len(rows) > limit else None
        return CommandPage(commands=[_record(row) for row in rows[:limit]], cursor=cursor)

    def _browse(self, connection: Connection, asked: "_Asked", last: int | None, limit: int) -> CommandPage:
        if not asked.by_row:  # then whatever is looked at is shown
            return self._query(connection, asked, last, limit)
        lowest = self._lowest_looked_at(connection, asked, last)
        page = self._query(connection, asked, last, limit, lowest=lowest)
        if page.cursor is not None or lowest is None:
            return page
        return CommandPage(commands=page.commands, cursor=str(lowest))

    def _lowest_looked_at(self, connection: Connection, asked: "_Asked", last: int | None) -> int | None:
        """The id that a page looks down to; None where it can look at all that are left."""
        c = self._tables.command.c
        ids = select(c.id).where(*asked.by_index).order_by(c.id.desc()).offset(LOOKED_AT_MAX - 1).limit(1)
        found = connection.execute(ids if last is None else ids.where(c.id < last)).scalar()
        return None if found is None else int(found)

    async def audit_trail(
        self, command_id: str | UUID, domain: str | None = None, *, latest: int | None = None
    ) -> list[AuditEvent]:
        """Everything that happened to a command, oldest first; name the domain where several use the id.

        With `latest` no more than the last so many.
        """
        await self._app.open()
        if not can_be_stored(str(command_id), *([] if domain is None else [domain])):
            return []
        return await self._app.database.read(self._audit_trail, str(command_id), domain, latest)

    def _audit_trail(
        self, connection: Connection, command_id: str, domain: str | None, latest: int | None
    ) -> list[AuditEvent]:
        c = self._tables.audit.c
        asked = select(self._tables.audit).where(
            c.command_id == command_id, *([c.domain == domain] if domain is not None else [])
        )
        # In an order that no index has: by that of the ids PostgreSQL might look for a few lines through all there are.
        newest_first = (c.id + literal_column("0")).desc()
        found = connection.execute(asked.order_by(newest_first).limit(latest))
        return [
            AuditEvent(
                domain=row.domain,
                command_id=row.command_id,
                event_type=row.event_type,
                at=row.at,
                details=row.details or {},
            )
            for row in reversed(found.all())
        ]

    async def get_batch(self, domain: str, batch_id: str | UUID) -> BatchRecord | None:
        """A batch with its commands counted by state; None if there is no such batch."""
        await self._app.open()
        if not can_be_stored(domain, str(batch_id)):
            return None
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
        known = [one for one in command_ids if can_be_stored(domain, one)]
        return await self._app.database.read(self._ids_of, domain, known)

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

    async def count_troubled_by_domain(self) -> Mapping[str, int]:
        """How many commands of each domain wait for a person, among the latest 100,000 that do; the most first."""
        await self._app.open()
        return await self._app.database.look(LOOK_WITHIN, self._count_by_domain)

    def _count_by_domain(self, connection: Connection) -> dict[str, int]:
        c = self._tables.command.c
        latest = select(c.domain).where(c.troubled_at.is_not(None)).order_by(c.id.desc()).limit(COUNTED_MAX).subquery()
        counted = select(latest.c.domain, func.count()).group_by(latest.c.domain)
        rows = connection.execute(counted.order_by(func.count().desc(), latest.c.domain))
        return {row[0]: row[1] for row in rows}

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


def _checked_page(limit: int, cursor: str | None) -> int | None:
    """The id that the page before ended with, if any."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"limit must lie between 1 and {PAGE_MAX}, not {limit!r}")
    return None if cursor is None else _cursor(cursor)


def _cursor(text: str) -> int:
    if not isinstance(text, str) or not text.isdecimal() or len(text) > 18:
        raise UsageError(f"cursor must be the one that the last page gave, not {text!r:.80}")
    return int(text)
