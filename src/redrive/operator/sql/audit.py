"""The audit log in a table of SQL."""

from typing import Any

from sqlalchemy import Connection, select

from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.on_database import OnDatabase, looks
from redrive.operator.audit import AuditEntry
from redrive.operator.sql.reads import LOOK_WITHIN
from redrive.ports import Page

LOOKED_AT_MAX = 20_000
"""Entries of other ledgers that one page looks past."""


class SqlAudit(OnDatabase):
    """The audit log of one database; see `Audit`."""

    async def page(self, ledger: str | None = None, *, cursor: str | None = None, limit: int = 100) -> Page[AuditEntry]:
        """See `Audit.page`."""
        return await self._page(ledger, None if cursor is None else _read_cursor(cursor), limit)

    @looks(LOOK_WITHIN)
    def _page(self, connection: Connection, ledger: str | None, before: int | None, limit: int) -> Page[AuditEntry]:
        d = schema.deed
        recent = select(d).order_by(d.c.id.desc()).limit(limit + 1 if ledger is None else LOOKED_AT_MAX)
        if before is not None:
            recent = recent.where(d.c.id < before)
        if ledger is None:
            rows = connection.execute(recent).all()
            following = rows[limit - 1].id if len(rows) > limit else None
        else:
            few = recent.subquery("recent")
            of_ledger = select(few).where(few.c.ledger == ledger).order_by(few.c.id.desc()).limit(limit + 1)
            rows = connection.execute(of_ledger).all()
            edge = select(recent.subquery("edge").c.id).order_by("id").limit(1)
            following = rows[limit - 1].id if len(rows) > limit else _edge(connection, edge)
        return Page(items=[AuditEntry(**row._asdict()) for row in rows[:limit]], cursor=following)


def _edge(connection: Connection, edge: Any) -> int | None:
    """Where a look that found too little ended, if there is more behind it."""
    d = schema.deed
    last = connection.execute(edge).scalar()
    if last is None:
        return None
    return last if connection.execute(select(d.c.id).where(d.c.id < last).limit(1)).first() else None


def _read_cursor(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**63):
        raise UsageError("the cursor is not one of ours: begin again without it")
    return int(text)
