"""The chain of the audit in a table of SQL.

Lines are written in the commit of what they tell, without their place: an act never waits for the chain. A linker comes a moment later and puts those that
have none behind the head, in the order of their ids. Any number of linkers may do so at once. Numbers are unique: of two that take the same
one, the second takes everything back and comes again.
"""

import hashlib
import json
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby, takewhile
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.exc import IntegrityError

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.audit_lines import write_line
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.operator.chain import AUDITED, PRUNED, AuditLine, ChainHead, ChainVerdict, Check, Linked, link
from redrive.operator.ports import ReadProgress
from redrive.ports import Actor, WholeAct

LINKED_AT_ONCE = 500
ROUNDS_MAX = 20
"""So many commits a linker makes before others have their turn."""
FOLDED_AT_ONCE = 1000
READ_AT_ONCE = 200
"""A line may name a thousand tasks."""
PRUNED_AT_ONCE = 5000
COUNTED_MAX = 10_000

_a, _d = schema.audit, schema.deed
_TOLD = [_a.c[name] for name in AuditLine.__slots__]
_UNLINKED = _a.c.number.is_(None)
_PLACE = update(_a).where(_a.c.id == bindparam("line_id"), _UNLINKED)
_PLACE = _PLACE.values(number=bindparam("place"), previous=bindparam("before"), hash=bindparam("hashed"))
_ALONE = select(_d).where(_d.c.line.is_(None)).order_by(_d.c.id).limit(FOLDED_AT_ONCE)


class _OvertakenError(Exception):
    """Somebody else has just done the same."""


class SqlChain(OnDatabase):
    """The chain of one database; see `Chain`."""

    async def link(self) -> int:
        """See `Chain.link`."""
        linked = 0
        for _ in range(ROUNDS_MAX):
            if not await self._waits():
                break
            try:
                linked += await self._link()
            except (IntegrityError, _OvertakenError):
                break  # another linker is at it
        return linked

    @reads
    def head(self, connection: Connection) -> ChainHead:
        """See `Chain.head`."""
        return _head(connection)

    @reads
    def unlinked(self, connection: Connection) -> int:
        """See `Chain.unlinked`."""
        few = [select(_a.c.id).where(_UNLINKED), select(_d.c.id).where(_d.c.line.is_(None))]
        counts = [select(func.count()).select_from(one.limit(COUNTED_MAX).subquery()) for one in few]
        return sum(int(connection.execute(one).scalar_one()) for one in counts)

    async def verify(self, *, head: str | None = None, progress: ReadProgress | None = None) -> ChainVerdict:
        """See `Chain.verify`."""
        check, last = Check(head), 0
        while lines := await self._lines(last):
            for one in lines:
                check.take(one)
            last = lines[-1].place.number
            if progress is not None:
                progress(len(lines))
        return check.verdict(unlinked=await self.unlinked())

    async def prune(self, older_than: timedelta, *, by: Actor) -> int:
        """See `Chain.prune`."""
        gone, tries = 0, 0
        before = await self._database.read(self._database.present) - older_than
        by = replace(by, whole=WholeAct(id=uuid4().hex))
        await self.link()
        while True:
            try:
                some = await self._prune(before, by)
            except IntegrityError:  # a linker was quicker, which it hardly is twice
                tries += 1
                if tries == ROUNDS_MAX:
                    raise
                continue
            if not some:
                return gone
            gone += some

    @reads
    def _waits(self, connection: Connection) -> bool:
        """Whether there is anything to link. Two looks into indexes that are nearly always empty."""
        waiting = (select(_a.c.id).where(_UNLINKED).limit(1), select(_d.c.id).where(_d.c.line.is_(None)).limit(1))
        return any(connection.execute(one).first() is not None for one in waiting)

    @writes
    def _link(self, connection: Connection) -> int:
        _fold(connection)
        return _link(connection)

    @reads
    def _lines(self, connection: Connection, after: int) -> list[Linked]:
        return _linked(connection, after, READ_AT_ONCE)

    @writes
    def _prune(self, connection: Connection, before: datetime, by: Actor) -> int:
        """Delete the oldest lines up to the first that is young enough, and write down where the chain begins now, in its place."""
        now = self._database.present(connection)
        places = select(_a.c.number, _a.c.hash, _a.c.at).where(_a.c.number.is_not(None)).order_by(_a.c.number)
        oldest = connection.execute(places.limit(1)).first()
        if oldest is None or oldest.at >= before:
            return 0
        old = list(takewhile(lambda row: row.at < before, connection.execute(places.limit(PRUNED_AT_ONCE))))
        place = ChainHead(old[-1].number, old[-1].hash)
        write_line(connection, ledger=AUDITED, act=PRUNED, things=[str(place)], amount=len(old), actor=by, at=now)
        while _link(connection):
            pass
        connection.execute(delete(_a).where(_a.c.number <= place.number))
        return len(old)


def _head(connection: Connection) -> ChainHead:
    last = select(_a.c.number, _a.c.hash).where(_a.c.number.is_not(None)).order_by(_a.c.number.desc()).limit(1)
    row = connection.execute(last).first()
    return ChainHead() if row is None else ChainHead(row.number, row.hash)


def _link(connection: Connection) -> int:
    # Before the lines: whoever links in between then takes the very place that is taken here, and one of both is refused.
    head = _head(connection)
    rows = connection.execute(select(*_TOLD).where(_UNLINKED).order_by(_a.c.id).limit(LINKED_AT_ONCE))
    lines = [_line(row) for row in rows]
    if lines:
        linked = link(head, lines)
        connection.execute(
            _PLACE,
            [
                {"line_id": one.line.id, "place": one.place.number, "before": one.previous, "hashed": one.place.hash}
                for one in linked
            ],
        )
    return len(lines)


def _fold(connection: Connection) -> None:
    """Make lines of deeds that have none: older code writes such, and systems that know only deeds. Deeds of one act become one line."""
    alone = connection.execute(_ALONE).all()
    for told, group in groupby(alone, lambda one: (one.ledger, one.act, one.actor, one.reason, one.at)):
        ledger, act, actor, reason, at = told
        deeds = list(group)
        # The name is that of the act, so that it is one though it is folded in two goes.
        name = hashlib.sha256(json.dumps([ledger, act, actor, reason, at.isoformat()]).encode()).hexdigest()[:32]
        by = Actor(name=actor, reason=reason, origin="", whole=WholeAct(id=name))
        line = write_line(
            connection, ledger=ledger, act=act, things=[one.task_id for one in deeds], actor=by, at=at, folded=True
        )
        mine = update(_d).where(_d.c.id.in_([one.id for one in deeds]), _d.c.line.is_(None)).values(line=line)
        if connection.execute(mine).rowcount != len(deeds):
            raise _OvertakenError


def _linked(connection: Connection, after: int, limit: int) -> list[Linked]:
    asked = select(*_TOLD, _a.c.number, _a.c.previous, _a.c.hash).where(_a.c.number > after).order_by(_a.c.number)
    return [
        Linked(_line(row), ChainHead(row.number, row.hash or ""), row.previous or "")
        for row in connection.execute(asked.limit(limit))
    ]


def _line(row: Any) -> AuditLine:
    return AuditLine(**{name: getattr(row, name) for name in AuditLine.__slots__})
