"""What is counted of kinds and causes, in tables of SQL. A look costs the same however many tasks there are."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, case, delete, func, literal_column, select

from redrive.core.histograms import RAN, RAN_SECONDS, percentile
from redrive.engine.tally import WHOLE, KindCounts, SeenCause
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.on_database import OnDatabase, looks, reads, writes
from redrive.ledgers.sql.times import EpochSeconds
from redrive.ledgers.sql.upsert import upsert
from redrive.operator.kinds import (
    EPISODE_ENDS_AFTER,
    FOLD_AFTER,
    FOLD_MAX,
    FOLD_MINUTES_AFTER,
    FOLD_REACH,
    FOLDED,
    FORGET_AFTER,
    KINDS_SHOWN_MAX,
    SEEN_SPAN,
    KindsSeen,
    KindSums,
    VersionSeen,
)
from redrive.operator.sql.kind_trends import KindTrends, span_of
from redrive.operator.sql.reads import LOOK_WITHIN

SUMS = ("begun", "tries", "failures", "done", "dead", *RAN)
FIRSTS = ("first_failure", "first_success")
VERSIONS_SHOWN_MAX = 20
LASTS = ("last_failure", "last_success")


class SqlKinds(OnDatabase):
    """The counts of one database; see `CountedKinds`."""

    note: str | None = None

    def __init__(self, database: Database, *, open: Callable[[], Awaitable[object]] | None = None) -> None:
        super().__init__(database, open=open)
        self._trends = KindTrends()

    @writes
    def write(self, connection: Connection, counts: Sequence[KindCounts], *, worker: str, version: str | None) -> None:
        """See `CountedKinds.write`. Each worker has rows of its own, so none waits for another."""
        m = schema.kind_minute
        rows = [
            {
                "ledger": one.ledger, "kind": row.kind, "cause": row.cause, "minute": row.minute, "version": version or "", "worker": worker,
                "begun": row.begun, "tries": row.tries, "failures": row.failures, "done": row.done, "dead": row.dead,
                **{name: getattr(row, name) for name in (*FIRSTS, *LASTS)}, **dict(zip(RAN, row.ran, strict=True)),
            }
            for one in counts for row in one.minutes
        ]  # fmt: skip
        if rows:
            connection.execute(upsert(self._database, m), rows)
        for one in sorted(counts, key=lambda counted: counted.ledger):
            if one.causes:
                self._see(connection, one.ledger, one.causes, version)

    def _see(self, connection: Connection, ledger: str, causes: Sequence[SeenCause], version: str | None) -> None:
        """Note causes: since when this time, and in which versions. In the order of their ids, as all batches."""
        f = schema.failing
        ids = sorted(cause.id for cause in causes)
        found = connection.execute(select(f).where(f.c.ledger == ledger, f.c.id.in_(ids)))
        there = {row.id: row for row in found}
        rows = []
        for cause in sorted(causes, key=lambda one: one.id):
            before = there.get(cause.id)
            goes_on = before is not None and cause.first_seen - before.last_seen < EPISODE_ENDS_AFTER
            since = min(before.since, cause.first_seen) if before is not None and goes_on else cause.first_seen
            tries_max, lasts = cause.budget or (None, None)
            rows.append(
                {
                    "ledger": ledger, "id": cause.id, "kind": cause.kind, "text": cause.text, "sample": cause.sample, "at": cause.at,
                    "first_seen": cause.first_seen if before is None else min(before.first_seen, cause.first_seen),
                    "since": since, "since_hour": since.replace(minute=0, second=0, microsecond=0),
                    "last_seen": cause.last_seen if before is None else max(before.last_seen, cause.last_seen),
                    "first_version": version if before is None else before.first_version,
                    "last_version": version, "tries_max": tries_max, "lasts_seconds": None if lasts is None else lasts.total_seconds(),
                }
            )  # fmt: skip
        connection.execute(upsert(self._database, f), rows)

    # --- looking ----------------------------------------------------------------------------------------------------

    @reads
    def look(self, connection: Connection) -> KindsSeen:
        """See `CountedKinds.look`."""
        return self._trends.look(connection, self._database.present(connection))

    @looks(LOOK_WITHIN)
    def sums(self, connection: Connection, span: timedelta) -> dict[tuple[str, str], KindSums]:
        """See `CountedKinds.sums`."""
        m = schema.kind_minute
        since = self._database.present(connection) - span
        names = ("tries", "failures", *RAN)
        asked = select(m.c.ledger, m.c.kind, *(func.sum(m.c[name]).label(name) for name in names))
        asked = asked.where(m.c.cause == WHOLE, m.c.minute >= since).group_by(m.c.ledger, m.c.kind)
        found = {}
        for row in connection.execute(asked.order_by(func.sum(m.c.tries).desc()).limit(KINDS_SHOWN_MAX)):
            ran = [int(getattr(row, name)) for name in RAN]
            p50, p95 = (span_of(percentile(ran, share, RAN_SECONDS)) for share in (0.5, 0.95))
            found[row.ledger, row.kind] = KindSums(tries=int(row.tries), failures=int(row.failures), p50=p50, p95=p95)
        return found

    @reads
    def versions(
        self,
        connection: Connection,
        ledger: str,
        kind: str,
        *,
        cause: str | None = None,
        until: datetime | None = None,
    ) -> list[VersionSeen]:
        """See `CountedKinds.versions`."""
        now = self._database.present(connection)
        return _versions(connection, ledger, kind, cause, until or now, now - SEEN_SPAN)

    # --- keeping ----------------------------------------------------------------------------------------------------

    @writes
    def fold(self, connection: Connection, now: datetime) -> int:
        """See `CountedKinds.fold`."""
        m, f = schema.kind_minute, schema.failing
        whole = now.replace(second=0, microsecond=0)
        # Written out, not bound: then the index of what is not folded serves it.
        unfolded = m.c.worker != literal_column("''")
        folded = self._fold(connection, and_(m.c.minute < whole - FOLD_AFTER, unfolded), hours=False)
        old = whole.replace(minute=0) - FOLD_MINUTES_AFTER
        # Workers' rows of that age are folded first. Rows that stand for an hour already are left alone.
        within_an_hour = EpochSeconds(m.c.minute) % literal_column("3600", BigInteger) != literal_column(
            "0", BigInteger
        )
        folded += self._fold(
            connection,
            and_(m.c.minute < old, m.c.minute >= old - FOLD_REACH, m.c.worker == FOLDED, within_an_hour),
            hours=True,
        )
        folded += connection.execute(delete(m).where(m.c.minute < now - FORGET_AFTER)).rowcount
        return folded + connection.execute(delete(f).where(f.c.last_seen < now - FORGET_AFTER)).rowcount

    def _fold(self, connection: Connection, which: Any, *, hours: bool) -> int:
        """Rows become one for each kind, cause, version and step; how many went."""
        m = schema.kind_minute
        key = ("ledger", "kind", "cause", "minute", "version")
        found = [
            row._asdict() for row in connection.execute(select(m).where(which).order_by(m.c.minute).limit(FOLD_MAX))
        ]
        if not found:
            return 0
        sums: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in found:
            start = row["minute"].replace(minute=0) if hours else row["minute"]
            place = tuple(start if name == "minute" else row[name] for name in key)
            if place not in sums:
                sums[place] = self._folded(connection, dict(zip(key, place, strict=True)))
            _add(sums[place], row)
        names = (*key, "worker")
        these = delete(m).where(*(m.c[name] == bindparam(f"this_{name}") for name in names))
        connection.execute(these, [{f"this_{name}": row[name] for name in names} for row in found])
        connection.execute(upsert(self._database, m), list(sums.values()))
        return len(found)

    @staticmethod
    def _folded(connection: Connection, place: dict[str, Any]) -> dict[str, Any]:
        """What stands there already, or nothing."""
        m = schema.kind_minute
        row = connection.execute(
            select(m).where(m.c.worker == FOLDED, *(m.c[name] == value for name, value in place.items()))
        ).first()
        if row is not None:
            return row._asdict()
        return {**place, "worker": FOLDED, **dict.fromkeys(SUMS, 0), **dict.fromkeys((*FIRSTS, *LASTS))}


def _add(into: dict[str, Any], row: dict[str, Any]) -> None:
    for name in SUMS:
        into[name] += row[name]
    for name, choose in (*((name, min) for name in FIRSTS), *((name, max) for name in LASTS)):
        into[name] = choose((one for one in (into[name], row[name]) if one is not None), default=None)


def _versions(
    connection: Connection, ledger: str, kind: str, cause: str | None, until: datetime, since: datetime
) -> list[VersionSeen]:
    """By the key of the table: minutes of two days and hours of five, of one kind and one cause."""
    m = schema.kind_minute
    of_kind, failed = m.c.cause == WHOLE, m.c.cause == (cause or WHOLE)

    def total(column: Any, when: Any) -> Any:
        return func.coalesce(func.sum(case((when, column), else_=0)), 0)

    asked = select(
        m.c.version, total(m.c.tries, of_kind).label("tries"), total(m.c.failures, failed).label("failures"),
        total(m.c.dead, failed).label("dead"), func.min(m.c.minute).label("first"),
        func.max(case((failed, m.c.last_failure))).label("last_failure"), func.max(case((of_kind, m.c.last_success))).label("last_success"),
    )  # fmt: skip
    these = (m.c.ledger == ledger, m.c.kind == kind, m.c.cause.in_(sorted({WHOLE, cause or WHOLE})))
    found = asked.where(*these, m.c.minute >= since, m.c.minute <= until).group_by(m.c.version)
    rows = connection.execute(found.order_by(func.min(m.c.minute).desc()).limit(VERSIONS_SHOWN_MAX))
    return [
        VersionSeen(
            version=row.version or None, tries=int(row.tries), failures=int(row.failures), dead=int(row.dead), first_tried=row.first,
            last_failure=row.last_failure, last_success=row.last_success,
        )
        for row in rows
    ]  # fmt: skip
