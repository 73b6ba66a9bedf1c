"""Claiming: taking due tasks for a worker, extending the leases, and taking over what was abandoned.

What keeps claims flat, however large the table grows, besides the indexes of `predicates`: one branch per kind, each limited to
what the branches before it left, so that a million due tasks of kinds which this worker does not know cost nothing.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, lru_cache, partial
from typing import Any, NoReturn
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Label,
    Select,
    Update,
    bindparam,
    func,
    literal_column,
    null,
    or_,
    select,
    union_all,
)

from redrive.core.gate_order import FAVOURED, NO_TENANT, TENANTS, around, mostly_gated
from redrive.core.table import Counts
from redrive.core.task import Abandoned, Claim, ClaimLocked, TaskId, Unwritten, is_alone
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.database import StillLocked
from redrive.ledgers.sql.due import STATEMENTS_KEPT, Due, due_branch, kind_conditions, kind_parameters
from redrive.ledgers.sql.fences import Fences
from redrive.ledgers.sql.gate_rows import GateAsk
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.predicates import quoted
from redrive.ledgers.sql.rows import RowReader
from redrive.ledgers.sql.seam import Parameters, Runs, Taken, Takes
from redrive.ledgers.sql.sift import is_unreadable, sift
from redrive.ledgers.sql.suspects import Suspects

KINDS_PER_CLAIM_MAX = 40
KNOWN_OF_CLAIMS = ("status", "claim_id", "lease_until", "claimed_at", "updated_at", "done_at", "ended_at")
"""What a claim has just written itself, or what a row that is held has not."""


class ClaimStatements:
    """The statements, each with its purpose."""

    def __init__(self, mapped: Mapped) -> None:
        self._mapped = mapped
        self.claim = lru_cache(STATEMENTS_KEPT)(self._claim)

    def _claim(self, kinds: int) -> Runs:
        """Take up to `limit` due rows: retries first, at least a quarter for first tries while any are due.

        `kinds` is how many kinds are bound as `kind_0 …`, zero for all.
        """
        limit = bindparam("limit", type_=Integer)
        share = bindparam("retry_share", type_=Integer)
        due_retries = [
            select(branch.limit(share).subquery(f"due_{position}"))
            for position, branch in enumerate(self._branches("retry", kinds, literal_column("1").label("one")))
        ]
        few = select(union_all(*due_retries).subquery("due_retries")).limit(share).subquery("few")
        seen = select(func.count().label("amount")).select_from(few).cte("seen")
        reserved: Any = select(seen.c.amount).scalar_subquery()
        mapped = self._mapped
        turns = [
            (
                name,
                [
                    branch.order_by(due_branch(mapped.rows, name).due)
                    for branch in self._branches(name, kinds, mapped.id)
                ],
            )
            for name in ("first", "retry")
        ]
        taken = mapped.dialect.take(turns, limit, reserved)
        ids = union_all(*(select(*cte.c) for cte in taken))
        return mapped.dialect.take_and_read(mapped.id, ids, self)

    def _branches(self, name: str, kinds: int, *columns: Any) -> list[Select[Any]]:
        branch = due_branch(self._mapped.rows, name)
        where = [branch.rows, branch.due <= self._mapped.dialect.present(branch.column)]
        return [select(*columns).where(*where, *kind) for kind in kind_conditions(self._mapped.rows, kinds)]

    def hold(self, where: ColumnElement[bool], *, anew: bool = True) -> Update:
        """Hold rows until the lease ends, and return them: anew, or with the fence and the start that they have, if any."""
        return self.held(where, anew=anew).returning(*self.columns, self.present)

    def held(self, where: ColumnElement[bool], *, anew: bool = True) -> Update:
        """The same, without a word of them."""
        mapped, rows, table = self._mapped, self._mapped.rows, self._mapped.ledger_table
        values: dict[str, Any] = {
            "claim_id": bindparam("fence", type_=rows.column("claim_id").type),
            "lease_until": mapped.later(rows.column("lease_until"), "lease"),
        }
        for role in ("claimed_at", "updated_at"):
            if mapped.has(role):
                values[role] = mapped.now(role)
        for role in () if anew else ("claim_id", "claimed_at"):
            if role in values:
                values[role] = func.coalesce(rows.column(role), values[role])
        if table.words.claimed:
            values["status"] = quoted(table.words.claimed)
        if anew and table.counts is Counts.ATTEMPTS:
            values["count"] = rows.count() + 1
        return mapped.update(values).where(where)

    @cached_property
    def columns(self) -> list[ColumnElement[Any]]:
        """What a claim must read of its rows: what is mapped, or is the payload, and not what it knows by itself.

        A quarter less to decode, and what the table holds besides cannot be in the way.
        """
        table = self._mapped.ledger_table
        names = table.columns()
        known = {names[role] for role in KNOWN_OF_CLAIMS if role in names} - {table.key, table.id_column}
        there = self._mapped.table.c
        needed = set(names.values()) if table.payload is not None else {column.name for column in there}
        return [column for column in there if column.name in needed - known]

    @cached_property
    def present(self) -> Label[Any]:
        """The ledger's present, which stands behind each row of a claim."""
        return self._mapped.dialect.now().label("claim_now")

    @cached_property
    def expired(self) -> Select[Any]:
        """Rows whose lease ran out, or that are claimed without one, locked for whoever asks first."""
        rows, has = self._mapped.rows, self._mapped.has
        found = select(
            self._mapped.id,
            rows.column("claim_id").label("old_claim_id"),
            (rows.column("claimed_at") if has("claimed_at") else null()).label("old_claimed_at"),
        ).where(rows.held(), rows.lease_end() <= self._mapped.dialect.present(rows.column("lease_until")))
        return (
            found.order_by(rows.lease_end()).limit(bindparam("limit", type_=Integer)).with_for_update(skip_locked=True)
        )

    @cached_property
    def expired_of_kinds(self) -> Select[Any]:
        """The same for some kinds only."""
        return self.expired.where(self._mapped.rows.column("kind").in_(bindparam("kinds", expanding=True)))

    @cached_property
    def held_under(self) -> Select[Any]:
        """Rows that are held under a fence, by the index of what is held; not those that somebody else has locked."""
        rows = self._mapped.rows
        fence = bindparam("fence", type_=rows.column("claim_id").type)
        found = select(self._mapped.id).where(rows.held(), rows.column("claim_id") == fence)
        return found.order_by(rows.lease_end()).with_for_update(skip_locked=True)

    @cached_property
    def take_over(self) -> Compiled:
        """Give rows found by `expired` or `held_under` a new lease.

        The fence stays the lost claim's: a keeper that is killed before it settles then leaves no trace, and whoever
        settles in the end writes the one attempt of that claim.
        """
        return Compiled(self.hold(self._mapped.id.in_(bindparam("ids", expanding=True)), anew=False))

    @cached_property
    def run_alone(self) -> Update:
        """Give a claim the fence of a run alone; once more does no harm."""
        fence = self._mapped.rows.column("claim_id")
        alone = bindparam("alone", type_=fence.type)
        still_ours = or_(fence == bindparam("fence", type_=fence.type), fence == alone)
        update = self._mapped.update({"claim_id": alone})
        return update.where(self._mapped.id.in_(bindparam("ids", expanding=True)), still_ours)

    @cached_property
    def drop_fences(self) -> Update:
        """Forget fences that are none: no settlement could name them."""
        ids = self._mapped.id.in_(bindparam("ids", expanding=True))
        return self._mapped.update({"claim_id": null()}).where(ids)

    def extend(self, fences: Fences) -> Compiled:
        """Move the end of leases, each only where its fence is still there and nobody has locked the row."""
        mapped, rows = self._mapped, self._mapped.rows
        lease = {"lease_until": mapped.later(rows.column("lease_until"), "lease")}
        extended = mapped.update(lease).where(fences.free).returning(mapped.id, rows.column("claim_id"))
        return Compiled(extended)


class Claiming(Due):
    """The part of a ledger that hands tasks out."""

    _turn = 0
    _last_tenant = ""
    _ungated_first = False

    @cached_property
    def draw(self) -> random.Random:
        """Whose turn it is to go first of a gate is drawn."""
        return random.Random()

    def _hold_anew(self, where: ColumnElement[bool]) -> Update:
        return self._claiming.hold(where, anew=True)

    @cached_property
    def _claiming(self) -> ClaimStatements:
        return ClaimStatements(self._mapped)

    @cached_property
    def _extending(self) -> Compiled:
        return self._claiming.extend(self._fences)

    @cached_property
    def _claim_reader(self) -> RowReader:
        return RowReader(self.table, self._claiming.columns)

    @cached_property
    def _suspects(self) -> Suspects:
        return Suspects(self.name, self._mapped)

    @cached_property
    def _tells_claims(self) -> bool:
        return self.beside.listens("claimed")

    async def claim(
        self,
        limit: int,
        lease: timedelta,
        *,
        kinds: Sequence[str] | None = None,
        fence: UUID | None = None,
        held: Callable[[], Iterable[Claim]] = tuple,  # noqa: ARG002 - what was abandoned is for `reclaim`
        gates: bool = True,
        busy: Sequence[str] | None = None,
    ) -> list[Claim]:
        """See `Ledger.claim`."""
        known = await self._known(kinds)
        if limit < 1 or known == []:
            return []
        if busy is not None:
            rest = (*busy, NO_TENANT) if self._mapped.rows.has_turns else (*busy, NO_TENANT, TENANTS)
            return await self._claim_gated(limit, lease, known, fence or uuid4(), rest) if self.has_gates else []
        if gates and self.has_gates:
            return await self._claim_both(limit, lease, known, fence or uuid4())
        return await self._claim_ungated(limit, lease, known, fence or uuid4())

    async def _claim_both(self, limit: int, lease: timedelta, known: list[str] | None, fence: UUID) -> list[Claim]:
        """What has a gate first, then what has none; the other way round after a claim most of which had one: neither starves."""
        ways = [self._claim_gated, self._claim_ungated]
        claims: list[Claim] = []
        for way in reversed(ways) if self._ungated_first else ways:
            if len(claims) < limit:
                more = await way(limit - len(claims), lease, known, fence)
                there = {claim.task.id for claim in claims}  # what is read again by its fence may be both
                claims += [claim for claim in more if claim.task.id not in there] if claims else more
        self._ungated_first = mostly_gated((claim.task.gate for claim in claims), limit)
        return claims

    async def _claim_gated(
        self, limit: int, lease: timedelta, known: list[str] | None, fence: UUID, busy: Sequence[str] = ()
    ) -> list[Claim]:
        return await self.database.write(self._claim_behind_gates, limit, lease, known, fence, busy)

    def _claim_behind_gates(
        self,
        connection: Connection,
        limit: int,
        lease: timedelta,
        kinds: list[str] | None,
        fence: UUID,
        busy: Sequence[str] = (),
    ) -> list[Claim]:
        ask = GateAsk(
            ledger=self.name, limit=limit, kinds=kinds, fence=fence, last=self._last_tenant, busy=busy,
            favoured=self.draw.choice(FAVOURED), now=self._now(), times=self._times(lease=lease),
        )  # fmt: skip
        asked = self._gate_claim.ask(connection, ask)
        if asked is None:
            return []
        statement, parameters = asked
        read = self._read_claims(connection, statement, parameters, lease, behind_gates=True)
        claims = self._told(connection, read)
        if claims:
            self._gates_seen = True
            self._last_tenant = around((claim.task.tenant or NO_TENANT for claim in claims), self._last_tenant)[-1]
        return claims

    async def _claim_ungated(self, limit: int, lease: timedelta, known: list[str] | None, fence: UUID) -> list[Claim]:
        if known is not None:
            known = self._in_turn(known)
            if len(known) > KINDS_PER_CLAIM_MAX:  # drawn blindly, a lone task would wait for its kind to be drawn
                known = await self.database.read(self._due_kinds, known, KINDS_PER_CLAIM_MAX)
                if not known:
                    return []
        self._turn += 1
        if not self._tells_claims and isinstance(self._claiming.claim(len(known or ())), Takes):
            taken = await self.database.statement(self._take, limit, lease, known, self._turn, fence)
            return await self._read_taken(taken, fence, lease)
        run = self.database.write if self._tells_claims else self.database.statement
        return await run(self._claim, limit, lease, known, self._turn, fence)

    def _claim(
        self, connection: Connection, limit: int, lease: timedelta, kinds: list[str] | None, turn: int, fence: UUID
    ) -> list[Claim]:
        statement, parameters = self._ask(limit, lease, kinds, turn, fence)
        return self._told(connection, self._read_claims(connection, statement, parameters, lease))

    def _take(
        self, connection: Connection, limit: int, lease: timedelta, kinds: list[str] | None, turn: int, fence: UUID
    ) -> Taken:
        statement, parameters = self._ask(limit, lease, kinds, turn, fence)
        assert isinstance(statement, Takes)
        try:
            return statement.take(connection, parameters)
        except Exception as error:
            if not is_unreadable(error):
                raise
            return partial(_raise, error)  # they are held, and stay so

    def _ask(
        self, limit: int, lease: timedelta, kinds: list[str] | None, turn: int, fence: UUID
    ) -> tuple[Runs, Parameters]:
        """Asked in the transaction: the lease begins when it does, however long it had to wait."""
        return self._claiming.claim(len(kinds or ())), {
            "limit": limit,
            # A single place cannot be shared, so every fourth is for a first try.
            "retry_share": limit * 3 // 4 if limit > 1 else int(turn % 4 != 0),
            "fence": fence,
            **self._times(lease=lease),
            **kind_parameters(kinds),
        }

    async def _read_taken(self, taken: Taken, fence: UUID, lease: timedelta) -> list[Claim]:
        """The claims of a transaction that is over: to read a thousand takes as long as to hold them, and others may write meanwhile."""
        try:
            claims = self._claim_reader.claims(taken(), fence, lease)
        except Exception as error:
            if not is_unreadable(error):
                raise
            claims = await self.database.read(self._sifted, {"fence": fence}, lease)
        if self._suspects.doubted(claims):
            return await self.database.read(self._suspects.marked, claims)
        return claims

    def _told(self, connection: Connection, read: list[Claim]) -> list[Claim]:
        """The claims, suspects marked, after what is written beside them was."""
        claims = self._suspects.marked(connection, read)
        if self._tells_claims and (told := [claim for claim in claims if claim.unreadable is None]):
            self.beside.claimed(connection, told)
        return claims

    def _read_claims(
        self,
        connection: Connection,
        statement: Runs,
        parameters: Parameters,
        lease: timedelta,
        abandoned: Mapping[TaskId, Abandoned] | None = None,
        *,
        behind_gates: bool = False,
    ) -> list[Claim]:
        """Run a statement that holds rows under the fence of its parameters, and read what it returns."""
        fence, reader = parameters["fence"], self._claim_reader
        try:
            if behind_gates:
                return reader.claims_behind_gates(statement.rows(connection, parameters), fence, lease)
            return reader.claims(statement.rows(connection, parameters), fence, lease, abandoned)
        except Exception as error:
            if not is_unreadable(error):
                raise
        return self._sifted(connection, parameters, lease, abandoned)

    def _sifted(
        self,
        connection: Connection,
        parameters: Parameters,
        lease: timedelta,
        abandoned: Mapping[TaskId, Abandoned] | None = None,
    ) -> list[Claim]:
        """Rows that are held and could not be read together, read again one by one: so a bad one costs no other its claim."""
        fence = parameters["fence"]
        ids = parameters.get("ids") or connection.execute(self._claiming.held_under, {"fence": fence}).scalars().all()
        columns = [*self._claiming.columns, self._claiming.present]
        rows = sift(connection, columns, self._mapped.id, ids, self._times(lease=lease))
        return self._claim_reader.sifted_claims(rows, fence, lease, abandoned)

    def _in_turn(self, kinds: list[str]) -> list[str]:
        """Every kind gets its turn at the front, so that none is starved by another.

        Drawn, not counted: a count in step with the calls of another worker could pass a kind over for ever.
        """
        start = random.randrange(len(kinds))
        return kinds[start:] + kinds[:start]

    async def recall(self, fence: UUID, lease: timedelta) -> list[Claim]:
        """See `Ledger.recall`."""
        return await self.database.write(self._recall, fence, lease)

    def _recall(self, connection: Connection, fence: UUID, lease: timedelta) -> list[Claim]:
        ids = list(connection.execute(self._claiming.held_under, {"fence": fence}).scalars())
        if not ids:
            return []
        parameters = {"ids": ids, "fence": fence, **self._times(lease=lease)}
        claims = self._read_claims(connection, self._claiming.take_over, parameters, lease)
        return self._suspects.marked(connection, claims)

    async def run_alone(self, claim: Claim) -> Claim | None:
        """See `Ledger.run_alone`."""
        alone = claim.alone()
        return alone if await self.database.statement(self._run_alone, claim, alone) else None

    def _run_alone(self, connection: Connection, claim: Claim, alone: Claim) -> bool:
        named = {"ids": [claim.task.id], "fence": claim.claim_id, "alone": alone.claim_id}
        return connection.execute(self._claiming.run_alone, named).rowcount == 1

    async def reclaim(self, limit: int, lease: timedelta, *, kinds: Sequence[str] | None = None) -> list[Claim]:
        """See `Ledger.reclaim`."""
        if kinds is not None and not kinds and self.table.kind is not None:
            return []
        return await self.database.write(self._reclaim, limit, lease, kinds)

    async def take_lost(self, kind: str, limit: int, lease: timedelta) -> list[Claim]:
        """The claims of a kind that were lost, and nothing that waits: for a system that gives up what nobody handles."""
        return await self.reclaim(limit, lease, kinds=[kind])

    def _reclaim(
        self, connection: Connection, limit: int, lease: timedelta, kinds: Sequence[str] | None
    ) -> list[Claim]:
        of_kinds = kinds is not None and self.table.kind is not None
        found = self._expired(
            connection,
            self._claiming.expired_of_kinds if of_kinds else self._claiming.expired,
            {"limit": limit, **self._times(), **({"kinds": list(kinds or ())} if of_kinds else {})},
        )
        abandoned = self._abandoned(connection, found)
        if not abandoned:
            return []
        unfenced = [id_ for id_, lost in abandoned.items() if lost.claim_id is None]
        if unfenced:
            connection.execute(self._claiming.drop_fences, {"ids": unfenced})
        fence = uuid4()
        parameters = {"ids": list(abandoned), "fence": fence, **self._times(lease=lease)}
        return self._read_claims(connection, self._claiming.take_over, parameters, lease, abandoned)

    def _expired(self, connection: Connection, expired: Select[Any], parameters: Parameters) -> list[tuple[Any, ...]]:
        """The ids, fences and starts of claims that ran out, also where one of them cannot be read."""
        try:
            return [tuple(row) for row in connection.execute(expired, parameters).all()]
        except Exception as error:
            if not is_unreadable(error):
                raise
        ids = connection.execute(expired.with_only_columns(self._mapped.id), parameters).scalars().all()
        return [row.cells for row in sift(connection, [*expired.selected_columns], self._mapped.id, ids)]

    def _abandoned(
        self, connection: Connection, found: Iterable[tuple[TaskId, UUID | None, datetime | None]]
    ) -> dict[TaskId, Abandoned]:
        """What is known of lost claims, from their ids, fences and starts."""
        lost = list(found)
        alone = [id_ for id_, fence, _ in lost if fence is not None and is_alone(fence)]
        before = self._suspects.lost_alone(connection, alone)
        return {
            id_: Abandoned(claim_id=fence, claimed_at=claimed_at, lost_alone=before[str(id_)])
            for id_, fence, claimed_at in lost
        }

    async def extend(self, claims: Sequence[Claim], lease: timedelta) -> list[Unwritten]:
        """See `Ledger.extend`."""
        if not claims:
            return []
        ordered = sorted(claims, key=lambda claim: claim.task.id)
        try:
            return await self.database.statement(self._extend, ordered, lease)
        except StillLocked:  # where what is locked cannot be skipped
            if len(ordered) == 1:
                return [ClaimLocked(ordered[0])]
            half = len(ordered) // 2
            return [*await self.extend(ordered[:half], lease), *await self.extend(ordered[half:], lease)]

    def _extend(self, connection: Connection, claims: list[Claim], lease: timedelta) -> list[Unwritten]:
        rows = self._extending.rows(connection, self._fences.parameters(claims) | self._times(lease=lease))
        extended = {tuple(row) for row in rows}
        rest = [claim for claim in claims if (claim.task.id, claim.claim_id) not in extended]
        return self._fences.why(connection, rest)


def _raise(error: Exception) -> NoReturn:
    raise error
