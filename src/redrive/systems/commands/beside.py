"""What the bus writes in the same commit as the ledger: audit, errors, replies, and the counts of batches.

The ledger changes the rows and calls this before any message is released. Every write here takes all commands of its
transaction at once.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Text,
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

from redrive import State
from redrive.events import Act, Claim, Settlement
from redrive.extend import Beside
from redrive.lane import Actor
from redrive.queues import ExtraColumns
from redrive.sql import Batch
from redrive.systems.commands.errors import CommandTrouble, trouble_of
from redrive.systems.commands.messages import Messages
from redrive.systems.commands.tables import COUNTED
from redrive.systems.commands.values import Outcome, json_text

IDS_MAX = 1000
ERROR = ("last_error_type", "last_error_code", "last_error_msg")
NO_VERDICT = ("snoozed", "released")
"""Outcomes that say nothing of whether the command can be handled."""


class Line(NamedTuple):
    """A line of the audit."""

    domain: str
    command_id: str
    event_type: str
    details: str | None = None


@dataclass(slots=True)
class _Writes:
    """What a transaction comes to, gathered before it is written."""

    audit: list[Line] = field(default_factory=list)
    replies: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    batches: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add_up(self, row: Any, **changes: int) -> None:
        if row["batch_id"] is not None:
            self.batches[row["domain"], row["batch_id"]].update(changes)

    def reply(self, row: Any, outcome: Outcome, answer: str) -> None:
        """`answer` is the inside of a JSON object: what came of it."""
        if row["reply_queue"] is not None:
            known = {name: row[name] for name in ("domain", "command_id", "command_type", "correlation_id")}
            said = json.dumps(known | {"outcome": outcome.value}, ensure_ascii=False)
            self.replies[row["reply_queue"]].append(f"{said[:-1]}, {answer}}}")


class CommandBeside(Beside):
    """Writes beside the ledger of the commands."""

    refused_edit = "a command's data is what its sender asked for, and what replies and the audit are about: send another command instead"

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._tables = messages.tables
        self._lines = Batch(messages.database.dialect, {name: Text() for name in Line._fields})
        self._ids = Batch(messages.database.dialect, {"id": BigInteger()})
        self._insert_audit = self._build_audit()
        self._insert_received = self._build_received()
        self._update_batch = self._build_batch()

    # --- called by the ledger ---------------------------------------------------------------------------------------

    def claimed(self, connection: Connection, claims: Sequence[Claim]) -> None:
        connection.execute(self._insert_received, self._ids.parameters((claim.task.id,) for claim in claims))

    def settled(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        writes = _Writes()
        for one in settlements:
            self._settle_one(writes, one)
        self._write(connection, writes)

    def _settle_one(self, writes: _Writes, one: Settlement) -> None:
        row, number = one.claim.task.payload, one.claim.number
        name = row["domain"], row["command_id"]
        if one.state is State.DONE:
            writes.audit.append(Line(*name, "COMPLETED", _tried(number)))
            writes.reply(row, Outcome.SUCCESS, f'"result": {one.result or "null"}')
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
        columns = {"error_type": Text(), "error_code": Text(), "error_message": Text()}
        return ExtraColumns(columns=columns, row=_extra_row, values=self._extra_values)

    def _extra_values(self, batch: FromClause, now: ColumnElement[Any]) -> dict[str, ColumnElement[Any]]:
        kept = self._tables.command.c
        done = batch.c.state == literal_column("'done'")
        told = zip(ERROR, (batch.c.error_type, batch.c.error_code, batch.c.error_message), strict=True)
        return {
            # What has come to a good end has no error any more; what went wrong on the way is in the audit.
            **{name: case((done, null()), else_=func.coalesce(error, kept[name])) for name, error in told},
            "troubled_at": case((batch.c.state == literal_column("'dead'"), now), else_=null()),
        }

    def acted(
        self, connection: Connection, act: Act, state: State, ids: Sequence[Any], actor: Actor, note: Any
    ) -> None:
        writes = _Writes()
        command = self._tables.command
        wanted = ("domain", "command_id", "command_type", "correlation_id", "reply_queue", "batch_id")
        changed: Mapping[str, Any] = {"troubled_at": null()}
        if state is State.DONE:
            changed = {name: null() for name in ("troubled_at", *ERROR)}
        if act is Act.BURY:
            error = dict(zip(ERROR, (actor.reason, actor.reason, str(note)), strict=True))
            changed = error | {"troubled_at": self._messages.now}
        for start in range(0, len(ids), IDS_MAX):
            these = command.c.id.in_(ids[start : start + IDS_MAX])
            found = select(*(command.c[name] for name in wanted)).where(these).order_by(command.c.id)
            for row in connection.execute(found).mappings():
                self._act_one(writes, row, act, state, actor, note)
            if act is not Act.CANCEL:  # commands that wait for a worker are not in the troubleshooting queue
                connection.execute(update(command).where(these).values(changed))
        self._write(connection, writes)

    def _act_one(self, writes: _Writes, row: Any, act: Act, state: State, actor: Actor, note: Any) -> None:
        details: dict[str, Any] = {"operator": actor.name}
        if actor.reason:
            details["reason"] = actor.reason
        if act is Act.BURY:
            event, details = "MOVED_TO_TROUBLESHOOTING_QUEUE", {"reason": actor.reason}
            writes.add_up(row, in_troubleshooting=1)
        elif state is State.WAITING:
            event = "OPERATOR_RETRY"
            writes.add_up(row, in_troubleshooting=-1)
        elif state is State.DONE:
            event = "OPERATOR_COMPLETE"
            writes.reply(row, Outcome.SUCCESS, f'"result": {json_text(note)}')
            writes.add_up(row, in_troubleshooting=-1, completed=1)
        else:
            event = "OPERATOR_CANCEL"
            told = {"code": "CANCELED", "message": actor.reason}
            writes.reply(row, Outcome.CANCELED, f'"error": {_json(told)}')
            writes.add_up(row, canceled=1, **({"in_troubleshooting": -1} if act is Act.RESOLVE else {}))
        writes.audit.append(Line(row["domain"], row["command_id"], event, _json(details)))

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, connection: Connection, writes: _Writes) -> None:
        if writes.audit:
            connection.execute(self._insert_audit, self._lines.parameters(writes.audit))
        for queue in sorted(writes.replies):
            self._messages.reply(connection, queue, writes.replies[queue])
        for domain, batch_id in sorted(writes.batches):
            changes = writes.batches[domain, batch_id]
            counts = {f"more_{counted}": changes[counted] for counted in COUNTED}
            connection.execute(self._update_batch, counts | {"in_domain": domain, "of_batch": batch_id})

    def _build_audit(self) -> Any:
        """Append lines, in their order."""
        batch, audit = self._lines.rows, self._tables.audit
        details = self._messages.database.dialect.json(batch.c.details, audit.c.details.type)
        rows = select(batch.c.domain, batch.c.command_id, batch.c.event_type, self._messages.now, details)
        return insert(audit).from_select(["domain", "command_id", "event_type", "at", "details"], rows)

    def _build_received(self) -> Any:
        """A line for each command that was claimed, from its row: sending only the ids takes half the time."""
        command, audit = self._tables.command, self._tables.audit
        attempts: ColumnElement[str] = cast(command.c.attempts, Text)
        said = literal_column("'{\"attempt\": '", Text).concat(attempts).concat(literal_column("'}'", Text))
        details = self._messages.database.dialect.json(said, audit.c.details.type)
        received: ColumnElement[str] = literal_column("'RECEIVED'")
        rows = select(command.c.domain, command.c.command_id, received, self._messages.now, details)
        rows = rows.where(self._ids.match("id", command.c.id))
        return insert(audit).from_select(["domain", "command_id", "event_type", "at", "details"], rows)

    def _build_batch(self) -> Any:
        """Count what has changed in a batch, and say whether it is complete: nothing open, nothing before a person."""
        table, now = self._tables.batch, self._messages.now
        counts = {name: table.c[name] + bindparam(f"more_{name}", type_=table.c[name].type) for name in COUNTED}
        ended = counts["completed"] + counts["failed"] + counts["canceled"]
        spoiled = counts["failed"] + counts["canceled"] > literal_column("0")
        complete = ended >= table.c.total
        words: dict[str, ColumnElement[Any]] = {
            word: literal_column(f"'{word}'") for word in ("OPEN", "COMPLETED", "COMPLETED_WITH_FAILURES")
        }
        status = case((~complete, words["OPEN"]), (spoiled, words["COMPLETED_WITH_FAILURES"]), else_=words["COMPLETED"])
        in_domain, of_batch = bindparam("in_domain", type_=Text), bindparam("of_batch", type_=Text)
        return (
            update(table)
            .where(table.c.domain == in_domain, table.c.batch_id == of_batch)
            .values(**counts, status=status, updated_at=now, completed_at=case((complete, now), else_=null()))
        )


def _extra_row(one: Settlement) -> tuple[Any, ...]:
    if one.state is State.DONE or one.outcome in NO_VERDICT:
        return (None, None, None)
    return _trouble(one)[:3]


def _trouble(one: Settlement) -> CommandTrouble:
    """Why a try failed: as its handler said, or that no handler was left to say it."""
    if isinstance(one.result, BaseException):
        return trouble_of(one.result)
    if one.outcome == "lease_expired":
        return CommandTrouble("WORKER_LOST", "WORKER_LOST", one.error or "")
    code, _, message = (one.error or "").partition(": ")
    return CommandTrouble("BUSINESS_RULE", code, message)


@lru_cache(maxsize=1000)
def _tried(number: int) -> str:
    return f'{{"attempt": {number}}}'


def _said(trouble: CommandTrouble) -> str:
    """The inside of a JSON object with an error."""
    said = _said_without_details(trouble.type, trouble.code, trouble.message)
    return f'{said}, "details": {_json(trouble.details)}' if trouble.details else said


@lru_cache(maxsize=512)
def _said_without_details(type_: str, code: str, message: str) -> str:
    # When a thousand commands fail they mostly say the same.
    return _json({"type": type_, "code": code, "message": message})[1:-1]


_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
