"""Limits that an administrator has set for a role or a database, as in `ALTER ROLE shop SET statement_timeout = '1s'`.

They are meant for sessions that somebody might forget. redrive's own have limits of their own, so theirs are lifted: where a session is
ours alone once, when it is opened; through a pooler, which hands sessions on, in each transaction, and only if there are any. Handlers'
transactions keep them: they are the user's code.
"""

from typing import Any

from sqlalchemy import Connection, text

LIMITS = {
    "statement_timeout": 9,
    "lock_timeout": 9,
    "idle_in_transaction_session_timeout": 9,
    "idle_session_timeout": 14,
    "transaction_timeout": 17,
}
"""Each with the version of PostgreSQL that brought it."""
_NAMES = ", ".join(f"'{name}'" for name in LIMITS)
_KNOWN = f"FROM unnest(ARRAY[{_NAMES}]) AS name WHERE current_setting(name, true) IS NOT NULL"
_LIFT_LOCAL = text(f"SELECT set_config(name, '0', true) {_KNOWN}")
SET = f"SELECT name, current_setting(name) AS value {_KNOWN} AND current_setting(name) <> '0'"
"""Which limits there are."""


async def lift(connection: Any) -> None:
    """Lift the limits of a session that is ours alone."""
    version = connection.get_server_version().major
    await connection.execute("; ".join(f"SET {name} = 0" for name, since in LIMITS.items() if version >= since))


def lift_for_transaction(connection: Connection) -> None:
    """Lift the limits until the transaction ends."""
    connection.execute(_LIFT_LOCAL)
