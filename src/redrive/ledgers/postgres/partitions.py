"""The history in partitions by time: made ahead, dropped as a whole.

The function in the database does the upkeep with the rights of its owner, since the role that works may neither make nor drop tables. It
goes by names alone, so code of any version may call it; what nobody has made a partition for is caught by the default one.

A partition has the primary key of the whole table before: PostgreSQL takes none for all partitions that leaves out the time. That a claim
ends in one attempt is the fence's doing, which is taken from the row in the same statement as the attempt is written.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, select, text

from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database

EVERY = ("daily", "weekly", "monthly")
HISTORY = schema.attempt.name
_CHECK = "redrive_attempt_before"
"""The promise that no attempt ends after an instant, while the table is partitioned; and the note that somebody is at it."""
_ENDED = f"DELETE FROM redrive_partition WHERE name = '{_CHECK}'"  # noqa: S608 - no stranger's word
_PATIENCE = "SET LOCAL lock_timeout = '5s'"
"""While a lock is waited for, whoever comes behind waits too: better to give up and be called again."""

_KEEP = """
CREATE OR REPLACE FUNCTION redrive_keep_partitions(at timestamptz DEFAULT clock_timestamp()) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET timezone = 'UTC' SET lock_timeout = '2s' AS $keep$
DECLARE
    unit text; step interval; ahead integer; keep interval; begins timestamptz; ends timestamptz; called text;
    part record; is_empty boolean; changed integer := 0;
BEGIN
    SELECT CASE p.every WHEN 'daily' THEN 'day' WHEN 'weekly' THEN 'week' ELSE 'month' END,
        CASE p.every WHEN 'daily' THEN 7 WHEN 'weekly' THEN 4 ELSE 3 END, p.keep_seconds * interval '1 second'
    INTO unit, ahead, keep FROM redrive_partition AS p WHERE p.name = 'redrive_attempt' FOR UPDATE SKIP LOCKED;
    IF unit IS NULL THEN
        -- It is not partitioned, or somebody else is at it. Or somebody was, and was killed: what was promised for then must
        -- not refuse the attempts of a later day.
        SELECT substring(pg_get_constraintdef(c.oid) FROM '''([^'']+)''')::timestamptz INTO ends
        FROM pg_constraint AS c WHERE c.conrelid = 'redrive_attempt'::regclass AND c.conname = 'redrive_attempt_before';
        IF ends < at + interval '12 hours' THEN
            ALTER TABLE redrive_attempt DROP CONSTRAINT redrive_attempt_before;
            DELETE FROM redrive_partition AS p WHERE p.name = 'redrive_attempt_before';
            changed := 1;
        END IF;
        RETURN changed;
    END IF;
    step := ('1 ' || unit)::interval;
    SELECT greatest(date_trunc(unit, at), max(substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \\(''([^'']+)''\\)')::timestamptz))
    INTO begins FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = 'redrive_attempt'::regclass;
    WHILE begins < date_trunc(unit, at) + ahead * step LOOP
        ends := date_trunc(unit, begins) + step;
        called := 'redrive_attempt_' || to_char(begins, 'YYYYMMDD');
        LOCK TABLE redrive_attempt_rest IN ACCESS EXCLUSIVE MODE;
        EXECUTE format('CREATE TABLE %I (LIKE redrive_attempt INCLUDING DEFAULTS, PRIMARY KEY (ledger, task_id, claim_id))', called);
        EXECUTE format('WITH gone AS (DELETE FROM redrive_attempt_rest WHERE ended_at >= %L AND ended_at < %L RETURNING *)'
            ' INSERT INTO %I SELECT * FROM gone', begins, ends, called);
        EXECUTE format('ALTER TABLE redrive_attempt ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', called, begins, ends);
        begins := ends;
        changed := changed + 1;
    END LOOP;
    FOR part IN
        SELECT c.relname, substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \\(''([^'']+)''\\)')::timestamptz AS ends
        FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = 'redrive_attempt'::regclass
    LOOP
        CONTINUE WHEN part.ends IS NULL OR part.ends > date_trunc(unit, at);
        is_empty := false;
        IF keep IS NULL OR part.ends > at - keep THEN
            EXECUTE format('SELECT NOT EXISTS (SELECT FROM %I)', part.relname) INTO is_empty;
            CONTINUE WHEN NOT is_empty;
        END IF;
        EXECUTE format('DROP TABLE %I', part.relname);
        changed := changed + 1;
    END LOOP;
    IF keep IS NOT NULL THEN
        DELETE FROM redrive_attempt_rest WHERE ended_at < at - keep;
    END IF;
    RETURN changed;
END $keep$
"""
"""Make partitions ahead, drop those that are empty and over, and those whose time to be kept is over; how many there were."""

_SWAP = (
    f"ALTER TABLE {HISTORY} RENAME TO redrive_attempt_history",
    f"CREATE TABLE {HISTORY} (LIKE redrive_attempt_history INCLUDING DEFAULTS) PARTITION BY RANGE (ended_at)",
    f"ALTER TABLE {HISTORY} ATTACH PARTITION redrive_attempt_history FOR VALUES FROM (MINVALUE) TO ('{{boundary}}')",
    f"ALTER TABLE redrive_attempt_history DROP CONSTRAINT {_CHECK}",
    f"CREATE TABLE redrive_attempt_rest PARTITION OF {HISTORY} (PRIMARY KEY (ledger, task_id, claim_id)) DEFAULT",
    # Whoever may use the table may use the one in its place.
    "DO $$ DECLARE one record; BEGIN FOR one IN SELECT a.privilege_type, a.grantee FROM pg_class AS c, aclexplode(c.relacl) AS a"
    " WHERE c.oid = 'redrive_attempt_history'::regclass AND a.grantee <> c.relowner LOOP"
    " EXECUTE format('GRANT %s ON redrive_attempt TO %s', one.privilege_type,"
    " CASE one.grantee WHEN 0 THEN 'PUBLIC' ELSE one.grantee::regrole::text END); END LOOP; END $$",
)


async def partition(database: Database, every: str, keep: timedelta | None) -> bool:
    """Partition the history, or change how it is; whether it was not partitioned before.

    Three steps. The first and the last lock the table for an instant; the one in between reads all of it, and everybody works on. If it is
    stopped there, nothing has changed; if it is killed, say it again, or leave it: keepers take back what it has begun.
    """
    if not database.dialect.has_partitions:
        raise UsageError(
            "only PostgreSQL has partitions: leave --partition out, rows of the history go with their tasks"
        )
    if every not in EVERY:
        raise UsageError(f"{every!r} is not known: choose from {', '.join(EVERY)}")
    if await database.read(is_partitioned):
        await database.rebuild(_set_up, database, every, keep)
        return False
    boundary = await database.rebuild(_announce_end, database, every)
    try:
        await database.rebuild(_run, [f"ALTER TABLE {HISTORY} VALIDATE CONSTRAINT {_CHECK}"])
        await database.rebuild(_swap, database, boundary, every, keep)
    except BaseException:
        await database.rebuild(_run, [f"ALTER TABLE {HISTORY} DROP CONSTRAINT IF EXISTS {_CHECK}", _ENDED])
        raise
    return True


def is_partitioned(connection: Connection) -> bool:
    """Whether the history is partitioned."""
    asked = select(schema.partition.c.name).where(schema.partition.c.name == HISTORY)
    return connection.execute(asked).first() is not None


def keep_partitions(connection: Connection) -> int:
    """Do what there is to do; how many partitions were made or dropped."""
    if connection.execute(select(schema.partition.c.name).limit(1)).first() is None:
        return 0
    return int(connection.execute(text("SELECT redrive_keep_partitions()")).scalar_one())


def _run(connection: Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


def _announce_end(connection: Connection, database: Database, every: str) -> str:
    """Promise that no row ends after an instant at least a day from now, which the table as it is will hold rows up to."""
    unit = {"daily": "day", "weekly": "week", "monthly": "month"}[every]
    asked = text(
        f"SELECT to_char(date_trunc('{unit}', (now() + interval '1 day') AT TIME ZONE 'UTC') + interval '1 {unit}', 'YYYY-MM-DD') || ' 00:00:00+00'"
    )
    boundary: str = connection.execute(asked).scalar_one()
    _make_function(connection, database)
    begun = database.insert(schema.partition).values(name=_CHECK, every=every)
    connection.execute(begun.on_conflict_do_nothing())
    _run(connection, [
        _PATIENCE,
        f"ALTER TABLE {HISTORY} DROP CONSTRAINT IF EXISTS {_CHECK}",
        f"ALTER TABLE {HISTORY} ADD CONSTRAINT {_CHECK} CHECK (ended_at < '{boundary}') NOT VALID",
    ])  # fmt: skip
    return boundary


def _swap(connection: Connection, database: Database, boundary: str, every: str, keep: timedelta | None) -> None:
    _run(connection, [_PATIENCE, f"LOCK TABLE {HISTORY} IN ACCESS EXCLUSIVE MODE"])
    _run(
        connection,
        [statement.format(boundary=boundary) if "{boundary}" in statement else statement for statement in _SWAP],
    )
    _set_up(connection, database, every, keep)


def _make_function(connection: Connection, database: Database) -> None:
    here = database.dialect.schema(connection) or ""
    _run(connection, [_KEEP.replace("{schema}", '"' + here.replace('"', '""') + '"')])


def _set_up(connection: Connection, database: Database, every: str, keep: timedelta | None) -> None:
    _make_function(connection, database)
    _run(connection, [_ENDED])
    values: dict[str, Any] = {"every": every, "keep_seconds": None if keep is None else keep.total_seconds()}
    made = database.insert(schema.partition).values(name=HISTORY, **values)
    connection.execute(made.on_conflict_do_update(index_elements=["name"], set_=values))
    keep_partitions(connection)
