"""Tracebacks of failed tries in a database: each distinct one is a row, whatever ledger its tries belong to."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from sqlalchemy import Connection, bindparam, delete, select, update

from redrive.core.stack import Raised, read_stack
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.upsert import upsert

KEPT = timedelta(days=90)
"""A stack that no try has named for so long is forgotten."""
SEEN_EVERY = timedelta(days=1)
"""How exactly it is known when a stack was last named."""
FORGOTTEN_MAX = 500


def write_stacks(connection: Connection, database: Database, stacks: Mapping[str, str]) -> None:
    """Keep these, by their ids; those that are kept already stay, and whoever has locked one keeps nobody waiting."""
    now = database.present(connection)
    # In one order, as every batch: two processes that write the same then never wait in a circle.
    rows = [{"id": id_, "frames": frames, "seen_at": now} for id_, frames in sorted(stacks.items())]
    connection.execute(upsert(database, schema.stack, keep=True), rows)
    s = schema.stack
    old = select(s.c.id).where(s.c.id.in_(bindparam("ids", expanding=True)), s.c.seen_at < now - SEEN_EVERY)
    # Who has locked one is about to refresh or to forget it: the next process that sees it comes back within hours.
    free = (
        connection.execute(old.order_by(s.c.id).with_for_update(skip_locked=True), {"ids": sorted(stacks)})
        .scalars()
        .all()
    )
    if free:
        connection.execute(update(s).where(s.c.id.in_(free)).values(seen_at=now))


def forget_stacks(connection: Connection, database: Database) -> int:
    """Delete some that nobody has seen for long; how many there were. Whoever has locked one keeps it."""
    s, now = schema.stack, database.present(connection)
    old = select(s.c.id).where(s.c.seen_at < now - KEPT).limit(FORGOTTEN_MAX).with_for_update(skip_locked=True)
    ids = connection.execute(old).scalars().all()
    if ids:
        connection.execute(delete(s).where(s.c.id.in_(ids)))
    return len(ids)


def read_stacks(connection: Connection, ids: Collection[str]) -> dict[str, Sequence[Raised]]:
    """Those of them that are kept."""
    if not ids:
        return {}
    s = schema.stack
    asked = select(s.c.id, s.c.frames).where(s.c.id.in_(bindparam("ids", expanding=True)))
    return {row.id: read_stack(row.frames) for row in connection.execute(asked, {"ids": sorted(ids)})}
