"""Secrets in columns of a database: how they stand, and sealing all of them anew with the first key.

A rotation goes through each column in the order of its table's key, some rows at a time, each block in a commit of its own. A row that is
sealed with the first key already is left alone, so one that was broken off is just begun again; one that somebody changes meanwhile
is not touched.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Column, Connection, select, tuple_, update

from redrive.access.kept_secrets import KeptSecrets, Progress
from redrive.access.keys import PROGRAM, SECRETS_AUDITED
from redrive.access.secret_box import SecretBox
from redrive.ledgers.sql.audit_lines import write_line
from redrive.ledgers.sql.database import Database
from redrive.ports import Actor, WholeAct

ROWS_AT_ONCE = 200


async def look_at_secrets(database: Database, columns: Iterable[Column[Any]], box: SecretBox | None) -> KeptSecrets:
    """How all secrets in these columns are kept. Nothing is changed."""
    return await _walk(database, columns, box, by=None, progress=None)


async def rotate_secrets(
    database: Database,
    columns: Iterable[Column[Any]],
    box: SecretBox,
    progress: Progress | None = None,
    *,
    by: Actor = PROGRAM,
) -> KeptSecrets:
    """Seal all secrets in these columns with the first key, those that were kept in the clear as well."""
    by = replace(by, whole=WholeAct(id=uuid4().hex))
    return await _walk(database, columns, box, by=by, progress=progress)


async def _walk(
    database: Database,
    columns: Iterable[Column[Any]],
    box: SecretBox | None,
    *,
    by: Actor | None,
    progress: Progress | None,
) -> KeptSecrets:
    standing = KeptSecrets()
    for column in columns:
        last: Sequence[Any] | None = None
        while True:
            rows = await database.read(_rows, column, last)
            if not rows:
                break
            due = [row for row in rows if standing.judge(row[-1], box)]
            if by is not None and box is not None and due:
                sealed = [(row, box.seal(box.open(row[-1]))) for row in due]
                standing.changed += await database.write(_replace, column, sealed, by, database.now())
            if progress is not None:
                progress(len(rows))
            last = rows[-1][:-1]
    return standing


def _rows(connection: Connection, column: Column[Any], last: Sequence[Any] | None) -> list[Any]:
    keys = list(column.table.primary_key)
    found = select(*keys, column).where(column.is_not(None)).order_by(*keys).limit(ROWS_AT_ONCE)
    if last is not None:
        found = found.where(tuple_(*keys) > tuple_(*last))
    return list(connection.execute(found))


def _replace(
    connection: Connection, column: Column[Any], sealed: Sequence[tuple[Any, str]], by: Actor, now: datetime
) -> int:
    keys = list(column.table.primary_key)
    changed = 0
    for row, new in sealed:
        same = [key == value for key, value in zip(keys, row[:-1], strict=True)]
        # Only where it still is what was read: who sets another secret meanwhile means it.
        statement = update(column.table).where(*same, column == row[-1]).values({column: new})
        changed += connection.execute(statement).rowcount
    if changed:  # each block in its own commit; the audit shows them as one act
        write_line(connection, ledger=SECRETS_AUDITED, act="rotated", things=(), amount=changed, actor=by, at=now)
    return changed
