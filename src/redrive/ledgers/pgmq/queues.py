"""PGMQ itself: how it gets into a database, and the queues and messages that a ledger or a system keeps there.

Messages are read and hidden by statements of our own (`pgmq.py`): `pgmq.read` scans every parked message, and neither `set_vt`
nor `delete` looks at who holds it. Everything else is done by PGMQ's functions.
"""

from collections.abc import Sequence
from importlib import resources
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, Table, Text, cast, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.schema import CreateIndex

from redrive.errors import MissingExtraError
from redrive.ledgers.sql.times import Instant


def pgmq_sql(connection: Connection | None = None) -> str:
    """The one statement that installs PGMQ where it is not there yet: the extension, or else the SQL of its package.

    With a connection it is first made sure that one of them can be had.
    """
    try:
        source = (resources.files("pgmq") / "sql" / "pgmq.sql").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        if connection is not None and not connection.execute(text(_CAN_BE_HAD)).scalar_one():
            what = "PGMQ, which commands wait in and this PostgreSQL does not have (or leave commands out of REDRIVE_SYSTEMS),"
            raise MissingExtraError(what, "commands") from None
        source = "DO $$ BEGIN RAISE 'PGMQ needs an extra: pip install ''redrive[commands]'''; END $$"
    return (
        "DO $redrive$ BEGIN "
        "IF to_regclass('pgmq.meta') IS NULL THEN "
        "IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pgmq') THEN CREATE EXTENSION pgmq; "
        f"ELSE EXECUTE $pgmq_sql${source}$pgmq_sql$; END IF; END IF; END $redrive$"
    )


_CAN_BE_HAD = (
    "SELECT to_regclass('pgmq.meta') IS NOT NULL OR EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pgmq')"
)


def message_table(queue: str) -> Table:
    """The messages of a queue, as far as every version of PGMQ has them."""
    return _table(f"q_{queue}")


def archive_table(queue: str) -> Table:
    """The archived messages of a queue."""
    return _table(f"a_{queue}")


def _table(name: str) -> Table:
    return Table(
        name,
        MetaData(schema="pgmq"),
        Column("msg_id", BigInteger, primary_key=True),
        Column("read_ct", Integer),
        Column("vt", Instant),
        Column("message", JSONB),
    )


def _has(connection: Connection, relation: str) -> bool:
    return bool(connection.execute(select(func.to_regclass(f"pgmq.{relation}").is_not(None))).scalar_one())


_made: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""What transactions under way have made, whichever `Queues` they did it through: gone again if they are rolled back."""


class Queues:
    """The queues of one database, made when they are first needed. `kind_field` is what workers choose messages by."""

    def __init__(self, kind_field: str) -> None:
        self._kind_field = kind_field
        self._known: set[str] = set()
        self._there: set[str] = set()

    def knows(self, queue: str) -> bool:
        """Whether the queue was found there before."""
        return queue in self._known

    @staticmethod
    def made_here(connection: Connection) -> set[str]:
        """The queues that the connection's own transaction has made. Another one that makes them too waits until it ends."""
        transaction = connection.get_transaction()
        return set() if transaction is None else _made.get(transaction, set())

    def exists(self, connection: Connection, queue: str) -> bool:
        """Whether the queue is there. Whoever only reads does not wait for one that is just being made."""
        if queue not in self._there and _has(connection, f"q_{queue}"):
            self._there.add(queue)
        return queue in self._there

    def ensure(self, connection: Connection, queue: str, *, by_kind: bool = False) -> None:
        """Make the queue if it is not there; with `by_kind` also the index by which workers find what they can handle.

        In the caller's transaction: if that is rolled back the queue is gone too, so it is remembered only once another
        transaction has found it there.
        """
        if queue in self._known:
            return
        needed = f"q_{queue}_kind_idx" if by_kind else f"q_{queue}"
        if _has(connection, needed):
            if queue not in self.made_here(connection):
                self._known.add(queue)
            return
        _made.setdefault(connection.get_transaction(), set()).add(queue)
        # PGMQ's own lock for making this queue, held over the index too.
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"pgmq.queue_{queue}"))))
        connection.execute(select(func.pgmq.create(cast(queue, Text))))
        if by_kind:
            messages = message_table(queue)
            index = Index(needed, messages.c.message[self._kind_field].astext, messages.c.vt)
            connection.execute(CreateIndex(index, if_not_exists=True))

    def ours(self, connection: Connection, ending: str) -> list[str]:
        """The queues whose names end so and that have our index; those of others may be called the same."""
        names: Any = text(
            "SELECT queue_name FROM pgmq.meta WHERE right(queue_name, length(:ending)) = :ending "
            "AND to_regclass('pgmq.' || quote_ident('q_' || queue_name || '_kind_idx')) IS NOT NULL"
        )
        return sorted(connection.execute(names, {"ending": ending}).scalars())

    @staticmethod
    def delete(connection: Connection, queue: str, msg_ids: Sequence[int]) -> None:
        """End messages. The caller holds them."""
        connection.execute(select(func.pgmq.delete(cast(queue, Text), cast(list(msg_ids), ARRAY(BigInteger)))))

    @staticmethod
    def archive(connection: Connection, queue: str, msg_ids: Sequence[int]) -> None:
        """End messages and keep them in the archive. The caller holds them, or they are nobody's."""
        connection.execute(select(func.pgmq.archive(cast(queue, Text), cast(list(msg_ids), ARRAY(BigInteger)))))
