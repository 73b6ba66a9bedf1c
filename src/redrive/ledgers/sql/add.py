"""Adding: storing new tasks, idempotent on their keys."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    String,
    Text,
    Uuid,
    bindparam,
    cast,
    delete,
    literal_column,
    null,
    select,
    true,
)
from sqlalchemy.types import TypeEngine

from redrive.core.task import Added, NewTask, TaskId, same_json
from redrive.errors import KeyTakenError, LedgerError, RedriveError, UsageError
from redrive.ledgers.gather import Gather
from redrive.ledgers.sql.base import ANNOUNCE_HORIZON, IDS_MAX
from redrive.ledgers.sql.batches import Batch, Shapes
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.database import callers_connection, run_within
from redrive.ledgers.sql.gate_rows import NamedGate
from redrive.ledgers.sql.gates import Gating
from redrive.ledgers.sql.ids import uuid7s
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.minute import count_rows
from redrive.ledgers.sql.portions import portions
from redrive.ledgers.sql.predicates import quoted
from redrive.ledgers.sql.seam import Parameters
from redrive.ledgers.sql.sift import is_unreadable, sift
from redrive.ports import Within

BATCHES_AT_ONCE = 2
"""How many full batches are stored at once: while the store writes one, the next is made ready. Each takes a connection."""


class AddForm(NamedTuple):
    """The insert of new tasks some of whose columns are the same in all of them, with its batch."""

    batch: Batch
    insert: Compiled
    """It returns the ids and keys of those that are new; with a condition, also when they were stored."""


class AddStatements:
    """The statements, each with its purpose."""

    def __init__(self, mapped: Mapped, *, gated: bool, condition: ColumnElement[bool] | None = None) -> None:
        self._mapped = mapped
        self._condition = condition
        self.gated_roles = [role for role in ("gate", "tenant", "priority") if gated and mapped.has(role)]
        """Columns that few tasks have: those without take no notice of them."""

    @cached_property
    def makes_ids(self) -> bool:
        """Whether new rows need an id of ours: it is not the key, and the database makes none by itself."""
        table, id_ = self._mapped.ledger_table, self._mapped.id
        apart = table.id_column != table.key
        return apart and id_.type.python_type in (str, UUID) and id_.server_default is None

    @cached_property
    def _columns(self) -> dict[str, TypeEngine[Any]]:
        """The columns of a new task, in the order of `Adding._add`."""
        mapped = self._mapped
        made: dict[str, TypeEngine[Any]] = {"id": mapped.id.type} if self.makes_ids else {}
        deadline = mapped.rows.column("deadline" if mapped.has("deadline") else "due")
        return {
            **made,
            "key": mapped.rows.column("key").type,
            "kind": Text(),
            "payload": Text(),
            "delay": mapped.dialect.span_type(self._first_due),
            "count_max": Integer(),
            "deadline": mapped.dialect.span_type(deadline),
            "trace": Text(),
            **{role: Integer() if role == "priority" else Text() for role in self.gated_roles},
        }

    @property
    def _first_due(self) -> ColumnElement[Any]:
        return self._mapped.rows.column("first_due" if self._mapped.ledger_table.first_due else "due")

    @cached_property
    def adds(self) -> Shapes[AddForm]:
        """Insert new tasks; keys that are there already are left alone."""
        return Shapes(self._columns, self._add, apart=("id", "key", "payload"))

    @cached_property
    def counted_adds(self) -> Shapes[AddForm]:
        """The same, and what is new is added to the present minute in the same statement."""
        return Shapes(self._columns, self._counted_add, apart=("id", "key", "payload"))

    @cached_property
    def silent_adds(self) -> Shapes[AddForm]:
        """The same, and nothing is returned but how many are new."""
        return Shapes(self._columns, self._silent_add, apart=("id", "key", "payload"))

    def _silent_add(self, same: frozenset[str]) -> AddForm:
        batch, insert = self._insert(same)
        return AddForm(batch, Compiled(insert))

    def _add(self, same: frozenset[str]) -> AddForm:
        batch, insert = self._insert(same)
        return AddForm(batch, Compiled(self._telling(insert)))

    def _counted_add(self, same: frozenset[str]) -> AddForm:
        batch, insert = self._insert(same)
        new = self._telling(insert).cte("new")
        counted = count_rows(self._mapped.dialect, "added", new)
        return AddForm(batch, Compiled(select(*new.c).add_cte(counted.cte("counted"))))

    def _insert(self, same: frozenset[str]) -> tuple[Batch, Any]:
        shape = Batch(self._mapped.dialect, self._columns, same, joined=False)
        mapped, batch, due = self._mapped, shape.rows, self._first_due
        later, column = mapped.dialect.later, mapped.rows.column
        values: dict[str, Any] = {
            "key": batch.c.key,
            "status": quoted(mapped.ledger_table.words.waiting),
            "count": literal_column("0"),
            "first_due" if mapped.ledger_table.first_due else "due": later(batch.c.delay, due),
        }
        if self.makes_ids:
            values["id"] = batch.c.id
        for role in ("kind", "count_max", "trace"):
            if mapped.has(role):
                values[role] = batch.c[role]
        for role in self.gated_roles:
            of_text = role == "priority" or isinstance(column(role).type, String)
            values[role] = batch.c[role] if of_text else cast(batch.c[role], column(role).type)
        if mapped.has("payload"):
            values["payload"] = mapped.dialect.json(batch.c.payload, column("payload").type)
        if mapped.has("deadline"):
            values["deadline"] = later(batch.c.deadline, column("deadline"))
        for role in ("created_at", "updated_at"):
            if mapped.has(role):
                values[role] = mapped.now(role)
        target = [column(role) for role in values]
        rows = (
            select(*values.values()).select_from(batch).where(true() if self._condition is None else self._condition)
        )  # SQLite takes ON CONFLICT for a join without any
        statement = mapped.dialect.insert(mapped.table).from_select(target, rows, include_defaults=False)
        return shape, statement.on_conflict_do_nothing(index_elements=[column("key")])

    def _telling(self, insert: Any) -> Any:
        mapped = self._mapped
        told = [mapped.id.label("new_id"), mapped.rows.column("key").label("new_key")]
        if self._condition is not None:
            told.append(mapped.rows.column("created_at").label("new_at"))
        return insert.returning(*told)

    @cached_property
    def find_keys(self) -> Select[Any]:
        """The tasks that are there for some keys, with what tells them apart from others of these keys."""
        rows = self._mapped.rows
        kind = rows.column("kind") if self._mapped.has("kind") else null()
        key = rows.column("key")
        keys: Any = bindparam("keys", expanding=True)
        return select(self._mapped.id, key, kind, rows.column("payload")).where(key.in_(keys))

    @cached_property
    def find_ids(self) -> Select[Any]:
        """Which of some ids are there."""
        return select(self._mapped.id).where(self._mapped.id.in_(bindparam("ids", expanding=True)))

    @cached_property
    def take_back(self) -> Any:
        """Delete what was just inserted, where another task of the same call was refused."""
        return delete(self._mapped.table).where(self._mapped.id.in_(bindparam("ids", expanding=True)))


class Adding(Gating):
    """The part of a ledger that takes tasks in."""

    @cached_property
    def _adding(self) -> AddStatements:
        return AddStatements(self._mapped, gated=False)

    @cached_property
    def _adding_gated(self) -> AddStatements:
        return AddStatements(self._mapped, gated=True)

    @cached_property
    def _adds(self) -> Gather[NewTask, Added]:
        return Gather(self._add_gathered, at_once=BATCHES_AT_ONCE)

    @cached_property
    def _lone_adds(self) -> Gather[NewTask, Added | RedriveError]:
        return Gather(self._add_lone)

    async def add(self, tasks: Sequence[NewTask], *, within: Within | None = None) -> list[Added]:
        """See `Ledger.add`."""
        self._check_addable()
        if not tasks:
            return []
        if within is not None:
            return await run_within(within, self._add, tasks)
        self.database.check_free()
        if len(tasks) == 1 and self._mapped.dialect.writes_together and not _is_gated(tasks[0]):
            [one] = await self._lone_adds(tasks)
            if isinstance(one, RedriveError):
                raise one
            added = [one]
        else:
            added = await self._adds(tasks)
        if any(task.delay <= ANNOUNCE_HORIZON for task in tasks):
            self.database.wake(self.name)
        return added

    def add_sync(self, tasks: Sequence[NewTask], *, within: Within, soon: bool = False) -> list[Added]:
        """The same for code without an event loop, in the caller's transaction.

        `soon` says that the commit follows at once, so that one announcement may stand for several. What raises has to be rolled back then.
        """
        self._check_addable()
        if not tasks:
            return []
        with callers_connection(within) as connection:
            return self._add(connection, tasks, soon=soon)

    async def _add_gathered(self, tasks: Sequence[NewTask]) -> list[Added]:
        return await self.database.write(self._add, tasks, soon=True)

    async def _add_lone(self, tasks: Sequence[NewTask]) -> list[Added | RedriveError]:
        """Tasks that were added one by one. None of them waits for another, so one statement commits them by itself."""
        added = await self.database.statement(self._insert_lone, tasks)
        if _any_soon(tasks, added):
            await self._announce_soon()
        return added

    def adds_where(self, condition: ColumnElement[bool]) -> AddStatements | None:
        """What `add_where` needs for a condition; None on a database where an insert and a counter are two statements."""
        if not self._mapped.dialect.writes_together:
            return None
        return AddStatements(self._mapped, gated=False, condition=condition)

    async def add_where(
        self, tasks: Sequence[NewTask], statements: AddStatements, parameters: Parameters
    ) -> Sequence[Any]:
        """Store those that are new, if the condition holds, in one statement that commits by itself: ids, keys and since when they are there.

        None of them may be behind a gate. All are due at once.
        """
        stored = await self.database.statement(self._insert_where, tasks, statements, parameters)
        if stored:
            await self._announce_soon()
        return stored

    def add_own(self, connection: Connection, tasks: Sequence[NewTask]) -> tuple[datetime, dict[str, TaskId]]:
        """Store those that are new, in a transaction that commits at once: the present, and their ids by their keys.

        For tables whose ids are ours, on a database without a clock of its own: nothing is read back then where all are new. SQLite gives
        the interpreter away at each row that it returns, and has to wait for it each time. None may be behind a gate.
        """
        statements, now = self._adding, self.database.now()
        assert statements.makes_ids, "else they would have to be read back"
        made = self._new_ids(now, len(tasks))
        _, inserts = self._inserts(tasks, statements, statements.silent_adds, now, made)
        amount = sum(insert.changed(connection, parameters) for insert, parameters in inserts)
        ids = {task.key: id_ for task, id_ in zip(tasks, made, strict=True)}
        if amount < len(ids):
            there: set[TaskId] = set()
            for start in range(0, len(made), IDS_MAX):
                some = {"ids": made[start : start + IDS_MAX]}
                there.update(connection.execute(statements.find_ids, some).scalars())
            ids = {key: id_ for key, id_ in ids.items() if id_ in there}
        if ids:
            self._count_flow(connection, "added", len(ids), self._adder)
            self.database.announce(connection, self.name, soon=True)
        return now, ids

    def _insert_where(
        self, connection: Connection, tasks: Sequence[NewTask], statements: AddStatements, parameters: Parameters
    ) -> Sequence[Any]:
        besides = {"ledger": self.name, "worker": self._adder, **parameters}
        return self._inserted(connection, tasks, statements, statements.counted_adds, besides)[1]

    async def _announce_soon(self) -> None:
        with suppress(LedgerError):  # they are stored: a worker that does not hear of it finds them by its poll
            await self.database.statement(self.database.announce, self.name, soon=True)

    def _insert_lone(self, connection: Connection, tasks: Sequence[NewTask]) -> list[Added | RedriveError]:
        counting = {"ledger": self.name, "worker": self._adder}
        keys, new = self._insert_tasks(connection, tasks, self._adding, self._adding.counted_adds, counting)
        return self._sort_out(connection, tasks, keys, new)

    def _add(self, connection: Connection, tasks: Sequence[NewTask], *, soon: bool = False) -> list[Added]:
        gated = any(map(_is_gated, tasks))
        statements = self._adding_gated if gated else self._adding
        if gated:
            self._check_roles(tasks)
        # Where the commit follows at once nobody waits for a counter for long: it is one statement with the insert then, as of lone tasks.
        counts = soon and self._mapped.dialect.writes_together
        if counts:
            besides = {"ledger": self.name, "worker": self._adder}
            keys, new = self._insert_tasks(connection, tasks, statements, statements.counted_adds, besides)
        else:
            keys, new = self._insert_tasks(connection, tasks, statements, statements.adds)
        added: list[Added] = []
        for one in self._sort_out(connection, tasks, keys, new):
            if isinstance(one, RedriveError):
                # All or nothing also for a caller who goes on with its transaction after the error.
                for start in range(0, len(new), IDS_MAX):
                    connection.execute(statements.take_back, {"ids": list(new.values())[start : start + IDS_MAX]})
                raise one
            added.append(one)
        if new:
            if not counts:
                # In a transaction of the caller's a row of its own: nobody may wait for a counter until they commit.
                self._count_flow(connection, "added", len(new), self._adder if soon else f"add:{uuid4()}")
            if _any_soon(tasks, added):
                self.database.announce(connection, self.name, soon=soon)
            if gated and soon:
                # Last, and only where the commit follows at once: claims pass a gate by that somebody has locked.
                pairs = zip(tasks, added, strict=True)
                self.make_gates(connection, self._found(task for task, one in pairs if one.new))
        return added

    def _insert_tasks(
        self,
        connection: Connection,
        tasks: Sequence[NewTask],
        statements: AddStatements,
        forms: Shapes[AddForm],
        besides: Parameters | None = None,
    ) -> tuple[Sequence[Any], dict[Any, TaskId]]:
        """Insert tasks: their keys as they are stored, and the ids of those that are new by these."""
        keys, stored = self._inserted(connection, tasks, statements, forms, besides)
        return keys, {key: id_ for id_, key in stored}

    def _inserted(
        self,
        connection: Connection,
        tasks: Sequence[NewTask],
        statements: AddStatements,
        forms: Shapes[AddForm],
        besides: Parameters | None,
    ) -> tuple[Sequence[Any], list[Any]]:
        """Insert tasks: their keys as they are stored, and what the statement tells of those that are new."""
        made = self._new_ids(self.database.now(), len(tasks)) if statements.makes_ids else None
        keys, inserts = self._inserts(tasks, statements, forms, self._now(), made)
        stored: list[Any] = []
        for insert, parameters in inserts:
            stored += insert.rows(connection, {**parameters, **(besides or {})})
        return keys, stored

    def _inserts(
        self,
        tasks: Sequence[NewTask],
        statements: AddStatements,
        forms: Shapes[AddForm],
        now: datetime | None,
        ids: Sequence[TaskId] | None,
    ) -> tuple[Sequence[Any], Iterator[tuple[Compiled, Parameters]]]:
        """The keys of tasks as they are stored, and what inserts them: portion by portion."""
        kinds, keys, _, delays, most, deadlines, traces, _, _, _, payloads = zip(*tasks, strict=True)
        span = self._mapped.dialect.span
        if self._key_from_text is not str:
            keys = tuple(map(self._key_to_store, keys))
        columns: list[Sequence[Any]] = [
            keys,
            kinds,
            payloads,
            _each(lambda delay: span(now, delay), delays),
            _each(self.table.count_max_to_store, most),
            _each(lambda deadline: None if deadline is None else span(now, deadline), deadlines),
            traces,
            *([self._gated_value(task, role) for task in tasks] for role in statements.gated_roles),
        ]
        if ids is not None:
            columns.insert(0, ids)
        times = self._mapped.dialect.times(now)

        def each() -> Iterator[tuple[Compiled, Parameters]]:
            for portion in portions(map(len, payloads)):
                part = [column[portion] for column in columns]
                form = forms.of(part)
                yield form.insert, {**form.batch.of_columns(part), **times}

        return keys, each()

    def _sort_out(
        self, connection: Connection, tasks: Sequence[NewTask], keys: Sequence[Any], new: dict[Any, TaskId]
    ) -> list[Added | RedriveError]:
        """What adding each of them came to: some of the keys may have been there before."""
        ids = list(map(new.get, keys))
        if len(new) == len(keys) and None not in ids:  # most often none was
            return [Added(id_, task.key, True) for id_, task in zip(ids, tasks, strict=True)]  # type: ignore[arg-type]
        there: dict[Any, tuple[TaskId, str | None, Any]] = {}
        missing = [key for key in keys if key not in new]
        for start in range(0, len(missing), IDS_MAX):
            found = self._find_keys(connection, missing[start : start + IDS_MAX])
            there |= {key: (id_, kind, payload) for id_, key, kind, payload in found}
        added: list[Added | RedriveError] = []
        for task, key in zip(tasks, keys, strict=True):
            if key in new and key not in there:
                there[key] = (new[key], task.kind, task.payload)
                added.append(Added(id=new[key], key=task.key, new=True))
            elif key in there:
                added.append(_found_there(task, *there[key]))
            else:
                said = f"the task with key {task.key!r} was deleted while it was added again: add it once more"
                added.append(LedgerError(said))
        return added

    def _found(self, tasks: Iterable[NewTask]) -> set[NamedGate]:
        """The gates of tasks."""
        found = set()
        for task in tasks:
            gate = self._gated_value(task, self.table.gated_by or "gate")
            if gate is not None:
                found.add(NamedGate(gate, task.kind if self.table.kind else None, task.tenant or ""))
        return found

    def _gated_value(self, task: NewTask, role: str) -> Any:
        """What the column of a role holds of a task. One that has a tenant and no gate is held by its tenant's."""
        if role == "gate" and task.gate is None and task.tenant is not None and self.table.gate is not None:
            return f"tenant:{task.tenant}"
        return getattr(task, role)

    def _check_roles(self, tasks: Sequence[NewTask]) -> None:
        for role in ("gate", "tenant", "priority"):
            if not self._mapped.has(role) and any(getattr(task, role) is not None for task in tasks):
                raise UsageError(
                    f"{self.name!r} has no column for {role}: name it in its LedgerTable to add tasks with it"
                )

    def _find_keys(self, connection: Connection, keys: list[Any]) -> Sequence[Any]:
        asked = self._adding.find_keys
        try:
            return connection.execute(asked, {"keys": keys}).all()
        except Exception as error:
            if not is_unreadable(error):
                raise
            ids = connection.execute(asked.with_only_columns(self._mapped.id), {"keys": keys}).scalars().all()
            return [row.cells for row in sift(connection, asked.selected_columns, self._mapped.id, ids)]

    def _new_ids(self, now: datetime, amount: int) -> list[TaskId]:
        made = uuid7s(now, range(amount))
        return made if isinstance(self._mapped.id.type, Uuid) else [*map(str, made)]  # type: ignore[return-value]  # lists

    def _key_to_store(self, key: str) -> Any:
        try:
            return self._key_from_text(key)
        except ValueError:
            column = self._mapped.rows.column("key")
            raise UsageError(f"key {key!r} does not fit the column {column.name!r}, which is {column.type}") from None

    def _check_addable(self) -> None:
        if self.table.payload is None:
            raise UsageError(
                f"rows of {self.name!r} are yours to insert: its LedgerTable names no payload column for redrive to fill"
            )


def _is_gated(task: NewTask) -> bool:
    return bool(task.gate or task.tenant or task.priority is not None)


def _any_soon(tasks: Iterable[NewTask], added: Iterable[Added | RedriveError]) -> bool:
    """Whether any of those that are new is worth an announcement."""
    pairs = zip(tasks, added, strict=True)
    return any(isinstance(one, Added) and one.new and task.delay <= ANNOUNCE_HORIZON for task, one in pairs)


def _found_there(task: NewTask, id_: TaskId, kind: str | None, payload: Any) -> Added | RedriveError:
    """What adding came to where the key is there already."""
    if kind is not None and kind != task.kind:
        return KeyTakenError(
            f"key {task.key!r} belongs to a task of kind {kind!r}, not {task.kind!r}; "
            f"keys are unique in a ledger: put the kind into it, such as '{task.kind}:{task.key}'"
        )
    return Added(id=id_, key=task.key, new=False, same_payload=same_json(task.payload, payload))


def _each(convert: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Each of the values converted. There are few different ones, and often only one."""
    known = {value: convert(value) for value in set(values)}
    return [known[value] for value in values]
