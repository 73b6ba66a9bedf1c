"""A gate for each endpoint: claims find deliveries by where they go."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "triggers_0002"
down_revision = "triggers_0001"
branch_labels = None

TABLE = "trigger_deliveries"
EARLIEST = "due_at, '-infinity'::timestamptz"
_WAITS = "status = 'waiting' AND retry_attempts {} 0 AND lease_until IS NULL"
_GATED = "endpoint_id IS NOT NULL AND status = 'waiting' AND lease_until IS NULL"
_BAND = "2 + CASE WHEN (retry_attempts > 0) THEN 0 ELSE 1 END"


def upgrade() -> None:
    _index_waiting("endpoint_id IS NULL AND ")
    band = sa.text(_BAND if _sqlite() else f"({_BAND})")
    _create_index("gate", ["endpoint_id", band, _due()], _GATED)
    _create_index("turn", ["endpoint_id", sa.text("coalesce(user_id, '')"), band, _due()], _GATED)
    earliest = "0" if _sqlite() else "'-infinity'::timestamptz"
    _create_index("parked", [_due()], f"{_GATED} AND {_due()} >= {earliest}")


def downgrade() -> None:
    for name in ("gate", "turn", "parked"):
        op.drop_index(f"{TABLE}_{name}_idx", TABLE)
    _index_waiting("")


def _index_waiting(which: str) -> None:
    for name, compared in (("first", "<="), ("retry", ">")):
        op.drop_index(f"{TABLE}_{name}_idx", TABLE)
        _create_index(name, [_due()], which + _WAITS.format(compared))


def _sqlite() -> bool:
    return op.get_context().dialect.name == "sqlite"


def _due() -> sa.TextClause:
    return sa.text(f"coalesce({'julianday(due_at), 0' if _sqlite() else EARLIEST})")


def _create_index(name: str, columns: list[Any], where: str) -> None:
    condition = sa.text(where)
    op.create_index(f"{TABLE}_{name}_idx", TABLE, columns, postgresql_where=condition, sqlite_where=condition)
