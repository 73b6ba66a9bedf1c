"""The tables of flags, and how rows are read from them. The migrations make them; a test holds the two equal on both databases."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Row,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    false,
    func,
    select,
    text,
    type_coerce,
)

from redrive import LedgerTable, Words
from redrive.extend import NAMES, When
from redrive.sql import comparable
from redrive.systems.flags.errors import FlagNotFoundError
from redrive.systems.flags.values import FlagSchedule

FLAG_SCHEDULES = LedgerTable(
    "feature_flag_schedules",
    key="id",
    words=Words(waiting="pending", retrying="failed", done="applied", dead="failed", cancelled="cancelled"),
    first_due="scheduled_at",
    due="next_retry_at",
    count="retry_count",
    counts="retries",
    count_max="max_retries",
    last_error="last_error",
    done_at="applied_at",
    created_at="created_at",
    updated_at="updated_at",
    gate="gate",
    priority="priority",
)
"""A schedule as a task. `expires_at` is not its deadline: what expires ends with a reason of its own, see `apply`."""


# SQLite counts rows by itself only in a column that is INTEGER to the letter. Ids are never given twice (AUTOINCREMENT): the
# audit outlives the schedules that it names.
_ID = BigInteger().with_variant(Integer(), "sqlite")
_metadata = MetaData(naming_convention=NAMES)

flags = Table(
    "feature_flags",
    _metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("flag_key", Text, nullable=False),
    Column("environment", Text, nullable=False, server_default=text("'production'")),
    Column("enabled", Boolean, nullable=False, server_default=false()),
    Column("rollout_percentage", Integer, nullable=False, server_default=text("0")),
    Column("description", Text),
    Column("created_at", When, nullable=False),
    Column("updated_at", When, nullable=False),
    Column("last_set", JSON, nullable=False, server_default=text("'{}'")),
    UniqueConstraint("flag_key", "environment"),
    CheckConstraint("length(flag_key) BETWEEN 1 AND 100", name="flag_key"),
    CheckConstraint("length(environment) BETWEEN 1 AND 100", name="environment"),
    CheckConstraint("rollout_percentage BETWEEN 0 AND 100", name="rollout_percentage"),
    sqlite_autoincrement=True,
)
overrides = Table(
    "feature_flag_user_overrides",
    _metadata,
    Column("flag_id", _ID, ForeignKey(flags.c.id, ondelete="CASCADE"), primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("override_type", Text, nullable=False),
    Column("reason", Text),
    Column("created_by", Text),
    Column("created_at", When, nullable=False),
    CheckConstraint("override_type IN ('include', 'exclude')", name="override_type"),
    Index("feature_flag_user_overrides_user_idx", "user_id"),
)

schedules = Table(
    "feature_flag_schedules",
    _metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("flag_id", _ID, ForeignKey(flags.c.id, ondelete="SET NULL")),
    Column("flag_key", Text, nullable=False),
    Column("environment", Text, nullable=False, server_default=text("'production'")),
    Column("scheduled_at", When, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("updates", JSON, nullable=False),
    Column("applied_at", When),
    Column("error_message", Text),
    Column("created_by", Text),
    Column("cancelled_by", Text),
    Column("cancelled_at", When),
    Column("created_at", When, nullable=False),
    Column("updated_at", When, nullable=False),
    Column("retry_count", Integer, nullable=False, server_default=text("0")),
    Column("max_retries", Integer, nullable=False, server_default=text("3")),
    Column("next_retry_at", When),
    Column("last_error", Text),
    Column("expires_at", When),
    Column("lease_until", When),
    Column("claim_id", Uuid().with_variant(Text(), "sqlite")),
    Column("backoff", JSON),
    Column("gate", Text),
    Column("priority", SmallInteger),
    CheckConstraint("status IN ('pending', 'applied', 'failed', 'cancelled')", name="status"),
    CheckConstraint("retry_count >= 0", name="retry_count"),
    CheckConstraint("max_retries BETWEEN 0 AND 10", name="max_retries"),
    CheckConstraint("next_retry_at IS NULL OR status IN ('pending', 'failed')", name="next_retry_at"),
    CheckConstraint("(lease_until IS NULL) = (claim_id IS NULL)", name="fence"),
    Index("feature_flag_schedules_flag_idx", "flag_key", "environment"),
    Index("feature_flag_schedules_flag_id_idx", "flag_id"),
    sqlite_autoincrement=True,
)
"""The three indexes that claims need are added by `ledger_indexes`."""

audit = Table(
    "feature_flag_audit",
    _metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("at", When, nullable=False),
    Column("action", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("flag_key", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("schedule_id", _ID, nullable=False),
    Column("details", JSON, nullable=False),
    Index("feature_flag_audit_schedule_idx", "schedule_id"),
)

# Partial, or SQLite takes it for first tries, which have no such time.
_waits_again = text("next_retry_at IS NOT NULL")
Index(
    "idx_schedules_next_retry_at", schedules.c.next_retry_at, sqlite_where=_waits_again, postgresql_where=_waits_again
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Schedules that people look through in one order: those that are still to come, or those that are over.

    Two indexes hold each, by environment and by flag. Words are literals, as a statement must have them too: what is bound hides
    a partial index from the planner.
    """

    name: str
    where: str
    place: ColumnElement[Any]
    """Where a schedule stands among the others: at the first of these times that can be read, in 1970 if none can."""


def _place(*times: Column[Any]) -> ColumnElement[Any]:
    # As text, not as a literal column: an index would take that for the column that names its table.
    earliest = type_coerce(text("'1970-01-01 00:00:00+00:00'"), When)
    return func.coalesce(*map(comparable, times), comparable(earliest))


AHEAD = Listing(
    name="ahead",
    where="status = 'pending' OR next_retry_at IS NOT NULL",
    place=_place(schedules.c.next_retry_at, schedules.c.scheduled_at),
)
OVER = Listing(name="over", where="status <> 'pending' AND next_retry_at IS NULL", place=_place(schedules.c.updated_at))
for _listing in (AHEAD, OVER):
    _where = text(_listing.where)
    for _name, _columns in ((_listing.name, ("environment",)), (f"{_listing.name}_flag", ("environment", "flag_key"))):
        Index(
            f"feature_flag_schedules_{_name}_idx", *(schedules.c[one] for one in _columns), schedules.c.status,
            _listing.place, schedules.c.id, sqlite_where=_where, postgresql_where=_where,
        )  # fmt: skip

WAITS: ColumnElement[bool] = (
    (schedules.c.status == "pending") | ((schedules.c.status == "failed") & schedules.c.next_retry_at.is_not(None))
) & schedules.c.lease_until.is_(None)
"""Schedules that wait, for their time or for a retry, and that nobody is applying."""


def read_schedules(
    connection: Connection, where: ColumnElement[bool], *, limit: int | None = None, offset: int = 0
) -> list[FlagSchedule]:
    """Schedules by their time."""
    order = (comparable(schedules.c.scheduled_at), schedules.c.id)
    found = select(schedules).where(where).order_by(*order).limit(limit).offset(offset)
    return [FlagSchedule.of(row) for row in connection.execute(found)]


def read_by_id(connection: Connection, ids: Collection[Any]) -> dict[int, FlagSchedule]:
    """Those of these schedules that there are, by their time."""
    found = read_schedules(connection, schedules.c.id.in_(ids)) if ids else []
    return {schedule.id: schedule for schedule in found}


def read_flag(connection: Connection, key: str, environment: str, *, stays: bool = False) -> Row[Any]:
    """The row of a flag; if it `stays`, nobody deletes it before the transaction ends."""
    found = select(flags).where(flags.c.flag_key == key, flags.c.environment == environment)
    if stays:
        found = found.with_for_update(read=True, key_share=True)
    row = connection.execute(found).first()
    if row is None:
        raise FlagNotFoundError(key, environment)
    return row
