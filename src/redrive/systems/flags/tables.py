"""The tables of flags. The migrations create them; a test holds the two equal on both databases.

Times are ISO 8601 text on SQLite, which has no type for them; `instant` makes them comparable whatever their spelling, since a
table that was there before may have been filled by others.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    false,
    func,
    text,
)
from sqlalchemy.types import TypeEngine

from redrive import LedgerTable, Words
from redrive.extend import NAMES, Instant, IsoText, ledger_indexes

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
)
"""A schedule as a task. `expires_at` is not its deadline: what expires ends with a reason of its own, see `apply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Schedules that people look through in one order: those that are still to come, or those that are over.

    Two indexes hold each, by environment and by flag. Words and times are literals, as a statement must have them too: what is
    bound hides a partial index from the planner.
    """

    name: str
    where: str
    times: tuple[str, ...]

    def place(self, dialect: str) -> str:
        """Where a row stands among the others; one without a readable time is the earliest."""
        sqlite = dialect == "sqlite"
        times = [f"julianday({time})" if sqlite else time for time in self.times]
        return f"coalesce({', '.join(times)}, {'0' if sqlite else _EARLIEST})"


_EARLIEST = "'1970-01-01 00:00:00+00'::timestamptz"
AHEAD = Stretch(
    name="ahead", where="status = 'pending' OR next_retry_at IS NOT NULL", times=("next_retry_at", "scheduled_at")
)
OVER = Stretch(name="over", where="status <> 'pending' AND next_retry_at IS NULL", times=("updated_at",))
STRETCHES = (AHEAD, OVER)

# SQLite counts rows by itself only in a column that is INTEGER to the letter. Ids are never given twice (AUTOINCREMENT): the
# audit outlives the schedules that it names.
_ID = BigInteger().with_variant(Integer(), "sqlite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables as one database has them."""

    flags: Table
    overrides: Table
    schedules: Table
    audit: Table


@cache
def make_tables(dialect: str) -> Tables:
    """The tables with the types of this database and all their indexes."""
    metadata = MetaData(naming_convention=NAMES)
    time: TypeEngine[Any] = IsoText() if dialect == "sqlite" else Instant()
    flags = Table(
        "feature_flags",
        metadata,
        Column("id", _ID, Identity(), primary_key=True),
        Column("flag_key", Text, nullable=False),
        Column("environment", Text, nullable=False, server_default=text("'production'")),
        Column("enabled", Boolean, nullable=False, server_default=false()),
        Column("rollout_percentage", Integer, nullable=False, server_default=text("0")),
        Column("description", Text),
        Column("created_at", time, nullable=False),
        Column("updated_at", time, nullable=False),
        Column("last_set", JSON, nullable=False, server_default=text("'{}'")),
        UniqueConstraint("flag_key", "environment"),
        CheckConstraint("length(flag_key) BETWEEN 1 AND 100", name="flag_key"),
        CheckConstraint("length(environment) BETWEEN 1 AND 100", name="environment"),
        CheckConstraint("rollout_percentage BETWEEN 0 AND 100", name="rollout_percentage"),
        sqlite_autoincrement=True,
    )
    overrides = Table(
        "feature_flag_user_overrides",
        metadata,
        Column("flag_id", _ID, ForeignKey(flags.c.id, ondelete="CASCADE"), primary_key=True),
        Column("user_id", Text, primary_key=True),
        Column("override_type", Text, nullable=False),
        Column("reason", Text),
        Column("created_by", Text),
        Column("created_at", time, nullable=False),
        CheckConstraint("override_type IN ('include', 'exclude')", name="override_type"),
        Index("feature_flag_user_overrides_user_idx", "user_id"),
    )
    return Tables(
        flags=flags, overrides=overrides, schedules=_schedules(metadata, flags, time, dialect), audit=_audit(metadata, time)
    )  # fmt: skip


def _schedules(metadata: MetaData, flags: Table, time: TypeEngine[Any], dialect: str) -> Table:
    schedules = Table(
        "feature_flag_schedules",
        metadata,
        Column("id", _ID, Identity(), primary_key=True),
        Column("flag_id", _ID, ForeignKey(flags.c.id, ondelete="SET NULL")),
        Column("flag_key", Text, nullable=False),
        Column("environment", Text, nullable=False, server_default=text("'production'")),
        Column("scheduled_at", time, nullable=False),
        Column("status", Text, nullable=False, server_default=text("'pending'")),
        Column("updates", JSON, nullable=False),
        Column("applied_at", time),
        Column("error_message", Text),
        Column("created_by", Text),
        Column("cancelled_by", Text),
        Column("cancelled_at", time),
        Column("created_at", time, nullable=False),
        Column("updated_at", time, nullable=False),
        Column("retry_count", Integer, nullable=False, server_default=text("0")),
        Column("max_retries", Integer, nullable=False, server_default=text("3")),
        Column("next_retry_at", time),
        Column("last_error", Text),
        Column("expires_at", time),
        Column("lease_until", time),
        Column("claim_id", Text if dialect == "sqlite" else Uuid),
        CheckConstraint("status IN ('pending', 'applied', 'failed', 'cancelled')", name="status"),
        CheckConstraint("retry_count >= 0", name="retry_count"),
        CheckConstraint("max_retries BETWEEN 0 AND 10", name="max_retries"),
        CheckConstraint("next_retry_at IS NULL OR status IN ('pending', 'failed')", name="next_retry_at"),
        CheckConstraint("(lease_until IS NULL) = (claim_id IS NULL)", name="fence"),
        Index("feature_flag_schedules_flag_idx", "flag_key", "environment"),
        Index("feature_flag_schedules_flag_id_idx", "flag_id"),
        sqlite_autoincrement=True,
    )
    # Partial, or SQLite takes it for first tries, which have no such time.
    waits = text("next_retry_at IS NOT NULL")
    Index("idx_schedules_next_retry_at", schedules.c.next_retry_at, sqlite_where=waits, postgresql_where=waits)
    ledger_indexes(FLAG_SCHEDULES, schedules)
    for stretch in STRETCHES:
        where, place = text(stretch.where), text(stretch.place(dialect))
        for name, columns in ((stretch.name, ["environment"]), (f"{stretch.name}_flag", ["environment", "flag_key"])):
            Index(
                f"feature_flag_schedules_{name}_idx", *(schedules.c[one] for one in columns), schedules.c.status, place,
                schedules.c.id, sqlite_where=where, postgresql_where=where,
            )  # fmt: skip
    return schedules


def _audit(metadata: MetaData, time: TypeEngine[Any]) -> Table:
    return Table(
        "feature_flag_audit",
        metadata,
        Column("id", _ID, Identity(), primary_key=True),
        Column("at", time, nullable=False),
        Column("action", Text, nullable=False),
        Column("actor", Text, nullable=False),
        Column("flag_key", Text, nullable=False),
        Column("environment", Text, nullable=False),
        Column("schedule_id", _ID, nullable=False),
        Column("details", JSON, nullable=False),
        Index("feature_flag_audit_schedule_idx", "schedule_id"),
    )


def instant(time: ColumnElement[Any], dialect: str) -> ColumnElement[Any]:
    """A time as something that compares by instant, whatever its spelling."""
    return func.julianday(time) if dialect == "sqlite" else time
