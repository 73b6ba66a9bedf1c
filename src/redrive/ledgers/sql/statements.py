"""The SQL of a ledger, built once from its `LedgerTable`.

Every statement stands here next to its siblings, with a line that says its purpose. The same statement serves both
databases wherever it can. What keeps claims flat, however large the table grows, besides the indexes of `predicates`:

- one branch per kind, each limited to what the branches before it left, so that a million due tasks of kinds which this
  worker does not know cost nothing;
- `WHERE id = ANY (ARRAY (…))`: joined to the CTE instead, PostgreSQL at times chose a generic plan of 160 ms.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Enum,
    Float,
    FromClause,
    Integer,
    Interval,
    Select,
    String,
    Table,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    case,
    cast,
    delete,
    extract,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.sql.dml import Insert, Update
from sqlalchemy.types import TypeEngine

from redrive.core.decide import Settlement
from redrive.core.states import TERMINAL, Act, State, sources
from redrive.core.table import Counts, LedgerTable
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch, Columns
from redrive.ledgers.sql.predicates import Predicates, quoted
from redrive.ledgers.sql.rollup import COUNTED, MEASURED
from redrive.ledgers.sql.times import Instant, IsoText, as_text, comparable

KINDS_PER_CLAIM_MAX = 40
KINDS_LISTED_MAX = 1000
_STORAGES = ("instant", "isotext", "sqlitedatetime")
"""How an instant may be stored: each has a parameter of its own, since the same instant is a number here and text there."""


def upsert(table: Table, dialect: str, *, keep: bool = False, where: ColumnElement[bool] | None = None) -> Any:
    """Store a row of one of our own tables in the place of one with its key.

    With `keep` the one that is there stays; with `where` also one of which this does not hold.
    """
    statement: Any = (sqlite_insert if dialect == "sqlite" else postgres_insert)(table)
    key = list(table.primary_key.columns)
    if keep:
        return statement.on_conflict_do_nothing(index_elements=key)
    names = [column.name for column in table.columns if not column.primary_key]
    values = {name: statement.excluded[name] for name in names}
    return statement.on_conflict_do_update(index_elements=key, set_=values, where=where)


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


class Statements:
    """The statements of one ledger for one dialect.

    With `server_clock` the database says what time it is (`statement_timestamp()`: `clock_timestamp()` is evaluated per
    row, and `now()` is old inside a long transaction). Without, the caller binds `now`.
    """

    def __init__(
        self,
        ledger_table: LedgerTable,
        table: Table,
        dialect: Dialect,
        *,
        server_clock: bool,
        extra: ExtraColumns | None = None,
    ) -> None:
        self.ledger_table = ledger_table
        self.extra = extra
        self.table = table
        self.dialect = dialect
        self.server_clock = server_clock
        self.rows = Predicates(ledger_table, table, dialect.name)
        self.id = self.rows.column("id")
        self._roles = frozenset(ledger_table.columns())
        self._claims: dict[int, Update] = {}
        self._next_dues: dict[tuple[int, bool], Select[Any]] = {}
        self._flows: dict[str, Any] = {}

    # --- time -------------------------------------------------------------------------------------------------------

    def has(self, role: str) -> bool:
        """Whether the table has a column for this role."""
        return role in self._roles

    def _now(self, column: ColumnElement[Any] | None = None) -> ColumnElement[Any]:
        """The present, to be written into this column (default: one of our own)."""
        if self.server_clock:
            now = func.statement_timestamp(type_=Instant)
            return now if column is None else as_text(now, column)
        type_ = Instant() if column is None else column.type
        return bindparam(f"now_{type(type_).__name__.lower()}", type_=type_)

    def _later(self, column: ColumnElement[Any], name: str) -> ColumnElement[Any]:
        """The instant `name` from now, to be written into this column."""
        if self.server_clock:
            return as_text(func.statement_timestamp(type_=Instant) + bindparam(name, type_=Interval), column)
        return bindparam(name, type_=column.type)

    def _is_past(self, instant: ColumnElement[Any], column: ColumnElement[Any]) -> ColumnElement[bool]:
        if self.server_clock:
            return instant <= func.statement_timestamp(type_=Instant)
        return instant <= comparable(self._now(column), self.dialect.name)

    # --- claim ------------------------------------------------------------------------------------------------------

    def claim(self, kinds: int) -> Update:
        """Take up to `limit` due rows: retries first, at least a quarter for first tries while any are due.

        `kinds` is how many kinds are bound as `kind_0 …`, zero for all.
        """
        if kinds not in self._claims:
            self._claims[kinds] = self._build_claim(kinds)
        return self._claims[kinds]

    def _build_claim(self, kinds: int) -> Update:
        limit = bindparam("limit", type_=Integer)
        share = bindparam("retry_share", type_=Integer)
        due_retries = [
            select(branch.limit(share).subquery(f"due_{position}"))
            for position, branch in enumerate(self._branches("retry", kinds, literal_column("1").label("one")))
        ]
        few = select(union_all(*due_retries).subquery("due_retries")).limit(share).subquery("few")
        seen = select(func.count().label("amount")).select_from(few).cte("seen")

        reserved: Any = select(seen.c.amount).scalar_subquery()
        taken = (
            self._take_at_once(kinds, limit, reserved)
            if self.dialect.name == "sqlite"
            else self._take_in_turn(kinds, limit, reserved)
        )
        ids = union_all(*(select(cte.c[self.id.name]) for cte in taken))
        return self._hold(self._among(ids), anew=True)

    def _take_in_turn(self, kinds: int, limit: Any, reserved: Any) -> list[Any]:
        """One locking CTE per branch. What is left is handed on: counted anew in each, forty kinds took 250 ms to plan."""
        taken: list[Any] = []
        left = select((limit - reserved).label("amount")).cte("left_for_first")
        for name in ("first", "retry"):
            due, _ = self._due_of(name)
            for position, branch in enumerate(self._branches(name, kinds, self.id)):
                amount = select(left.c.amount).scalar_subquery()
                locked = branch.order_by(due).limit(amount).with_for_update(skip_locked=True)
                taken.append(locked.cte(f"{name}_{position}"))
                used: Any = select(func.count()).select_from(taken[-1]).scalar_subquery()
                left = select((amount - used).label("amount")).cte(f"left_after_{name}_{position}")
            left = select((select(left.c.amount).scalar_subquery() + reserved).label("amount")).cte("left_for_retry")
        return taken

    def _take_at_once(self, kinds: int, limit: Any, reserved: Any) -> list[Any]:
        """The branches behind one another and one limit: SQLite, which locks nothing here, copies a CTE wherever it is named."""
        taken: list[Any] = []
        for name in ("first", "retry"):
            due, _ = self._due_of(name)
            branches = [
                select(branch.order_by(due).limit(limit).subquery(f"{name}_{position}"))
                for position, branch in enumerate(self._branches(name, kinds, self.id))
            ]
            used: Any = select(func.count()).select_from(taken[-1]).scalar_subquery() if taken else reserved
            taken.append(select(union_all(*branches).subquery(f"{name}_due")).limit(limit - used).cte(name))
        return taken

    def _due_of(self, name: str) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """The due expression of a branch, and the column that it is made of."""
        if name == "first":
            return self.rows.first_due(), self.rows.column("first_due" if self.ledger_table.first_due else "due")
        return self.rows.retry_due(), self.rows.column("due")

    def _branches(self, name: str, kinds: int, *columns: Any) -> list[Select[Any]]:
        due, column = self._due_of(name)
        where = [
            self.rows.first_tries() if name == "first" else self.rows.retries(),
            self._is_past(due, column),
        ]
        return [select(*columns).where(*where, *kind) for kind in self._kind_conditions(kinds)]

    def _kind_conditions(self, kinds: int) -> list[list[ColumnElement[bool]]]:
        if kinds == 0:
            return [[]]
        column = self.rows.column("kind")
        return [[column == bindparam(f"kind_{position}", type_=Text)] for position in range(kinds)]

    def _among(self, ids: Any) -> ColumnElement[bool]:
        if self.dialect.name == "sqlite":
            return self.id.in_(ids)
        return self.id == any_(func.array(ids.scalar_subquery()))

    def _hold(self, where: ColumnElement[bool], *, anew: bool) -> Update:
        """Hold rows until the lease ends: anew, or with the fence and the start that they have, if any."""
        values: dict[str, Any] = {
            "claim_id": bindparam("fence", type_=self.rows.column("claim_id").type),
            "lease_until": self._later(self.rows.column("lease_until"), "lease"),
        }
        for role in ("claimed_at", "updated_at"):
            if self.has(role):
                values[role] = self._now(self.rows.column(role))
        for role in () if anew else ("claim_id", "claimed_at"):
            if role in values:
                values[role] = func.coalesce(self.rows.column(role), values[role])
        if self.ledger_table.words.claimed:
            values["status"] = quoted(self.ledger_table.words.claimed)
        if anew and self.ledger_table.counts is Counts.ATTEMPTS:
            values["count"] = self.rows.count() + 1
        return self._update(values).where(where).returning(*self.claim_columns, self._now().label("claim_now"))

    @cached_property
    def claim_columns(self) -> list[ColumnElement[Any]]:
        """What a claim must read of its rows: not what it has just written itself. A quarter less to decode."""
        names = self.ledger_table.columns()
        written = {
            names[role] for role in ("status", "claim_id", "lease_until", "claimed_at", "updated_at") if role in names
        }
        return [column for column in self.table.c if column.name not in written]

    def _as_uuid(self, fence: ColumnElement[Any]) -> ColumnElement[Any]:
        """A fence for the history, also where the table keeps it as text."""
        return fence if isinstance(fence.type, Uuid) else cast(fence, Uuid)

    def _as_status(self, word: ColumnElement[Any]) -> ColumnElement[Any]:
        """A word from a parameter, also where the status is an enum of PostgreSQL's."""
        status = self.rows.column("status")
        return cast(word, status.type) if isinstance(status.type, Enum) else word

    def _update(self, values: dict[str, Any]) -> Update:
        names = self.ledger_table.columns()
        return update(self.table).values({names[role]: value for role, value in values.items()})

    @cached_property
    def expired(self) -> Select[Any]:
        """Rows whose lease ran out, or that are claimed without one, locked for whoever asks first."""
        lease = self.rows.column("lease_until")
        gone = self._is_past(self.rows.lease_end(), lease)
        found = select(
            self.id,
            self.rows.column("claim_id").label("old_claim_id"),
            (self.rows.column("claimed_at") if self.has("claimed_at") else null()).label("old_claimed_at"),
        ).where(self.rows.held(), gone)
        return (
            found.order_by(self.rows.lease_end())
            .limit(bindparam("limit", type_=Integer))
            .with_for_update(skip_locked=True)
        )

    @cached_property
    def expired_of_kinds(self) -> Select[Any]:
        """The same for some kinds only."""
        return self.expired.where(self.rows.column("kind").in_(bindparam("kinds", expanding=True)))

    @cached_property
    def take_over(self) -> Update:
        """Give rows found by `expired` a new lease.

        The fence stays the lost claim's: a keeper that is killed before it settles then leaves no trace, and whoever
        settles in the end writes the one attempt of that claim.
        """
        return self._hold(self.id.in_(bindparam("ids", expanding=True)), anew=False)

    # --- settle and extend ------------------------------------------------------------------------------------------

    @property
    def one_statement(self) -> bool:
        """Whether settling is one statement with its history inside, or several in one transaction."""
        return self.dialect.name == "postgresql"

    @cached_property
    def keeps_start(self) -> bool:
        """Whether the row itself knows when it was last claimed, so that a settlement need not say it."""
        return self.has("claimed_at")

    @cached_property
    def settle_batch(self) -> Batch:
        """The columns of a settlement, in the order of `SqlLedger._settlement_row`."""
        columns: dict[str, TypeEngine[Any]] = {
            "id": self.id.type,
            "claim_id": self.rows.column("claim_id").type,
            "state": Text(),
            "count": Integer(),
            "delay": Interval() if self.one_statement else self.rows.column("due").type,
            "outcome": Text(),
            "error": Text(),
        }
        if not self.same_words:
            columns |= {"word": Text()}
        if self.one_statement:
            columns |= {
                "number": Integer(),
                "duration": Float(),
                "error_class": Text(),
                "explanation": Text(),
            }
            if not self.keeps_start:
                columns |= {"started_at": Instant()}
        if self.extra is not None:
            columns |= self.extra.columns
        return Batch(self.dialect, columns)

    @cached_property
    def settle_rows(self) -> Update:
        """End the claims of a batch, each only where its fence is still there."""
        batch = self.settle_batch.rows
        due_column = self.rows.column("due")
        due = as_text(self._now() + batch.c.delay, due_column) if self.one_statement else batch.c.delay
        values: dict[str, Any] = {
            "status": self._as_status(batch.c.state if self.same_words else batch.c.word),
            "count": batch.c.count,
            "due": due,
            "lease_until": null(),
            "claim_id": null(),
        }
        if self.has("last_error"):
            kept = self.rows.column("last_error")
            snoozed = batch.c.outcome == quoted("snoozed")
            values["last_error"] = case((snoozed, kept), else_=func.coalesce(batch.c.error, kept))
        if self.has("updated_at"):
            values["updated_at"] = self._now(self.rows.column("updated_at"))
        if self.has("done_at"):
            column = self.rows.column("done_at")
            values["done_at"] = case((batch.c.state == quoted("done"), self._now(column)), else_=column)
        if self.has("ended_at"):
            column = self.rows.column("ended_at")
            values["ended_at"] = case((batch.c.state == quoted("waiting"), null()), else_=self._now(column))
        fence = self.rows.column("claim_id")
        mine = self.settle_batch.match("id", self.id), fence == batch.c.claim_id
        settled = self._update(values).where(*mine)
        return settled if self.extra is None else settled.values(self.extra.values(batch, self._now()))

    @cached_property
    def same_words(self) -> bool:
        """Whether the table's words are the names of the states, as our own table's are."""
        words = self.ledger_table.words
        plain = words.retrying is None and words.refused is None
        return plain and all(getattr(words, state.value) in (None, state) for state in State)

    @cached_property
    def settle(self) -> Any:
        """Settle a batch. On PostgreSQL one statement writes rows, history and rollup; elsewhere the rows only.

        The rollup that comes with it is that of the whole batch. It is written if every row was; see `roll_up` for the rest.
        """
        if not self.one_statement:
            return self.settle_rows.returning(self.id)
        batch = self.settle_batch.rows
        began = self.rows.column("claimed_at") if self.keeps_start else batch.c.started_at
        extra = () if self.extra is None else self.extra.columns
        said = [column for column in batch.c if column.name not in extra]
        settled = self.settle_rows.returning(*said, began.label("began")).cte("settled")
        c = settled.c
        history = (
            insert(schema.attempt)
            .from_select(
                ["ledger", "task_id", "claim_id", "number", "started_at", "ended_at", "outcome", "state", "worker",
                 "duration_seconds", "delay_seconds", "error_class", "error", "explanation"],
                select(
                    bindparam("ledger", type_=Text), cast(c.id, Text), self._as_uuid(c.claim_id), c.number,
                    comparable(c.began, self.dialect.name), self._now(), c.outcome, c.state,
                    bindparam("worker", type_=Text), c.duration, extract("epoch", c.delay),
                    c.error_class, c.error, cast(c.explanation, schema.attempt.c.explanation.type),
                ),
            )
            .cte("history")
        )  # fmt: skip
        written: Any = select(func.count()).select_from(settled).scalar_subquery()
        all_written = written == bindparam("amount", type_=Integer)
        return select(c.id).add_cte(history, self._roll_up_where(all_written).cte("rollup"))

    def _roll_up_where(self, condition: ColumnElement[bool]) -> Any:
        """On PostgreSQL: as one array, since three dozen parameters take as long to bind as a small batch."""
        amounts: Any = bindparam("amounts", type_=ARRAY(BigInteger)).label("amounts")
        said = select(amounts).subquery("said")
        row = select(
            func.date_trunc("minute", self._now()),
            bindparam("ledger", type_=Text),
            bindparam("worker", type_=Text),
            *(said.c.amounts[literal_column(str(position))] for position in range(1, len(COUNTED) + 1)),
            bindparam("run_seconds", type_=Float),
        ).where(condition)
        return self._add_up(postgres_insert(schema.minute).from_select(["minute", "ledger", "worker", *MEASURED], row))

    @cached_property
    def record_attempts(self) -> str:
        """The history of a settled batch, where settling is not one statement.

        Compiled for the driver itself: 3 µs a row, where SQLAlchemy's way through named parameters takes 11 µs.
        """
        return str(insert(schema.attempt).compile(dialect=self.dialect))

    @cached_property
    def roll_up(self) -> Any:
        """The rollup of a settled batch, where `settle` does not write it: it was not one statement, or not all was written."""
        return self._roll_up_where(true()) if self.one_statement else self._add_up(sqlite_insert(schema.minute))

    @staticmethod
    def _add_up(statement: Any, names: Sequence[str] = MEASURED) -> Any:
        table, new = schema.minute, statement.excluded
        return statement.on_conflict_do_update(
            index_elements=[table.c.minute, table.c.ledger, table.c.worker],
            set_={name: table.c[name] + new[name] for name in names},
        )

    def count_flow(self, name: str) -> Any:
        """Add an `amount` to a column of the present minute: what was added, pruned, or ended by an act."""
        if name not in self._flows:
            self._flows[name] = self._build_flow(name)
        return self._flows[name]

    def _build_flow(self, name: str) -> Any:
        make = sqlite_insert if self.dialect.name == "sqlite" else postgres_insert
        minute = (
            func.date_trunc("minute", func.statement_timestamp(type_=Instant))
            if self.server_clock
            else bindparam("minute", type_=Instant)
        )
        row = {
            "minute": minute,
            "ledger": bindparam("ledger", type_=Text),
            "worker": bindparam("worker", type_=Text),
            name: bindparam("amount", type_=Integer),
        }
        return self._add_up(make(schema.minute).values(row), [name])

    @cached_property
    def extend_batch(self) -> Batch:
        """Claims by id and fence."""
        return Batch(self.dialect, {"id": self.id.type, "claim_id": self.rows.column("claim_id").type})

    @cached_property
    def extend(self) -> Update:
        """Move the end of leases, each only where its fence is still there."""
        batch = self.extend_batch.rows
        lease = {"lease_until": self._later(self.rows.column("lease_until"), "lease")}
        still_ours = and_(self.extend_batch.match("id", self.id), self.rows.column("claim_id") == batch.c.claim_id)
        return self._update(lease).where(still_ours).returning(self.id, self.rows.column("claim_id"))

    # --- add --------------------------------------------------------------------------------------------------------

    @cached_property
    def makes_ids(self) -> bool:
        """Whether new rows need an id of ours: it is not the key, and the database makes none by itself."""
        apart = self.ledger_table.id_column != self.ledger_table.key
        return apart and isinstance(self.id.type, String | Uuid) and self.id.server_default is None

    @cached_property
    def add_batch(self) -> Batch:
        """The columns of a new task, in the order of `SqlLedger._add_row`."""
        made: dict[str, TypeEngine[Any]] = {"id": self.id.type} if self.makes_ids else {}
        return Batch(
            self.dialect,
            {
                **made,
                "key": self.rows.column("key").type,
                "kind": Text(),
                "payload": Text(),
                "delay": Interval() if self.server_clock else self._first_due_column.type,
                "count_max": Integer(),
                "deadline": Interval() if self.server_clock else Instant(),
                "trace": Text(),
            },
        )

    @property
    def _first_due_column(self) -> ColumnElement[Any]:
        return self.rows.column("first_due" if self.ledger_table.first_due else "due")

    @cached_property
    def add(self) -> Any:
        """Insert new tasks; keys that are there already are left alone."""
        batch = self.add_batch.rows
        due = self._first_due_column
        later: Callable[[Any, ColumnElement[Any]], Any]
        if self.server_clock:
            later = lambda span, column: as_text(func.statement_timestamp(type_=Instant) + span, column)  # noqa: E731
        else:
            later = lambda instant, column: instant  # noqa: ARG005, E731
        values: dict[str, Any] = {
            "key": batch.c.key,
            "status": quoted(self.ledger_table.words.waiting),
            "count": literal_column("0"),
            due.name: later(batch.c.delay, due),
        }
        if self.makes_ids:
            values["id"] = batch.c.id
        names = self.ledger_table.columns()
        if self.has("kind"):
            values["kind"] = batch.c.kind
        if self.has("payload"):
            # The text is JSON already; a cast spares the round through Python's own encoder.
            column = self.rows.column("payload")
            values["payload"] = batch.c.payload if self.dialect.name == "sqlite" else cast(batch.c.payload, column.type)
        if self.has("count_max"):
            column = self.rows.column("count_max")
            values["count_max"] = batch.c.count_max
        if self.has("deadline"):
            values["deadline"] = later(batch.c.deadline, self.rows.column("deadline"))
        if self.has("trace"):
            values["trace"] = batch.c.trace
        for role in ("created_at", "updated_at"):
            if self.has(role):
                values[role] = self._now(self.rows.column(role))
        target = [names.get(role, role) for role in values]
        make = sqlite_insert if self.dialect.name == "sqlite" else postgres_insert
        rows = select(*values.values()).select_from(batch)
        if self.dialect.name == "sqlite":
            rows = rows.where(true())  # SQLite reads ON CONFLICT as a join without it
        return (
            make(self.table)
            .from_select(target, rows, include_defaults=False)
            .on_conflict_do_nothing(index_elements=[self.rows.column("key")])
            .returning(self.id, self.rows.column("key"))
        )

    @cached_property
    def find_keys(self) -> Select[Any]:
        """The tasks that are there for some keys, with what tells them apart from others of these keys."""
        kind = self.rows.column("kind") if self.has("kind") else null()
        keys: Any = bindparam("keys", expanding=True)
        key = self.rows.column("key")
        return select(self.id, key, kind, self.rows.column("payload")).where(key.in_(keys))

    @cached_property
    def take_back(self) -> Any:
        """Delete what was just inserted, where another task of the same call was refused."""
        return delete(self.table).where(self.id.in_(bindparam("ids", expanding=True)))

    # --- what is due ------------------------------------------------------------------------------------------------

    def next_due(self, kinds: int, *, signed: bool = False) -> Select[Any]:
        """How many seconds until the next row is due, at least zero unless `signed`; no row where none waits."""
        if (kinds, signed) not in self._next_dues:
            heads = []
            for name in ("first", "retry"):
                due, column = self._due_of(name)
                where = self.rows.first_tries() if name == "first" else self.rows.retries()
                for at, kind in enumerate(self._kind_conditions(kinds)):
                    if signed:
                        heads.append(self._since_due([where, *kind], due, column, f"{name}_{at}"))
                        continue
                    head = select(due.label("due")).where(where, *kind).order_by(due).limit(1).subquery(f"{name}_{at}")
                    heads.append(select(self._seconds_until(head.c.due, column).label("seconds")))
            self._next_dues[kinds, signed] = select(func.min(union_all(*heads).subquery("heads").c.seconds))
        return self._next_dues[kinds, signed]

    def _since_due(
        self, where: list[ColumnElement[bool]], due: ColumnElement[Any], column: ColumnElement[Any], name: str
    ) -> Select[Any]:
        """The same of one branch, below zero where it has been due: without a due time since it was made, if that is known."""
        columns = [column, *([self.rows.column("created_at")] if self.has("created_at") else [])]
        shown = [comparable(one, self.dialect.name).label(f"at_{at}") for at, one in enumerate(columns)]
        head = select(*shown).where(*where).order_by(due).limit(1).subquery(name)
        known = [self._seconds_until(head.c[f"at_{at}"], one, signed=True) for at, one in enumerate(columns)]
        return select(func.coalesce(*known, literal_column("0.0")).label("seconds")).select_from(head)

    def _seconds_until(
        self, instant: ColumnElement[Any], column: ColumnElement[Any], *, signed: bool = False
    ) -> ColumnElement[Any]:
        if self.dialect.name == "postgresql":
            now = func.statement_timestamp() if self.server_clock else comparable(self._now(column), "postgresql")
            return extract("epoch", instant - now if signed else func.greatest(instant, now) - now)
        now = comparable(self._now(column), "sqlite")
        per_second = 1 / 86400 if isinstance(column.type, IsoText) else 1_000_000
        left = (cast(instant, Float) - cast(now, Float)) / per_second
        return left if signed else case((left > 0, left), else_=literal_column("0.0"))

    @cached_property
    def open_kinds(self) -> Any:
        """The kinds that wait or are held: a loose index scan, one probe per kind, over both claim indexes."""
        column = self.rows.column("kind")
        scans = []
        for name, where in (("first", self.rows.first_tries()), ("retry", self.rows.retries())):
            smallest = select(func.min(column).label("kind")).where(where)
            scan = smallest.cte(f"{name}_kinds", recursive=True)
            following = select(func.min(column)).where(where, column > scan.c.kind).scalar_subquery()
            scan = scan.union_all(select(following).where(scan.c.kind.is_not(None)))
            scans.append(select(scan.c.kind).where(scan.c.kind.is_not(None)).limit(KINDS_LISTED_MAX))
        # What is held is bounded by the slots of all workers, so it can simply be read.
        scans.append(select(column.label("kind")).where(self.rows.held()).distinct().limit(KINDS_LISTED_MAX))
        return select(union_all(*(select(scan.subquery()) for scan in scans)).subquery("kinds").c.kind).distinct()

    # --- acts of people and systems ---------------------------------------------------------------------------------

    def act(self, act: Act, state: State) -> Update:
        """Change the rows in `ids` that `act` may lead to `state`."""
        from_states = or_(*(self.rows.state(before) for before in sources(act, state)))
        values: dict[str, Any] = {"status": quoted(self.ledger_table.words.word(state)), "due": null()}
        if state is State.WAITING:
            values |= {"count": literal_column("0"), "due": self._now(self.rows.column("due"))}
        if act is Act.REDRIVE and self.has("redrives"):
            values["redrives"] = self.rows.column("redrives") + 1
        if self.has("updated_at"):
            values["updated_at"] = self._now(self.rows.column("updated_at"))
        if self.has("ended_at"):
            values["ended_at"] = null() if state is State.WAITING else self._now(self.rows.column("ended_at"))
        if state is State.DONE and self.has("done_at"):
            values["done_at"] = self._now(self.rows.column("done_at"))
        ids = self.id.in_(bindparam("ids", expanding=True))
        return self._update(values).where(ids, from_states).returning(self.id)

    @cached_property
    def return_batch(self) -> Batch:
        """The columns of a return, in the order of `SqlLedger._return`."""
        return Batch(
            self.dialect,
            {
                "id": self.id.type,
                "count": Integer(),
                "delay": Interval() if self.server_clock else self.rows.column("due").type,
                "again": Boolean(),
                "error": Text(),
            },
        )

    @cached_property
    def return_(self) -> Update:
        """Bring the ended rows of a batch back, each with the larger of both counts."""
        batch, words = self.return_batch.rows, self.ledger_table.words
        count, due = self.rows.count(), self.rows.column("due")
        word = case((batch.c.again, quoted(words.retrying or words.waiting)), else_=quoted(words.waiting))
        values: dict[str, Any] = {
            "status": self._as_status(word),
            "count": case((count < batch.c.count, batch.c.count), else_=count),
            "due": as_text(self._now() + batch.c.delay, due) if self.server_clock else batch.c.delay,
        }
        if self.has("last_error"):
            values["last_error"] = func.coalesce(batch.c.error, self.rows.column("last_error"))
        if self.has("updated_at"):
            values["updated_at"] = self._now(self.rows.column("updated_at"))
        for role in ("ended_at", "done_at"):
            if self.has(role):
                values[role] = null()
        ended = or_(*(self.rows.state(before) for before in sources(Act.RETURN, State.WAITING)))
        return self._update(values).where(self.return_batch.match("id", self.id), ended).returning(self.id)

    @cached_property
    def record_deeds(self) -> Insert:
        """Who did it, and why, for each task."""
        return insert(schema.deed)

    def prune(self, states: Sequence[State]) -> Any:
        """Delete up to `limit` rows that ended in one of the states longer than `age` ago."""
        if not set(states) <= TERMINAL:
            raise UsageError(f"only tasks that have ended can be pruned, not {', '.join(states)}")
        ended = or_(*(and_(self.rows.state(state), self._is_old(self._ended(state))) for state in states))
        doomed = select(self.id).where(ended).limit(bindparam("limit", type_=Integer)).with_for_update(skip_locked=True)
        # As an array: PostgreSQL may run a plain subquery once per row, and lock and delete past the limit.
        return delete(self.table).where(self._among(doomed)).returning(self.id)

    def _ended(self, state: State) -> Column[Any]:
        """The column that says when a row ended. When it was created would be the wrong age: it may have just ended."""
        roles = ("ended_at", "done_at", "updated_at") if state is State.DONE else ("ended_at", "updated_at")
        for role in roles:
            if self.has(role):
                return self.rows.column(role)
        raise UsageError(
            f"{self.ledger_table.name!r} has no column that says when a task ended as {state}: "
            f"name one as {' or '.join(roles)} in its LedgerTable to prune it"
        )

    def _is_old(self, column: Column[Any]) -> ColumnElement[bool]:
        """Whether an instant is longer ago than the parameter `age`."""
        instant = comparable(column, self.dialect.name)
        if self.server_clock:
            return instant <= func.statement_timestamp(type_=Instant) - bindparam("age", type_=Interval)
        return instant <= comparable(
            self._later(column, f"age_{type(column.type).__name__.lower()}"), self.dialect.name
        )

    def older_than(self, column: Column[Any]) -> ColumnElement[bool]:
        """Rows whose instant in this column is longer ago than the parameter `age`."""
        return self._is_old(column)

    def forget(self, table: Table) -> Any:
        """Delete the history of pruned tasks from one of our tables."""
        named = table.c.task_id.in_(bindparam("task_ids", expanding=True))
        return delete(table).where(table.c.ledger == bindparam("ledger", type_=Text), named)

    # --- parameters of time -----------------------------------------------------------------------------------------

    def times(self, now: Any, **spans: timedelta | None) -> dict[str, Any]:
        """The time parameters of a statement: spans with a server clock, instants without."""
        if self.server_clock:
            return dict(spans)
        stamps = {f"now_{name}": now for name in _STORAGES}
        return stamps | {name: None if span is None else now + span for name, span in spans.items()}

    def age(self, now: Any, age: timedelta) -> dict[str, Any]:
        """The parameters of `prune` and `older_than`."""
        if self.server_clock:
            return {"age": age}
        return {f"age_{name}": now - age for name in _STORAGES}
