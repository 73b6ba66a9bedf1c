"""Reading the bus: commands, their audit, their batches. Nothing is changed here."""

from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, func, literal_column, select

from redrive import Redrive
from redrive.errors import UsageError
from redrive.lane import Page
from redrive.systems.commands.messages import Messages
from redrive.systems.commands.tables import COUNTED
from redrive.systems.commands.values import (
    AuditEvent,
    BatchRecord,
    BatchStatus,
    CommandRecord,
    CommandStatus,
    can_be_stored,
    check_limit,
    check_text,
)

LOOK_WITHIN = timedelta(seconds=2)
"""How long a person is kept waiting for an answer."""
LOOKED_AT_MAX = 50_000
"""How many commands a page for people reads: 50 ms if no index serves its filter."""
_KNOWN = tuple(one.name for one in fields(CommandRecord) if one.name not in ("reply_to", "data"))
"""What a record has from the column of the same name."""


class _Asked(NamedTuple):
    """The conditions of a filter: those that an index answers, and those that each row must be read for."""

    by_index: list[ColumnElement[bool]]
    by_row: list[ColumnElement[bool]]


class Reader:
    """What can be asked of the bus."""

    def __init__(self, app: Redrive, messages: Messages) -> None:
        self._app = app
        self._messages = messages
        self._tables = messages.tables

    async def get_command(self, domain: str, command_id: str | UUID) -> CommandRecord | None:
        """One command, with its data as long as its message is there; None if there is no such command."""
        await self._app.open()
        if not can_be_stored(domain, str(command_id)):
            return None
        return await self._app.database.read(self._get_command, domain, str(command_id))

    def _get_command(self, connection: Connection, domain: str, command_id: str) -> CommandRecord | None:
        c = self._tables.command.c
        asked = select(self._tables.command).where(c.domain == domain, c.command_id == command_id)
        found = connection.execute(asked).mappings().first()
        if found is None:
            return None
        return _record(found, data=self._messages.data_of(connection, found))

    async def query_commands(
        self,
        domain: str | None = None,
        status: CommandStatus | str | None = None,
        type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CommandRecord]:
        """A page of commands, newest first; pass its cursor for the next one. `created_before` is not included.

        A filter that few commands match may have to read all of them: of the statuses only the troubleshooting queue has an
        index.
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
    ) -> Page[CommandRecord]:
        """The same for a person who is waiting: a page reads no more than 50,000 commands.

        So it may hold fewer than `limit`, even none, and still have a cursor that continues after the last one read.
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
    ) -> _Asked:
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
        self, connection: Connection, asked: _Asked, last: int | None, limit: int, *, lowest: int | None = None
    ) -> Page[CommandRecord]:
        c = self._tables.command.c
        found = select(c.reply_queue, *(c[name] for name in _KNOWN)).where(*asked.by_index, *asked.by_row)
        if last is not None:
            found = found.where(c.id < last)
        if lowest is not None:
            found = found.where(c.id >= lowest)
        rows = connection.execute(found.order_by(c.id.desc()).limit(limit + 1)).mappings().all()
        cursor = str(rows[limit - 1]["id"]) if len(rows) > limit else None
        return Page(items=[_record(row) for row in rows[:limit]], cursor=cursor)

    def _browse(self, connection: Connection, asked: _Asked, last: int | None, limit: int) -> Page[CommandRecord]:
        if not asked.by_row:  # then every command that is read is shown
            return self._query(connection, asked, last, limit)
        lowest = self._lowest_looked_at(connection, asked, last)
        page = self._query(connection, asked, last, limit, lowest=lowest)
        if page.cursor is not None or lowest is None:
            return page
        return Page(items=page.items, cursor=str(lowest))

    def _lowest_looked_at(self, connection: Connection, asked: _Asked, last: int | None) -> int | None:
        """The lowest id that a page reads; None if it can read all that are left."""
        c = self._tables.command.c
        ids = select(c.id).where(*asked.by_index).order_by(c.id.desc()).offset(LOOKED_AT_MAX - 1).limit(1)
        found = connection.execute(ids if last is None else ids.where(c.id < last)).scalar()
        return None if found is None else int(found)

    async def audit_trail(
        self, command_id: str | UUID, domain: str | None = None, *, latest: int | None = None
    ) -> list[AuditEvent]:
        """Everything that happened to a command, oldest first; name the domain if several use the id.

        With `latest`, only the last so many lines.
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
        names = ("domain", "command_id", "event_type", "at")
        return [
            AuditEvent(**{name: row[name] for name in names}, details=row["details"] or {})
            for row in reversed(found.mappings().all())
        ]

    async def get_batch(self, domain: str, batch_id: str | UUID) -> BatchRecord | None:
        """A batch with its commands counted by state; None if there is no such batch."""
        await self._app.open()
        if not can_be_stored(domain, str(batch_id)):
            return None
        return await self._app.database.read(self._get_batch, domain, str(batch_id))

    def _get_batch(self, connection: Connection, domain: str, batch_id: str) -> BatchRecord | None:
        c, command = self._tables.batch.c, self._tables.command.c
        asked = select(self._tables.batch).where(c.domain == domain, c.batch_id == batch_id)
        row = connection.execute(asked).mappings().first()
        if row is None:
            return None
        running = select(func.count()).where(
            command.batch_id == batch_id, command.domain == domain, command.status == "IN_PROGRESS"
        )
        open_ = row["total"] - sum(row[name] for name in COUNTED)
        in_progress = min(connection.execute(running).scalar_one(), open_)
        same = ("domain", "batch_id", "name", "custom_data", "total", *COUNTED, "created_at", "completed_at")
        return BatchRecord(
            **{name: row[name] for name in same},
            status=BatchStatus(row["status"]),
            pending=open_ - in_progress,
            in_progress=in_progress,
        )


def _record(row: Any, *, data: Any = None) -> CommandRecord:
    known = {name: row[name] for name in _KNOWN}
    known["status"] = CommandStatus(row["status"])
    return CommandRecord(**known, reply_to=row["reply_queue"], data=data)


def _checked_page(limit: int, cursor: str | None) -> int | None:
    """The id that the page before ended with, if any."""
    check_limit(limit)
    if cursor is None:
        return None
    if not isinstance(cursor, str) or not cursor.isdecimal() or len(cursor) > 18:
        raise UsageError(f"cursor must be the one that the last page gave, not {cursor!r:.80}")
    return int(cursor)
