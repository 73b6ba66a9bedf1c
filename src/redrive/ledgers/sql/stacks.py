"""Tracebacks of failed tries in a database: each distinct one is a row, whatever ledger its tries belong to."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, bindparam, select

from redrive.core.stack import Raised, read_stack
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.upsert import upsert


def write_stacks(connection: Connection, database: Database, stacks: Mapping[str, str]) -> None:
    """Keep these, by their ids; those that are kept already stay, and whoever has locked one keeps nobody waiting."""
    now = database.present(connection)
    # In one order, as every batch: two processes that write the same then never wait in a circle.
    rows = [{"id": id_, "frames": frames, "seen_at": now} for id_, frames in sorted(stacks.items())]
    connection.execute(upsert(database, schema.stack, keep=True), rows)


def read_stacks(connection: Connection, ids: Collection[str]) -> dict[str, Sequence[Raised]]:
    """Those of them that are kept."""
    if not ids:
        return {}
    s = schema.stack
    asked = select(s.c.id, s.c.frames).where(s.c.id.in_(bindparam("ids", expanding=True)))
    return {row.id: read_stack(row.frames) for row in connection.execute(asked, {"ids": sorted(ids)})}
