"""The tables of flags, and how rows are read from them. The migrations make them; a test holds the two equal on both databases."""

from collections.abc import Collection
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
    Connection,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Row,
    Table,
    Text,
    UniqueConstraint,
    false,
    select,
    text,
)
from sqlalchemy.types import TypeEngine

from redrive import LedgerTable, Words
from redrive.extend import NAMES, comparable, ledger_indexes
from redrive.systems.flags.errors import FlagNotFoundError
from redrive.systems.flags.values import FlagSchedule
from redrive.systems.kit.columns import fence_type, place, time_type

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
class Listing:
    """Schedules that people look through in one order: those that are still to come, or those that are over.

    Two indexes hold each, by environment and by flag. Words are literals, as a statement must have them too: what is bound hides
    a partial index from the planner.
    """

    name: str
    where: str
    times: tuple[str, ...]


AHEAD = Listing(
    name="ahead", where="status = 'pending' OR next_retry_at IS NOT NULL", times=("next_retry_at", "scheduled_at")
)
OVER = Listing(name="over", where="status <> 'pending' AND next_retry_at IS NULL", times=("updated_at",))

# SQLite counts rows by itself only in a column that is INTEGER to the letter. Ids are never given twice (AUTOINCREMENT): the
# audit outlives the schedules that it names.
_ID = BigInteger().with_variant(Integer(), "sqlite")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagTables:
    """The tables as one database has them."""

    dialect: str
    flags: Table
    overrides: Table
    schedules: Table
    audit: Table

    def place(self, listing: Listing) -> ColumnElement[Any]:
        """Where a schedule stands among the others of its listing."""
        return place(self.dialect, *(self.schedules.c[time] for time in listing.times))

    @property
    def waits(self) -> ColumnElement[bool]:
        """Schedules that wait, for their time or for a retry, and that nobody is applying."""
        c = self.schedules.c
        again = (c.status == "failed") & c.next_retry_at.is_not(None)
        return ((c.status == "pending") | again) & c.lease_until.is_(None)

    def read_schedules(
        self, connection: Connection, where: ColumnElement[bool], *, limit: int | None = None, offset: int = 0
    ) -> list[FlagSchedule]:
        """Schedules by their time."""
        c = self.schedules.c
        time = comparable(c.scheduled_at, self.dialect)
        found = select(self.schedules).where(where).order_by(time, c.id).limit(limit).offset(offset)
        return [FlagSchedule.of(row) for row in connection.execute(found)]

    def read_by_id(self, connection: Connection, ids: Collection[Any]) -> dict[int, FlagSchedule]:
        """Those of these schedules that there are, by their time."""
        found = self.read_schedules(connection, self.schedules.c.id.in_(ids)) if ids else []
        return {schedule.id: schedule for schedule in found}

    def read_flag(self, connection: Connection, key: str, environment: str, *, stays: bool = False) -> Row[Any]:
        """The row of a flag; if it `stays`, nobody deletes it before the transaction ends."""
        t = self.flags
        found = select(t).where(t.c.flag_key == key, t.c.environment == environment)
        if stays:
            found = found.with_for_update(read=True, key_share=True)
        row = connection.execute(found).first()
        if row is None:
            raise FlagNotFoundError(key, environment)
        return row


@cache
def make_tables(dialect: str) -> FlagTables:
    """The tables with the types of this database and all their indexes."""
    metadata = MetaData(naming_convention=NAMES)
    time = time_type(dialect)
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
    return FlagTables(
        dialect=dialect, flags=flags, overrides=overrides,
        schedules=_schedules(metadata, flags, time, dialect), audit=_audit(metadata, time),
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
        Column("claim_id", fence_type(dialect)),
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
    ledger_indexes(FLAG_SCHEDULES, schedules, dialect)
    for listing in (AHEAD, OVER):
        where, at = text(listing.where), place(dialect, *(schedules.c[time] for time in listing.times))
        for name, columns in ((listing.name, ["environment"]), (f"{listing.name}_flag", ["environment", "flag_key"])):
            Index(
                f"feature_flag_schedules_{name}_idx", *(schedules.c[one] for one in columns), schedules.c.status, at,
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
