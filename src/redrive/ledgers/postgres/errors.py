"""What PostgreSQL and its driver complain of, in our words."""

import re

import asyncpg  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from redrive.errors import LedgerAwayError, NotMigratedError, SettingsError, TooSlowError
from redrive.ledgers.sql.database import StillLocked

_PASSING = {"40001", "40P01"}
_NAMELESS = {"26000", "42P05"}
"""A prepared statement is missing, or there already: it was made in another session than we think."""
_REFUSED = re.compile("(unrecognized configuration|unsupported startup|unrecognized startup) parameter")
_AWAY_CLASSES = ("08", "28", "3D", "53", "57P", "58")


_LOST = (OSError, PoolTimeoutError, InterfaceError, asyncpg.InterfaceError, asyncpg.InternalClientError)
DRIVER_ERRORS = (DBAPIError, asyncpg.PostgresError, *_LOST)
"""All that the driver raises, whether SQLAlchemy has it in hand or not."""


def _layers(error: BaseException) -> tuple[BaseException | None, ...]:
    """The error itself, the one that SQLAlchemy makes of the driver's, and the driver's."""
    wrapped = getattr(error, "orig", None)
    return error, wrapped, getattr(wrapped, "__cause__", None)


def _sqlstate(error: BaseException) -> str:
    for holder in _layers(error):
        state = getattr(holder, "sqlstate", None) or getattr(holder, "pgcode", None)
        if state:
            return str(state)
    return ""


def is_passing(error: BaseException) -> bool:
    """Whether it is worth trying again at once: PostgreSQL broke a deadlock, or a plan went stale."""
    return _sqlstate(error) in _PASSING or "InvalidCachedStatementError" in repr(getattr(error, "orig", ""))


def is_spent(error: BaseException) -> bool:
    """Whether nothing good can come of this connection: the server only reads, since it was made a standby, or says nothing."""
    return _sqlstate(error) == "25006" or isinstance(error, TimeoutError)


def translated(error: BaseException) -> Exception:
    """The driver's error as one of ours, where we have a word for it."""
    state, said = _sqlstate(error), str(getattr(error, "orig", None) or error).split("\n")[0]
    if state in ("42P01", "42703", "3F000") and "redrive_" in said:
        return NotMigratedError(f"redrive's tables are missing or old ({said}): run `redrive migrate`")
    if state == "55P03":
        return StillLocked(f"somebody else has locked it: {said}")
    if state == "57014":  # cancelled by its statement_timeout
        return TooSlowError("the database took too long to read this")
    if state in _NAMELESS:
        return LedgerAwayError(
            f"a pooler gave this connection another server in between ({said}): say so with ?pooler=transaction in DATABASE_URL"
        )
    mistaken = any(isinstance(one, asyncpg.exceptions.ClientConfigurationError) for one in _layers(error))
    if mistaken or _REFUSED.search(said):
        return SettingsError(f"the database URL cannot be used: {said.partition('>: ')[2] or said}")
    if "invalid input for query argument" in said:  # the driver calls it an interface error, but the caller made it
        return error if isinstance(error, Exception) else RuntimeError(said)
    # The driver's own InternalClientError is a connection that broke in mid-statement, or hosts of which none is the primary.
    lost = any(isinstance(one, _LOST) for one in _layers(error))
    lost = lost or (isinstance(error, DBAPIError) and error.connection_invalidated)
    if lost or state.startswith(_AWAY_CLASSES) or state == "25006" or "connection is closed" in said:
        return LedgerAwayError(f"PostgreSQL cannot be reached now: {said or 'no answer in time'}")
    return error if isinstance(error, Exception) else RuntimeError(said)
