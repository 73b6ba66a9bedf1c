"""What could be better in the way that a PostgreSQL is set up: each with what it means and what to do. Nothing is changed.

`redrive doctor` asks; docs/guides/production.md says more about each.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, text

from redrive.ledgers.postgres.limits import SET

CONNECTIONS_FULL = 0.8
"""The share of a server's connections from which on somebody should know."""
DEAD_ROWS_MIN = 10_000
DEAD_SHARE_MAX = 0.2
"""PostgreSQL's own limit for a vacuum; beyond it nobody has cleaned up."""
HISTORY_ROWS_MAX = 10_000_000
HISTORY_BYTES_MAX = 10 * 1024**3
HISTORY = "redrive_attempt"
VACUUM = "ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.02)"

_SETTINGS = text(
    "SELECT name, setting FROM pg_settings WHERE name IN ('max_connections', 'superuser_reserved_connections', "
    "'reserved_connections', 'synchronous_standby_names', 'synchronous_commit', 'autovacuum')"
)
_USED = text(
    "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), "
    "(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user), "
    "(SELECT datconnlimit FROM pg_database WHERE datname = current_database())"
)
# Who may not look into it sees the rows without their state.
_STANDBYS = text("SELECT count(*) FROM pg_stat_replication WHERE coalesce(state, 'streaming') = 'streaming'")
_TABLES = text(
    "SELECT relname, n_live_tup, n_dead_tup, extract(epoch FROM now() - greatest(last_autovacuum, last_vacuum)) "
    "FROM pg_stat_user_tables WHERE (relname LIKE 'redrive\\_%' OR relname IN :names) "
    "AND n_dead_tup >= :least AND n_dead_tup > :share * (n_live_tup + n_dead_tup) ORDER BY n_dead_tup DESC LIMIT 5"
).bindparams(bindparam("names", expanding=True))
_HISTORY = text(
    "SELECT c.reltuples::bigint, pg_total_relation_size(c.oid) FROM pg_class c WHERE c.oid = to_regclass(:name) AND c.relkind = 'r'"
)


class Advice(NamedTuple):
    """One thing that could be better."""

    about: str
    said: str
    remedy: str


def look_at_server(connection: Connection, opens: int, tables: Sequence[str], *, prunes: bool) -> list[Advice]:
    """All that one session can find out. A process opens so many connections at most; these tables are ledgers."""
    settings = {name: str(value) for name, value in connection.execute(_SETTINGS)}
    return [
        *_connections(connection, settings, opens),
        *_replication(connection, settings),
        *_bloat(connection, settings, tables),
        *_growth(connection, prunes=prunes),
    ]


def look_at_limits(connection: Connection, *, pooled: bool) -> list[Advice]:
    """The limits of a session for user code, where they are not lifted."""
    found = [(name, value) for name, value in connection.execute(text(SET))]
    if not found:
        return []
    said = f"the role or the database has {', '.join(f'{name} = {value}' for name, value in found)}: "
    said += "it cuts transactional handlers, but none of redrive's own sessions"
    said += "; through the pooler these lift it in each transaction, which costs two round trips" if pooled else ""
    remedy = "if handlers need longer, or for speed: " + ", ".join(f"ALTER ROLE … SET {name} = 0" for name, _ in found)
    return [Advice("limits", said, remedy)]


def _connections(connection: Connection, settings: dict[str, str], opens: int) -> Iterator[Advice]:
    used, *own = connection.execute(_USED).one()
    free_for_all = int(settings["max_connections"]) - int(settings["superuser_reserved_connections"])
    admitted = free_for_all - int(settings.get("reserved_connections", 0))
    least = min([admitted, *(one for one in own if one is not None and one >= 0)])
    if least < opens:
        yield Advice(
            "connections", f"one process opens up to {opens} connections, and {least} are admitted",
            "raise max_connections or the limit of the role or the database, or put a pooler in transaction mode before it",
        )  # fmt: skip
    elif used > CONNECTIONS_FULL * admitted:
        yield Advice(
            "connections", f"{used} of {admitted} connections are in use",
            "put a pooler in transaction mode before it, or raise max_connections",
        )  # fmt: skip


def _replication(connection: Connection, settings: dict[str, str]) -> Iterator[Advice]:
    standbys = connection.execute(_STANDBYS).scalar_one()
    waits = settings["synchronous_commit"] not in ("off", "local")
    if not standbys:
        if settings["synchronous_standby_names"] and waits:
            yield Advice(
                "replication", f"synchronous_standby_names = {settings['synchronous_standby_names']}, and no standby follows: "
                "every commit waits for one",
                "start a standby, or take the names away until there is one: ALTER SYSTEM RESET synchronous_standby_names",
            )  # fmt: skip
        return
    if not settings["synchronous_standby_names"]:
        yield Advice(
            "replication", f"{standbys} standby{'s follow' if standbys > 1 else ' follows'}, none of them synchronously: "
            "a failover loses what was acknowledged in its last moments",
            "set synchronous_standby_names, with Patroni synchronous_mode: true",
        )  # fmt: skip
    elif not waits:
        yield Advice(
            "replication", f"synchronous_commit = {settings['synchronous_commit']} waits for no standby: "
            "a failover loses what was acknowledged in its last moments",
            "set synchronous_commit = on for this database",
        )  # fmt: skip


def _bloat(connection: Connection, settings: dict[str, str], tables: Sequence[str]) -> Iterator[Advice]:
    asked = {"names": list(tables) or [""], "least": DEAD_ROWS_MIN, "share": DEAD_SHARE_MAX}
    for name, live, dead, seconds in connection.execute(_TABLES, asked):
        when = (
            "it was never vacuumed" if seconds is None else f"the last vacuum was {timedelta(seconds=int(seconds))} ago"
        )
        off = " ALTER SYSTEM SET autovacuum = on;" if settings["autovacuum"] == "off" else ""
        yield Advice(
            "bloat", f"{100 * dead / (live + dead):.0f} % of {name} are dead rows, {dead:,} of them, and {when}: claims get slower",
            f"run VACUUM (ANALYZE) {name};{off} {VACUUM.format(table=name)}; end transactions that stay open",
        )  # fmt: skip


def _growth(connection: Connection, *, prunes: bool) -> Iterator[Advice]:
    row = connection.execute(_HISTORY, {"name": HISTORY}).one_or_none()
    if row is None:
        return
    rows, size = row
    if rows > HISTORY_ROWS_MAX or size > HISTORY_BYTES_MAX:
        keeps = "" if prunes else "; nothing is ever pruned, since RETENTION_DAYS is 0"
        yield Advice(
            "history", f"{HISTORY} has about {max(rows, 0):,} rows and takes {size / 1024**3:.1f} GiB, in one piece{keeps}",
            "run `redrive migrate --partition daily --keep-history 90d`: old days are then dropped instead of deleted row by row"
            + ("" if prunes else ", and set RETENTION_DAYS"),
        )  # fmt: skip
