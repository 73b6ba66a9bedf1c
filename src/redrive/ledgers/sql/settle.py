"""Settling: writing down what tries came to, each only where its fence is still there.

A settlement arrives whole, and nothing is decided here: the row gets its state in the table's own word, the history gets the
same state, and the rollup is computed from the same values. How many statements that takes is the dialect's to know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Integer, Text, Update, case, func, null
from sqlalchemy.exc import DBAPIError

from redrive.core.decide import Settlement
from redrive.core.states import Act, State, check_transition
from redrive.core.table import Counts
from redrive.core.task import Claim, ClaimLocked, TaskId, Unwritten
from redrive.errors import LedgerAwayError, LedgerError, UsageError
from redrive.ledgers.sql.base import LedgerBase
from redrive.ledgers.sql.database import StillLocked, run_within
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.predicates import columns_of, quoted
from redrive.ledgers.sql.results import Results
from redrive.ledgers.sql.seam import Columns, Prepared, SettleWriter
from redrive.ledgers.sql.stacks import write_stacks
from redrive.ledgers.stacks import NewStacks
from redrive.ports import Within


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraColumns:
    """Columns of its rows that a system fills in itself as they are settled, in the same update."""

    columns: Columns
    """What comes with every settlement for them; names that no settlement has otherwise."""
    row: Callable[[Settlement], tuple[Any, ...]]
    """The values of a settlement, in the order of `columns`."""
    values: Callable[[FromClause, ColumnElement[Any]], Mapping[str, ColumnElement[Any]]]
    """By the name of a column what to write, from the batch of settlements, each with its `state`, and the present, whatever
    the ledger would."""


class RowSettlements:
    """What settlements leave in the rows of a table: see `SettleRows`."""

    def __init__(self, mapped: Mapped, extra: ExtraColumns | None = None) -> None:
        self._mapped = mapped
        self._extra = extra
        self._words = mapped.ledger_table.words
        self._count = mapped.ledger_table.count_to_store
        self._counts_failures = mapped.ledger_table.counts is Counts.FAILURES
        self._span = mapped.dialect.span
        self.id: ColumnElement[Any] = mapped.id
        self.fence: ColumnElement[Any] = mapped.rows.column("claim_id")
        self.started_at: ColumnElement[Any] | None = (
            mapped.rows.column("claimed_at") if mapped.has("claimed_at") else None
        )
        self.has_gates = mapped.rows.has_gates

    @cached_property
    def _same_words(self) -> bool:
        """Whether the table's words are the names of the states, as our own table's are."""
        plain = self._words.retrying is None and self._words.refused is None
        return plain and all(getattr(self._words, state.value) in (None, state) for state in State)

    @cached_property
    def ends(self) -> Columns:
        """See `SettleRows.ends`."""
        return {
            "state": Text(),
            "count": Integer(),
            "delay": self._mapped.dialect.span_type(self._mapped.rows.column("due")),
            "outcome": Text(),
            "error": Text(),
            **({} if self._same_words else {"word": Text()}),
        }

    @cached_property
    def extra(self) -> Columns:
        """See `SettleRows.extra`."""
        return {} if self._extra is None else self._extra.columns

    @cached_property
    def columns(self) -> Columns:
        """See `SettleRows.columns`."""
        return {"id": self.id.type, "claim_id": self.fence.type, **self.ends, **self.extra}

    def by_columns(self, settlements: Sequence[Settlement], now: datetime | None) -> list[Sequence[Any]]:
        """See `SettleRows.by_columns`."""
        claims = [one.claim for one in settlements]
        return [
            [claim.task.id for claim in claims],
            [claim.claim_id for claim in claims],
            *self.ends_by_columns(settlements, now),
            *self.extra_by_columns(settlements),
        ]

    def ends_by_columns(self, settlements: Sequence[Settlement], now: datetime | None) -> list[Sequence[Any]]:
        """See `SettleRows.ends_by_columns`."""
        _, outcomes, states, failures, delays, errors, _, _, _ = zip(*settlements, strict=True)
        waiting = State.WAITING
        for state, delay in zip(states, delays, strict=True):
            if (delay is None) is (state is waiting):
                raise UsageError(
                    f"a settlement has a delay if its task waits again, and only then, not {delay} and {state}"
                )
        due = {delay: None if delay is None else self._span(now, delay) for delay in set(delays)}
        columns: list[Sequence[Any]] = [
            states,
            failures if self._counts_failures else [self._count(one) for one in settlements],
            [due[delay] for delay in delays],
            outcomes,
            errors,
        ]
        if not self._same_words:
            words = self._words
            columns.append([words.settled(one.state, failures=one.failures) for one in settlements])
        return columns

    def extra_by_columns(self, settlements: Sequence[Settlement]) -> list[Sequence[Any]]:
        """See `SettleRows.extra_by_columns`."""
        return [] if self._extra is None else list(zip(*map(self._extra.row, settlements), strict=True))

    def update(self, batch: FromClause, match: ColumnElement[bool]) -> Update:
        """See `SettleRows.update`."""
        mapped, rows = self._mapped, self._mapped.rows
        values: dict[str, Any] = {
            "status": mapped.as_status(batch.c.state if self._same_words else batch.c.word),
            "count": batch.c.count,
            "due": mapped.dialect.later(batch.c.delay, rows.column("due")),
            "lease_until": null(),
            "claim_id": null(),
        }
        if mapped.has("last_error"):
            kept = rows.column("last_error")
            snoozed = batch.c.outcome == quoted("snoozed")
            values["last_error"] = case((snoozed, kept), else_=func.coalesce(batch.c.error, kept))
        if mapped.has("updated_at"):
            values["updated_at"] = mapped.now("updated_at")
        if mapped.has("done_at"):
            done = batch.c.state == quoted("done")
            values["done_at"] = case((done, mapped.now("done_at")), else_=rows.column("done_at"))
        if mapped.has("ended_at"):
            values["ended_at"] = case((batch.c.state == quoted("waiting"), null()), else_=mapped.now("ended_at"))
        settled = mapped.update(values).where(match)
        if self._extra is None:
            return settled
        named, extra = columns_of(mapped.table), self._extra.values(batch, mapped.dialect.now())
        return settled.values({named[name]: value for name, value in extra.items()})


def started_at(claim: Claim) -> datetime | None:
    """The start of the run that ended: of the lost one, if this claim only buries it."""
    return claim.claimed_at if claim.abandoned is None else claim.abandoned.claimed_at


class Settling(LedgerBase):
    """The part of a ledger that writes settlements."""

    _extra: ExtraColumns | None = None

    @cached_property
    def _settle_writer(self) -> SettleWriter:
        return self._mapped.dialect.settle(RowSettlements(self._mapped, self._extra))

    @cached_property
    def _stacks(self) -> NewStacks:
        return NewStacks()

    @cached_property
    def results(self) -> Results:
        """What handlers returned."""
        return Results(self.database, self.name)

    async def result(self, id: TaskId) -> Any:
        """See `OperatorLedger.result`."""
        return await self.database.read(self.results.read, id)

    @cached_property
    def _tells_settled(self) -> bool:
        return self.beside.listens("settled")

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        within: Within | None = None,
        wait: timedelta | None = None,
    ) -> list[Unwritten]:
        """See `Ledger.settle`."""
        if not settlements:
            return []
        # In the order of ids, as every batch here: two batches that lock the same rows then never wait in a circle.
        ordered = sorted(settlements, key=_task_id)
        for state in {one.state for one in ordered}:
            check_transition(Act.SETTLE, State.CLAIMED, state)
            self.table.words.settled(state)  # raises where the table has no word for it
        if within is not None:  # alone with its work, which is lost if it does not wait
            return await run_within(within, self._settle, ordered, worker, wait=True)
        if new := self._stacks.among(ordered):
            await self._keep_stacks(new)
        try:
            if wait is not None:
                return await self.database.stand_in_line(wait, self._settle_in_line, ordered, worker)
            alone = self._settle_writer.one_statement and not self._tells_settled and not Results.any_in(ordered)
            alone = alone and (self.effects is None or not self.effects.any_in(ordered))
            run = self.database.statement if alone else self.database.write
            prepared = self._settle_writer.prepare(ordered, self._now())
            if prepared is not None and _meet(ordered):
                prepared = None  # they are written in several rounds
            unwritten = await run(self._settle, ordered, worker, wait=False, prepared=prepared)
        except StillLocked:
            return [ClaimLocked(one.claim) for one in ordered]
        if self._gates_seen and any(one.claim.task.gate is not None for one in ordered):
            self.database.wake(self.name)  # a slot is free, or a probe was answered
        return unwritten

    async def _keep_stacks(self, new: Mapping[str, str]) -> None:
        """Before the settlements that name them. A table that cannot be written costs the tracebacks, and no settlement."""
        try:
            await self.database.write(write_stacks, self.database, new)
        except LedgerAwayError:
            raise
        except (DBAPIError, LedgerError, StillLocked):
            return
        self._stacks.written(new)

    def _settle_in_line(self, connection: Connection, settlements: list[Settlement], worker: str) -> list[Unwritten]:
        return self._settle(connection, settlements, worker, wait=True)

    def _settle(
        self,
        connection: Connection,
        settlements: list[Settlement],
        worker: str,
        *,
        wait: bool = False,
        prepared: Prepared | None = None,
    ) -> list[Unwritten]:
        if prepared is not None or not _meet(settlements):
            return self._settle_each(connection, settlements, worker, wait=wait, prepared=prepared)
        # Several claims of one task, all but one of them lost: what was written is told by id, so they must not meet.
        unwritten, rest = list[Unwritten](), settlements
        while rest:
            first = {one.claim.task.id: one for one in reversed(rest)}
            unwritten += self._settle_each(connection, list(reversed(first.values())), worker, wait=wait)
            rest = [one for one in rest if first[one.claim.task.id] is not one]
        return unwritten

    def _settle_each(
        self,
        connection: Connection,
        settlements: list[Settlement],
        worker: str,
        *,
        wait: bool = False,
        prepared: Prepared | None = None,
    ) -> list[Unwritten]:
        now = self._now() if prepared is None else prepared.now
        rest = self._settle_writer.write(
            connection, settlements, ledger=self.name, worker=worker, now=now, wait=wait, prepared=prepared
        )
        if self._tells_settled and len(rest) < len(settlements):  # what it writes beside is its own kind of result
            self.beside.settled(connection, _without(settlements, rest) if rest else settlements)
        elif Results.any_in(settlements):
            self.results.write(connection, _without(settlements, rest) if rest else settlements)
        if self.effects is not None and self.effects.any_in(settlements):
            self.effects.write(connection, _without(settlements, rest) if rest else settlements)
        return self._fences.why(connection, [one.claim for one in rest])

    async def settled_by(self, claims: Sequence[Claim], worker: str) -> list[Claim]:
        """See `Ledger.settled_by`."""
        return await self.database.read(self._fences.ended_by, claims, self.name, worker) if claims else []


_task_id = attrgetter("claim.task.id")


def _meet(settlements: Sequence[Settlement]) -> bool:
    """Whether some of them are of the same task."""
    return len(set(map(_task_id, settlements))) < len(settlements)


def _without(settlements: Sequence[Settlement], rest: Sequence[Settlement]) -> list[Settlement]:
    left = {one.claim.task.id for one in rest}
    return [one for one in settlements if one.claim.task.id not in left]
