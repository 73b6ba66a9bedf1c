"""How `redrive doctor` examines ledgers: whether they can be opened, are worked off, and lose what they should."""

from collections.abc import AsyncIterator, Collection, Iterator
from datetime import timedelta

from redrive.app import Redrive
from redrive.cli.findings import Finding
from redrive.core.durations import format_duration
from redrive.core.failure import describe_error
from redrive.errors import RedriveError, TableError
from redrive.lane import Lane
from redrive.ledgers.adopt.notices import ROWS_AT_START, notices
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.settings import load_settings

OLDEST_DUE_MAX = timedelta(minutes=1)


async def look_at_lanes(app: Redrive, handled: Collection[str]) -> AsyncIterator[Finding]:
    """All ledgers of the database, as far as they are known; of those that are handled here also whether all kinds are."""
    for lane in app.lanes.values():
        try:
            ledger = await lane.ledger()
        except TableError as error:
            remedy = "run " + "; ".join(error.migration) if error.migration else f"see `redrive adopt {lane.name}`"
            yield Finding(lane.name, "problem", "; ".join(error.problems), remedy)
            continue
        except RedriveError as error:
            yield Finding(lane.name, "problem", describe_error(error))
            continue
        if isinstance(ledger, SqlLedger):
            for finding in _look_at_retention(lane, ledger):
                yield finding
            if lane.checked:
                for notice in await app.database.read(notices, lane.table, ledger.sql_table, ROWS_AT_START):
                    yield Finding(name=lane.name, status="notice", said=notice)
        counts = await lane.counts()
        shown = ", ".join(f"{amount} {state}" for state, amount in counts.items() if amount) or "empty"
        yield Finding(lane.name, "ok", shown)
        waited = await ledger.oldest_due()
        if waited is not None and waited > OLDEST_DUE_MAX:
            said = format_duration(timedelta(seconds=int(waited.total_seconds())))
            remedy = "see that a worker runs that knows its kind, and that it keeps up"
            yield Finding(lane.name, "notice", f"the oldest due task has been waiting for {said}", remedy)
        if lane.name in handled and lane.table.kind is not None:
            known = set(lane.handlers.among(kinds := await ledger.open_kinds()))
            unknown = [kind for kind in kinds if kind not in known]
            if unknown:
                said = f"tasks wait without a handler here: {', '.join(unknown[:10])}"
                yield Finding(lane.name, "problem", said, "register handlers for these kinds, or cancel the tasks")


def _look_at_retention(lane: Lane, ledger: SqlLedger) -> Iterator[Finding]:
    """What the settings would have pruned, and cannot."""
    settings = load_settings().worker()
    kept = lane.tune(settings).retention if lane.tune else settings.retention
    for state in kept:
        why = ledger.unprunable(state)
        if why is not None:
            yield Finding(
                name=lane.name, status="notice", said=f"tasks that are {state} are kept for ever: {why}",
                remedy="name such a column, or set RETENTION_DAYS=0 if they are to be kept",
            )  # fmt: skip
    if kept and ledger.kept_by:
        yield Finding(
            name=lane.name, status="notice",
            said=f"rows that {' and '.join(map(str, ledger.kept_by))} points at are never pruned: the foreign key forbids it",
            remedy="declare it ON DELETE CASCADE or SET NULL if they should go",
        )  # fmt: skip
