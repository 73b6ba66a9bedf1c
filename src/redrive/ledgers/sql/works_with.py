"""Upgrades one process after the other: the oldest code that may work with tables which a newer one has migrated.

A migration says it (`works_with`), and writes it where older code looks (`record`). The rule behind it is in docs/adr/0024.
"""

from typing import Any

from sqlalchemy import Connection, delete, insert, inspect, select

from redrive.ledgers.sql import schema

_t = schema.works_with


def record(op: Any, branch: str, version: str, oldest: str) -> None:
    """Write into the tables that code which knows the version `oldest` may work with them: the last step of a migration."""
    op.execute(delete(_t).where(_t.c.branch == branch))
    op.execute(insert(_t).values(branch=branch, version=version, oldest=oldest))


def told(connection: Connection) -> dict[str, tuple[str, str]]:
    """By version its branch, and the oldest version that may work with it."""
    if not inspect(connection).has_table(_t.name):
        return {}
    return {version: (branch, oldest) for branch, version, oldest in connection.execute(select(_t))}
