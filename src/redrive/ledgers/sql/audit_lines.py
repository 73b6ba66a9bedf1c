"""Lines of the audit, written in the commit of what they tell.

Nobody waits here for anybody else: a line is a new row, and gets its place in the chain later (`operator/sql/chain.py`). An act over
several commits leaves a line in each; they name the same whole act, and the first of them leads.
"""

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, exists, insert, literal, select

from redrive.ledgers.sql import schema
from redrive.ports import Actor

_a = schema.audit


def write_line(
    connection: Connection,
    *,
    ledger: str,
    act: str,
    things: Sequence[str],
    actor: Actor,
    at: datetime,
    amount: int | None = None,
    folded: bool = False,
) -> int:
    """Write who did what to these things of a ledger; the line's id. `amount` says how many, where they are not named.

    A line is `folded` if it is not written in the commit of what it tells, but made of deeds later.
    """
    whole = actor.whole
    earlier = select(_a.c.id).where(_a.c.whole == (None if whole is None else whole.id))
    line = insert(_a).values(
        ledger=ledger,
        act=act,
        actor=actor.name,
        origin=actor.origin,
        reason=actor.reason,
        at=at,
        amount=len(things) if amount is None else amount,
        things=json.dumps(list(things), ensure_ascii=False),
        asked=None if whole is None or whole.asked is None else json.dumps(whole.asked, ensure_ascii=False),
        whole=None if whole is None else whole.id,
        leads=literal(value=True) if whole is None else ~exists(earlier),
        folded=folded,
    )
    return int(connection.execute(line.returning(_a.c.id)).scalar_one())


def record(connection: Connection, *, ledger: str, act: str, things: Sequence[str], actor: Actor, at: datetime) -> None:
    """The same, and in the history of each thing that it was done to it."""
    if not things:
        return
    line = write_line(connection, ledger=ledger, act=act, things=things, actor=actor, at=at)
    said = {"ledger": ledger, "at": at, "act": act, "actor": actor.name, "reason": actor.reason, "line": line}
    connection.execute(insert(schema.deed), [said | {"task_id": thing} for thing in things])
