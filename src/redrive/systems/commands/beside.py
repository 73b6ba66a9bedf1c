"""What the bus writes in the same commit as the ledger: audit, errors, replies, and the counts of batches.

The ledger changes the rows and calls this before any message is released. Every write here takes all commands of its
transaction at once.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    FromClause,
    Text,
    any_,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import TypeEngine

from redrive import State
from redrive.extend import Act, Actor, Batch, Beside, Claim, Database, ExtraColumns, Instant, Settlement
from redrive.queues import Queues, message_table
from redrive.systems.commands.tables import COUNTED, Tables
from redrive.systems.commands.values import Outcome, json_text
from redrive.systems.commands.work import ANSWER, Trouble

IDS_MAX = 1000
NO_VERDICT = ("snoozed", "released")
"""Outcomes that say nothing of whether the command can be handled."""


class Line(NamedTuple):
    """A line of the audit."""

    domain: str
    command_id: str
    event_type: str
    details: str | None = None


class _Writes(NamedTuple):
    """What a transaction comes to, gathered before it is written."""

    audit: list[Line]
    errors: list[tuple[Any, ...]]
    replies: dict[str, list[str]]
    batches: dict[tuple[str, str], Counter[str]]

    @classmethod
    def none(cls) -> "_Writes":
        return cls([], [], defaultdict(list), defaultdict(Counter))

    def add_up(self, row: Any, **changes: int) -> None:
        if row["batch_id"] is not None:
            self.batches[row["domain"], row["batch_id"]].update(changes)

    def reply(self, row: Any, outcome: Outcome, answer: str) -> None:
        """`answer` is the inside of a JSON object: what came of it."""
        if row["reply_queue"] is not None:
            known = {name: row[name] for name in ("domain", "command_id", "command_type", "correlation_id")}
            said = json.dumps(known | {"outcome": outcome.value}, ensure_ascii=False)
            self.replies[row["reply_queue"]].append(f"{said[:-1]}, {answer}}}")


class Records(Beside):
    """Writes beside the ledger of one database."""

    def __init__(self, database: Database, tables: Tables, queues: Queues) -> None:
        self._database = database
        self._tables = tables
        self._queues = queues
        self._postgres = database.dialect.name == "postgresql"
        self._audit_batch = Batch(database.dialect, {name: Text() for name in Line._fields})
        self._error_batch = Batch(
            database.dialect,
            {"id": BigInteger(), "type": Text(), "code": Text(), "message": Text(), "troubled": Boolean()},
        )
        self._insert_audit = self._build_audit()
        self._receive = self._build_receive()
        self._update_errors = self._build_errors()
        self._update_batch = self._build_batch()
        self._replies: dict[str, Any] = {}

    # --- called by the ledger ---------------------------------------------------------------------------------------

    def claimed(self, connection: Connection, claims: Sequence[Claim]) -> None:
        """See `Beside.claimed`."""
        ids = [claim.task.id for claim in claims]
        connection.execute(self._receive, {"ids": ids if self._postgres else json.dumps(ids)} | self.times())

    def settled(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        """See `Beside.settled`."""
        writes = _Writes.none()
        for one in settlements:
            self._settle_one(writes, one)
        self._write(connection, writes)

    def _settle_one(self, writes: _Writes, one: Settlement) -> None:
        row, number = one.claim.task.payload, one.claim.number
        name = row["domain"], row["command_id"]
        if one.state is State.DONE:
            writes.audit.append(Line(*name, "COMPLETED", _tried(number)))
            writes.reply(row, Outcome.SUCCESS, f'"result": {row.get(ANSWER) or "null"}')
            writes.add_up(row, completed=1)
            return
        if one.outcome in NO_VERDICT:
            writes.audit.append(Line(*name, one.outcome.upper(), _tried(number)))
            return
        trouble = _trouble(one)
        said = _said(trouble)
        if one.state is State.CANCELLED:
            writes.audit.append(Line(*name, "BUSINESS_RULE_FAILED", f'{{"attempt": {number}, {said}}}'))
            writes.reply(row, Outcome.FAILED, f'"error": {{{said}}}')
            writes.add_up(row, failed=1)
        else:
            again = "" if one.delay is None else f', "delay_seconds": {one.delay.total_seconds()}'
            writes.audit.append(Line(*name, "FAILED", f'{{"attempt": {number}, {said}{again}}}'))
        if one.state is State.DEAD:
            reason = "PERMANENT" if trouble.type == "PERMANENT" else "EXHAUSTED"
            moved = {"reason": reason, "attempt": number}
            writes.audit.append(Line(*name, "MOVED_TO_TROUBLESHOOTING_QUEUE", _json(moved)))
            writes.add_up(row, in_troubleshooting=1)

    @property
    def extra(self) -> ExtraColumns:
        """What the row itself says of an error: written as it is settled."""
        columns: Mapping[str, TypeEngine[Any]] = {
            "error_type": Text(),
            "error_code": Text(),
            "error_message": Text(),
        }
        return ExtraColumns(columns=columns, row=_extra_row, values=self._extra_values)

    def _extra_values(self, batch: FromClause, now: ColumnElement[Any]) -> dict[str, ColumnElement[Any]]:
        command = self._tables.command
        return {
            "last_error_type": func.coalesce(batch.c.error_type, command.c.last_error_type),
            "last_error_code": func.coalesce(batch.c.error_code, command.c.last_error_code),
            "last_error_msg": func.coalesce(batch.c.error_message, command.c.last_error_msg),
            "troubled_at": case((batch.c.state == literal_column("'dead'"), now), else_=null()),
        }

    def acted(
        self, connection: Connection, act: Act, state: State, ids: Sequence[Any], actor: Actor, note: Any
    ) -> None:
        """See `Beside.acted`."""
        writes = _Writes.none()
        command = self._tables.command
        wanted = ("domain", "command_id", "command_type", "correlation_id", "reply_queue", "batch_id")
        for start in range(0, len(ids), IDS_MAX):
            some = ids[start : start + IDS_MAX]
            found = select(command.c.id, *(command.c[name] for name in wanted)).where(command.c.id.in_(some))
            for row in connection.execute(found.order_by(command.c.id)).mappings():
                self._act_one(writes, row, act, state, actor, note)
            if act != "bury":
                calm = update(command).where(command.c.id.in_(some), command.c.troubled_at.is_not(None))
                connection.execute(calm.values(troubled_at=null()))
        self._write(connection, writes)

    def _act_one(self, writes: _Writes, row: Any, act: Act, state: State, actor: Actor, note: Any) -> None:
        details: dict[str, Any] = {"operator": actor.name}
        if actor.reason:
            details["reason"] = actor.reason
        if act == "bury":
            event, details = "MOVED_TO_TROUBLESHOOTING_QUEUE", {"reason": actor.reason}
            writes.errors.append((row["id"], actor.reason, actor.reason, str(note), True))
            writes.add_up(row, in_troubleshooting=1)
        elif state is State.WAITING:
            event = "OPERATOR_RETRY"
            writes.add_up(row, in_troubleshooting=-1)
        elif state is State.DONE:
            event = "OPERATOR_COMPLETE"
            result = json_text(note)
            writes.reply(row, Outcome.SUCCESS, f'"result": {result}')
            writes.add_up(row, in_troubleshooting=-1, completed=1)
        else:
            event = "OPERATOR_CANCEL"
            told = {"code": "CANCELED", "message": actor.reason}
            writes.reply(row, Outcome.CANCELED, f'"error": {_json(told)}')
            writes.add_up(row, canceled=1, **({"in_troubleshooting": -1} if act == "resolve" else {}))
        writes.audit.append(Line(row["domain"], row["command_id"], event, _json(details)))

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, connection: Connection, writes: _Writes) -> None:
        if writes.errors:
            connection.execute(self._update_errors, self._error_batch.parameters(writes.errors) | self.times())
        if writes.audit:
            self.audit(connection, writes.audit)
        for queue in sorted(writes.replies):
            self._reply(connection, queue, writes.replies[queue])
        for name in sorted(writes.batches):
            self._count(connection, name, writes.batches[name])

    def audit(self, connection: Connection, lines: Iterable[Line]) -> None:
        """Append to the audit."""
        connection.execute(self._insert_audit, self._audit_batch.parameters(lines) | self.times())

    def _reply(self, connection: Connection, queue: str, messages: list[str]) -> None:
        if self._postgres:
            self._queues.ensure(connection, queue)
        if queue not in self._replies:
            self._replies[queue] = self._build_reply(queue)
        statement, batch = self._replies[queue]
        connection.execute(statement, batch.parameters((message,) for message in messages) | self.times())

    def _count(self, connection: Connection, name: tuple[str, str], changes: Counter[str]) -> None:
        counts = {f"more_{counted}": changes[counted] for counted in COUNTED}
        named = {"in_domain": name[0], "of_batch": name[1]}
        connection.execute(self._update_batch, counts | named | self.times())

    # --- statements -------------------------------------------------------------------------------------------------

    def now(self) -> ColumnElement[Any]:
        """The present, by the clock of the ledger."""
        if self._database.server_clock:
            return func.statement_timestamp(type_=Instant)
        return bindparam("now", type_=Instant)

    def times(self) -> dict[str, Any]:
        """The parameter of `now`, where it has one."""
        return {} if self._database.server_clock else {"now": self._database.now()}

    def as_json(self, text: ColumnElement[Any], type_: Any) -> ColumnElement[Any]:
        """JSON text for a column of this type."""
        return cast(text, type_) if self._postgres else text

    def _build_audit(self) -> Any:
        """Append lines, in their order."""
        batch, audit = self._audit_batch.rows, self._tables.audit
        details = self.as_json(batch.c.details, audit.c.details.type)
        rows = select(batch.c.domain, batch.c.command_id, batch.c.event_type, self.now(), details)
        return insert(audit).from_select(["domain", "command_id", "event_type", "at", "details"], rows)

    def _build_receive(self) -> Any:
        """A line for each command that was claimed, from its row: only the ids are sent."""
        command = self._tables.command
        if self._postgres:
            # Not joined: PostgreSQL would rather read a table of this size than its index.
            claimed = command.c.id == any_(bindparam("ids", type_=ARRAY(BigInteger)))
        else:
            claimed = command.c.id.in_(
                select(func.json_each(bindparam("ids", type_=Text)).table_valued("value").c.value)
            )
        attempt = (func.jsonb_build_object if self._postgres else func.json_object)("attempt", command.c.attempts)
        rows = select(command.c.domain, command.c.command_id, literal_column("'RECEIVED'"), self.now(), attempt)
        return insert(self._tables.audit).from_select(
            ["domain", "command_id", "event_type", "at", "details"], rows.where(claimed)
        )

    def _build_errors(self) -> Any:
        """Say what went wrong last, and since when a person is asked."""
        batch, command = self._error_batch.rows, self._tables.command
        return (
            update(command)
            .where(self._error_batch.match("id", command.c.id))
            .values(
                last_error_type=batch.c.type,
                last_error_code=batch.c.code,
                last_error_msg=batch.c.message,
                troubled_at=case((batch.c.troubled, self.now()), else_=null()),
            )
        )

    def _build_batch(self) -> Any:
        """Count what has changed in a batch, and say whether it is complete: nothing open, nothing before a person."""
        table = self._tables.batch
        counts = {name: table.c[name] + bindparam(f"more_{name}", type_=table.c[name].type) for name in COUNTED}
        ended = counts["completed"] + counts["failed"] + counts["canceled"]
        spoiled = counts["failed"] + counts["canceled"] > literal_column("0")
        complete = ended >= table.c.total
        words: dict[str, ColumnElement[Any]] = {
            word: literal_column(f"'{word}'") for word in ("OPEN", "COMPLETED", "COMPLETED_WITH_FAILURES")
        }
        status = case((~complete, words["OPEN"]), (spoiled, words["COMPLETED_WITH_FAILURES"]), else_=words["COMPLETED"])
        named = (
            table.c.domain == bindparam("in_domain", type_=Text),
            table.c.batch_id == bindparam("of_batch", type_=Text),
        )
        return (
            update(table)
            .where(*named)
            .values(
                **counts,
                status=status,
                updated_at=self.now(),
                completed_at=case((complete, self.now()), else_=null()),
            )
        )

    def _build_reply(self, queue: str) -> tuple[Any, Batch]:
        """Put messages into a reply queue."""
        batch = Batch(self._database.dialect, {"message": Text()})
        if self._postgres:
            rows = select(self.now(), cast(batch.rows.c.message, JSONB))
            return insert(message_table(queue)).from_select(["vt", "message"], rows), batch
        assert self._tables.reply is not None
        rows = select(bindparam(None, queue, type_=Text), batch.rows.c.message, self.now())
        names = ["queue_name", "message", "enqueued_at"]
        return insert(self._tables.reply).from_select(names, rows), batch


def _extra_row(one: Settlement) -> tuple[Any, ...]:
    if one.state is State.DONE or one.outcome in NO_VERDICT:
        return (None, None, None)
    trouble = _trouble(one)
    return (trouble.type, trouble.code, trouble.message)


def _trouble(one: Settlement) -> Trouble:
    """What a settlement failed of: as its handler said, or as the engine did where no handler was left to say it."""
    answer = one.claim.task.payload.get(ANSWER)
    if one.outcome != "lease_expired" and isinstance(answer, Trouble):
        return answer
    if one.outcome == "lease_expired":
        return Trouble("WORKER_LOST", "WORKER_LOST", one.error or "")
    code, _, message = (one.error or "").partition(": ")
    kind = "PERMANENT" if one.error_class == "permanent" else "TRANSIENT"
    return Trouble(kind, code or "UNKNOWN", message)


@lru_cache(maxsize=1000)
def _tried(number: int) -> str:
    return f'{{"attempt": {number}}}'


def _said(trouble: Trouble) -> str:
    """The inside of a JSON object with an error."""
    said = _said_without_details(trouble.type, trouble.code, trouble.message)
    return f'{said}, "details": {_json(trouble.details)}' if trouble.details else said


@lru_cache(maxsize=512)
def _said_without_details(type_: str, code: str, message: str) -> str:
    # When a thousand commands fail they mostly say the same.
    return _json({"type": type_, "code": code, "message": message})[1:-1]


_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
