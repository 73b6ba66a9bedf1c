"""The queue of messages that wait for their retry.

A table of this name that is there already, with the columns that tell a message and when it is due, is taken over with its rows:
what is missing is added, and types and rules become ours. Everything is looked at before anything is changed.
"""

import sqlalchemy as sa
from alembic import context, op

from redrive.errors import NotMigratedError
from redrive.extend import When
from redrive.systems.kit.remake import remake

revision = "relay_0001"
down_revision = None
branch_labels = ("relay",)

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NEEDED = (
    "id",
    "message_id",
    "original_payload",
    "original_queue",
    "retry_count",
    "max_retries",
    "next_retry_at",
    "status",
)
_STATES = ("pending", "retried", "failed", "resolved")
_TEXTS = ("message_id", "original_queue", "error_reason", "status")
_TIMES = ("next_retry_at", "created_at", "updated_at")
_CHECKS = {
    "status": "status IN ('pending', 'retried', 'failed', 'resolved')",
    "message_id_length": "length(message_id) BETWEEN 1 AND 500",
    "counts": "retry_count >= 0 AND max_retries >= 0",
    "lease": "status = 'pending' OR lease_until IS NULL",
    "fence": "(lease_until IS NULL) = (claim_id IS NULL)",
    "due": "status = 'pending' OR next_retry_at IS NULL",
}


def upgrade() -> None:
    """Make the table and its indexes, or take over the one that is there."""
    sqlite = op.get_context().dialect.name == "sqlite"
    there = _columns_there()
    if not there:
        _create("retry_queue")
        _create_indexes(sqlite=sqlite)
        return
    _check_rows(there)
    if sqlite:
        _remake(set(there))
    else:
        _take_over(there)
        _create_indexes(sqlite=False)


def _create(name: str) -> None:
    op.create_table(
        name,
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("original_payload", sa.LargeBinary(), nullable=False),
        sa.Column("original_queue", sa.Text(), nullable=False),
        sa.Column("error_reason", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("retry_count", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_retries", sa.Integer(), nullable=False, server_default=sa.text("3")),
        sa.Column("next_retry_at", When()),
        sa.Column("created_at", When(), nullable=False),
        sa.Column("updated_at", When(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'pending'")),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("content_type", sa.Text()),
        sa.Column("last_error", sa.Text()),
        sa.Column("lease_until", When()),
        sa.Column("claim_id", sa.Uuid()),
        sa.PrimaryKeyConstraint("id", name="retry_queue_pkey"),
        sa.UniqueConstraint("message_id", name="retry_queue_message_id_key"),
        *(sa.CheckConstraint(rule, name=op.f(f"retry_queue_{name}_check")) for name, rule in _CHECKS.items()),
    )


def _create_indexes(*, sqlite: bool) -> None:
    due = sa.text(
        "coalesce(julianday(next_retry_at), 0)" if sqlite else "coalesce(next_retry_at, '-infinity'::timestamptz)"
    )
    lease = sa.text("julianday(lease_until)" if sqlite else "lease_until")
    free = "status = 'pending' AND {} AND lease_until IS NULL"
    indexes: tuple[tuple[str, list[str | sa.TextClause], str], ...] = (
        ("retry_queue_first_idx", [due], free.format("retry_count <= 0")),
        ("retry_queue_retry_idx", [due], free.format("retry_count > 0")),
        ("retry_queue_lease_idx", [lease], "lease_until IS NOT NULL"),
        ("idx_retry_next_retry", ["next_retry_at"], "status = 'pending'"),
        ("retry_queue_ended_idx", ["updated_at"], "status IN ('retried', 'resolved')"),
        ("retry_queue_failed_idx", ["id"], "status = 'failed'"),
        ("retry_queue_review_idx", ["original_queue", "id"], "status = 'failed'"),
    )
    for name, columns, where in indexes:
        op.create_index(name, "retry_queue", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))


# --- a table that is there already ------------------------------------------------------------------------------------


def _columns_there() -> dict[str, sa.types.TypeEngine[object]]:
    if context.is_offline_mode():
        return {}
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table("retry_queue"):
        return {}
    return {column["name"]: column["type"] for column in inspector.get_columns("retry_queue")}


def _check_rows(there: dict[str, sa.types.TypeEngine[object]]) -> None:
    """Refuse what cannot be taken over, before anything is changed."""
    remedy = "rename it, or leave relay out of REDRIVE_SYSTEMS"
    missing = [name for name in _NEEDED if name not in there]
    if missing:
        raise NotMigratedError(
            f"there is a table retry_queue without {', '.join(missing)}, which cannot be the relay's: {remedy}"
        )
    for name, kind in (("id", sa.Integer), ("original_payload", sa.LargeBinary)):
        if op.get_context().dialect.name != "sqlite" and not isinstance(there[name], kind):
            wanted = "a whole number" if name == "id" else "bytea"
            raise NotMigratedError(f"retry_queue.{name} is {there[name]}, and must be {wanted}: change it, or {remedy}")
    bind = op.get_bind()
    words = set(bind.execute(sa.text("SELECT DISTINCT CAST(status AS text) FROM retry_queue")).scalars())
    if strange := sorted(str(word) for word in words - set(_STATES)):
        raise NotMigratedError(
            f"rows of retry_queue have the status {', '.join(strange)[:200]}: give them one of {', '.join(_STATES)}, or {remedy}"
        )
    twice = "SELECT message_id FROM retry_queue GROUP BY message_id HAVING count(*) > 1 OR message_id IS NULL LIMIT 1"
    if bind.execute(sa.text(twice)).first() is not None:
        raise NotMigratedError(
            f"rows of retry_queue have no message_id of their own: delete the duplicates, or {remedy}"
        )


def _remake(there: set[str]) -> None:
    """On SQLite the table is made anew, since no rule of a column can be changed there."""
    now = "CURRENT_TIMESTAMP"
    values: dict[str, str] = {
        "id": "id", "message_id": "message_id", "original_payload": "original_payload", "original_queue": "original_queue",
        "error_reason": "coalesce(error_reason, '')" if "error_reason" in there else "''",
        "retry_count": "coalesce(retry_count, 0)", "max_retries": "coalesce(max_retries, 3)",
        "next_retry_at": "CASE WHEN status = 'pending' THEN next_retry_at END",
        "created_at": f"coalesce(created_at, {now})" if "created_at" in there else now,
        "updated_at": f"coalesce(updated_at, {now})" if "updated_at" in there else now,
        "status": "status",
        "headers": "coalesce(headers, '{}')" if "headers" in there else "'{}'",
        **{name: name if name in there else "NULL" for name in ("content_type", "last_error")},
        "lease_until": "NULL", "claim_id": "NULL",
    }  # fmt: skip
    remake("retry_queue", _create, values, lambda: _create_indexes(sqlite=True))


def _take_over(there: dict[str, sa.types.TypeEngine[object]]) -> None:
    """On PostgreSQL it is changed in place: who may use it, and what else its owner has added, stays."""
    inspector = sa.inspect(op.get_bind())
    alter = "ALTER TABLE retry_queue"
    op.execute("DROP INDEX IF EXISTS idx_retry_next_retry")  # made anew: it may hold other rows, or none by their type
    ours = {f"retry_queue_{name}_check" for name in _CHECKS}
    for check in inspector.get_check_constraints("retry_queue"):
        # A rule about the words does not know ours.
        if check["name"] in ours or "status" in check["sqltext"]:
            op.execute(f'{alter} DROP CONSTRAINT "{check["name"]}"')
    added = {
        "error_reason": "text", "created_at": "timestamptz", "updated_at": "timestamptz", "headers": "json",
        "content_type": "text", "last_error": "text", "lease_until": "timestamptz", "claim_id": "uuid",
    }  # fmt: skip
    for name, kind in added.items():
        if name not in there:
            op.execute(f"{alter} ADD COLUMN {name} {kind}")
    for name in _TEXTS:
        if not isinstance(there.get(name, sa.Text()), sa.Text):
            op.execute(f"{alter} ALTER COLUMN {name} DROP DEFAULT")
            op.execute(f"{alter} ALTER COLUMN {name} TYPE text USING {name}::text")
    for name in _TIMES:
        found = there.get(name)
        if isinstance(found, sa.DateTime) and not found.timezone:
            op.execute(f"{alter} ALTER COLUMN {name} TYPE timestamptz USING {name} AT TIME ZONE 'UTC'")
    op.execute(f"{alter} ALTER COLUMN next_retry_at DROP NOT NULL")
    op.execute(
        "UPDATE retry_queue SET next_retry_at = CASE WHEN status = 'pending' THEN next_retry_at END,"
        " error_reason = coalesce(error_reason, ''), retry_count = coalesce(retry_count, 0),"
        " max_retries = coalesce(max_retries, 3), created_at = coalesce(created_at, now()),"
        " updated_at = coalesce(updated_at, now()), headers = coalesce(headers, '{}')"
    )
    defaults = {"error_reason": "''", "retry_count": "0", "max_retries": "3", "status": "'pending'"}
    for name, default in defaults.items():
        op.execute(f"{alter} ALTER COLUMN {name} SET DEFAULT {default}")
    for name in (*defaults, "message_id", "original_payload", "original_queue", "created_at", "updated_at", "headers"):
        op.execute(f"{alter} ALTER COLUMN {name} SET NOT NULL")
    unique = [one["column_names"] for one in inspector.get_unique_constraints("retry_queue")]
    if ["message_id"] not in unique and inspector.get_pk_constraint("retry_queue")["constrained_columns"] != [
        "message_id"
    ]:
        op.execute(f"{alter} ADD CONSTRAINT retry_queue_message_id_key UNIQUE (message_id)")
    for name, rule in _CHECKS.items():
        op.execute(f"{alter} ADD CONSTRAINT retry_queue_{name}_check CHECK ({rule})")
