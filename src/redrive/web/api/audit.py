"""Who did what to which task, or to what else people act on, and why; newest first."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, Field
from sqlalchemy import Connection, select

from redrive.http.guard import KeyFirstRoute
from redrive.ledgers.sql import schema
from redrive.operator.json_views import fields_json
from redrive.operator.reads import LOOK_WITHIN
from redrive.web.api.common import LOOKING, app_of, in_time

PAGE_MAX = 500
LOOKED_AT_MAX = 20_000
"""Entries of other ledgers that one page looks past."""

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["audit"], dependencies=LOOKING)


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError("no name holds a NUL")
    return name


Audited = Annotated[str, Field(max_length=200), AfterValidator(_without_nul)]
"""What deeds were done to: a ledger, one that is served no more, or what a system calls otherwise (`System.audited`)."""


@router.get("/audit", summary="What people and systems did, newest first")
async def audit(
    request: Request,
    ledger: Annotated[
        Audited | None, Query(description="Only this one: a ledger, or another name in the audit log")
    ] = None,
    cursor: Annotated[int | None, Query(description="Where the previous page ended", ge=1, lt=2**63)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
) -> dict[str, Any]:
    """A page of one ledger may be short and still have a cursor: it looks past so many entries of others, and no more."""
    async with in_time():
        deeds, following = await app_of(request).database.look(LOOK_WITHIN, _deeds, ledger or None, cursor, limit)
    return {"deeds": deeds, "cursor": following}


def _deeds(
    connection: Connection, ledger: str | None, before: int | None, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
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
    return [fields_json(row, d.columns.keys()) for row in rows[:limit]], following


def _edge(connection: Connection, edge: Any) -> int | None:
    """Where a look that found too little ended, if there is more behind it."""
    d = schema.deed
    last = connection.execute(edge).scalar()
    if last is None:
        return None
    return last if connection.execute(select(d.c.id).where(d.c.id < last).limit(1)).first() else None
