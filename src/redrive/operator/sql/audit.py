"""The audit in tables of SQL: pages of acts, and pages of what an act has changed. An index serves each, however much there is."""

import json
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, and_, case, cast, func, null, or_, select

from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.on_database import OnDatabase, looks
from redrive.operator.audit import THINGS_NAMED_MAX, AuditEntry
from redrive.operator.cursors import Position, no_cursor, read_cursor, write_cursor
from redrive.operator.sql.cursors import behind
from redrive.operator.sql.reads import LOOK_WITHIN
from redrive.ports import Page

_a = schema.audit
_part = schema.audit.alias("part")
_IN_ALL = select(cast(func.sum(_part.c.amount), BigInteger)).where(_part.c.whole == _a.c.whole).scalar_subquery()
_FIRST = select(func.min(_part.c.id)).where(_part.c.whole == _a.c.whole).scalar_subquery()
_FEW = case((_a.c.amount <= THINGS_NAMED_MAX, _a.c.things), else_=null())
_ENTRY = select(
    *(_a.c[name] for name in ("id", "ledger", "at", "act", "actor", "reason", "origin", "asked", "folded", "number")),
    case((_a.c.whole.is_(None), _a.c.amount), else_=_IN_ALL).label("amount"),
    _a.c.amount.label("of_line"),
    _FEW.label("things"),
)
# Two processes that begin the same act at the same moment may both think that they lead it.
_LEADS = and_(_a.c.leads, or_(_a.c.whole.is_(None), _a.c.id == _FIRST))


class SqlAudit(OnDatabase):
    """The audit of one database; see `Audit`."""

    async def page(self, ledger: str | None = None, *, cursor: str | None = None, limit: int = 100) -> Page[AuditEntry]:
        """See `Audit.page`."""
        return await self._page(ledger, None if cursor is None else read_cursor(cursor, _cursor_id), limit)

    async def get(self, id: str) -> AuditEntry | None:
        """See `Audit.get`."""
        return await self._get(_read_id(id))

    async def things(self, id: str, *, cursor: str | None = None, limit: int = 100) -> Page[str]:
        """See `Audit.things`."""
        return await self._things(_read_id(id), (0, 0) if cursor is None else _read_place(cursor), limit)

    @looks(LOOK_WITHIN)
    def _page(self, connection: Connection, ledger: str | None, after: Position | None, limit: int) -> Page[AuditEntry]:
        asked = _ENTRY.where(_LEADS).order_by(_a.c.at.desc(), _a.c.id.desc()).limit(limit + 1)
        if ledger is not None:
            asked = asked.where(_a.c.ledger == ledger)
        if after is not None:
            asked = asked.where(behind(_a.c.at, _a.c.id, after, connection, newest_first=True))
        rows = connection.execute(asked).all()
        more = write_cursor(Position(rows[limit - 1].at, rows[limit - 1].id)) if len(rows) > limit else None
        return Page(items=[_entry(row) for row in rows[:limit]], cursor=more)

    @looks(LOOK_WITHIN)
    def _get(self, connection: Connection, id: int) -> AuditEntry | None:
        row = connection.execute(_ENTRY.where(_a.c.id == id)).first()
        return None if row is None else _entry(row)

    @looks(LOOK_WITHIN)
    def _things(self, connection: Connection, id: int, after: tuple[int, int], limit: int) -> Page[str]:
        """The things of one line after the other. A line may name a thousand, so only those that are needed are read."""
        line, start = after
        lines = connection.execute(_lines_of(id, line).limit(limit + 1)).all()
        needed, amount = list[int](), 0
        for row in lines:
            needed.append(row.id)
            amount += row.amount - (start if row.id == line else 0)
            if amount > limit:
                break
        rows = connection.execute(select(_a.c.id, _a.c.things).where(_a.c.id.in_(needed)).order_by(_a.c.id)).all()
        named = [(row.id, at, thing) for row in rows for at, thing in enumerate(json.loads(row.things))]
        named = [(one, at, thing) for one, at, thing in named if (one, at) >= (line, start)]
        more = f"{named[limit][0]}-{named[limit][1]}" if len(named) > limit else None
        return Page(items=[thing for _, _, thing in named[:limit]], cursor=more)


def _lines_of(id: int, first: int) -> Select[Any]:
    """The lines of the act that this one belongs to, from `first` on."""
    whole = select(_part.c.whole).where(_part.c.id == id).scalar_subquery()
    lines = select(_a.c.id, _a.c.amount).where(or_(_a.c.id == id, _a.c.whole == whole), _a.c.id >= first)
    return lines.order_by(_a.c.id)


def _entry(row: Any) -> AuditEntry:
    values = row._asdict()
    told = values.pop("of_line")
    # Of an act that went on in other lines not all of the few are here.
    things = [] if values["things"] is None or told != values["amount"] else json.loads(values["things"])
    return AuditEntry(**values | {"things": things, "asked": json.loads(values["asked"] or "{}")})


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _read_id(text: str) -> int:
    if not _is_number(text):
        raise UsageError(f"an act of the audit has a number, not {text!r:.80}")
    return int(text)


def _cursor_id(text: str) -> int:
    if not _is_number(text):
        raise no_cursor()
    return int(text)


def _read_place(text: str) -> tuple[int, int]:
    line, _, start = text.partition("-")
    return _cursor_id(line), _cursor_id(start)
