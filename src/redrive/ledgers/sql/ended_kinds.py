"""The kinds of what has ended in our own table, whose index of ended tasks begins with the kind and the state."""

from sqlalchemy import Connection, func, select

from redrive.ledgers.sql import schema


def ended_kinds(connection: Connection, limit: int | None = None) -> list[str]:
    """The first so many, or all: one probe of the index for each."""
    t = schema.task
    has_ended = t.c.ended_at.is_not(None)
    scan = select(func.min(t.c.kind).label("kind")).where(has_ended).cte("kinds", recursive=True)
    following = select(func.min(t.c.kind)).where(has_ended, t.c.kind > scan.c.kind).scalar_subquery()
    scan = scan.union_all(select(following).where(scan.c.kind.is_not(None)))
    found = select(scan.c.kind).where(scan.c.kind.is_not(None)).limit(limit)
    return list(connection.execute(found).scalars())
