"""Any table can be a ledger: which column and which word means what.

A `LedgerTable` is a mapping, nothing more; `ledgers/adopt/check.py` checks it against the real table and `ledgers/sql`
builds the statements from it. redrive's own `redrive_task` is the `LedgerTable` whose names are the defaults.

    FLAG_SCHEDULES = LedgerTable(
        "feature_flag_schedules", key="id", status="status",
        words=Words(waiting="pending", retrying="failed", done="applied", dead="failed", cancelled="cancelled"),
        first_due="scheduled_at", due="next_retry_at",
        count="retry_count", counts="retries", count_max="max_retries", last_error="last_error",
        done_at="applied_at",
    )
"""

from dataclasses import KW_ONLY, dataclass, fields
from enum import StrEnum
from typing import Any

from redrive.core.column_names import counts_retries
from redrive.core.decide import Settlement
from redrive.core.models import read_model, read_roles, read_words
from redrive.core.states import State
from redrive.errors import UsageError


class Counts(StrEnum):
    """What the number in the count column means."""

    FAILURES = "failures"
    """How many tries have failed."""
    RETRIES = "retries"
    """How many retries were planned: it stops at its maximum, where one more try is still to come."""
    ATTEMPTS = "attempts"
    """How many tries were started: raised at the claim, taken back when a try is not charged."""
    DONE = "done"
    """How often it was done: raised by the settlement that writes done, and by nothing else. Things that are done and come
    back with a `return` count their rounds so; backoff grows with the rounds, and failures are not counted in the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The table's own words for the states.

    `retrying` is the word of a waiting task that has failed before; without it `waiting` stands for both. It may be the
    same as `dead`: the due time then tells them apart, retrying has one and dead has none. Without `claimed` the lease
    says it. Without `cancelled` tasks of this table cannot be cancelled. `refused` is the word that a worker writes for
    cancelled, where a task that its handler refused has another word than one that a person took back.
    """

    waiting: str = "waiting"
    retrying: str | None = None
    claimed: str | None = None
    done: str = "done"
    dead: str = "dead"
    cancelled: str | None = None
    refused: str | None = None

    def __post_init__(self) -> None:
        apart = [self.waiting, self.done, self.dead, *filter(None, (self.claimed, self.cancelled, self.refused))]
        if len(set(apart)) < len(apart):
            raise UsageError(f"waiting, claimed, done, dead and cancelled need words of their own, not {apart}")
        if self.retrying in {self.done, self.claimed, self.cancelled, self.refused} - {None}:
            raise UsageError(f"retrying may share its word with waiting or dead only, not {self.retrying!r}")

    @property
    def shared(self) -> bool:
        """Whether one word stands for both retrying and dead."""
        return self.retrying == self.dead

    def has(self, state: State) -> bool:
        """Whether the table has a word for a state."""
        return getattr(self, state.value) is not None

    def word(self, state: State, *, failures: int = 0) -> str:
        """The word to write for a state."""
        if state is State.WAITING and failures > 0:
            return self.retrying or self.waiting
        word: str | None = getattr(self, state.value)
        if word is None:
            raise UsageError(f"this table has no word for {state}: name one in Words({state}=…)")
        return word

    def settled(self, state: State, *, failures: int = 0) -> str:
        """The word that a settlement writes for a state."""
        if state is State.CANCELLED and self.refused is not None:
            return self.refused
        return self.word(state, failures=failures)

    def state(self, word: str, *, has_due: bool, leased: bool) -> State:
        """The state of a row from its word, its due time and its lease."""
        if leased or word == self.claimed:
            return State.CLAIMED
        if word == self.waiting or (word == self.retrying and (has_due or not self.shared)):
            return State.WAITING
        for state in (State.DONE, State.DEAD, State.CANCELLED):
            if word == getattr(self, state.value):
                return state
        if word == self.refused:
            return State.CANCELLED
        raise UsageError(f"unknown status word {word!r}: this table knows {', '.join(self.all())}")

    def all(self) -> tuple[str, ...]:
        """Every word, once."""
        words = (self.waiting, self.retrying, self.claimed, self.done, self.dead, self.cancelled, self.refused)
        return tuple(dict.fromkeys(word for word in words if word is not None))


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """The columns of a table that redrive uses; a column set to None is one that the table does not have.

    `key` is what the caller knows a task by, `id` (default: the key) the single column that rows are updated by. `kind`
    names the column that chooses the handler; without it every row goes to the table's one handler. `payload` names a
    JSON column; without it the payload is the row's other columns as a dict. `first_due` is when the first try is due if
    that stands in a column of its own; a due time of NULL means now. `claimed_at` says when a task was last claimed,
    `done_at` when it was done, `ended_at` when it ended in any way. `gate` names the destination that a row is for, `tenant`
    whose it is (without a gate column that is its gate), `priority` 0, 1 or 2 for high, normal and low.
    """

    name: str
    _: KW_ONLY
    schema: str | None = None
    key: str = "id"
    id: str | None = None
    kind: str | None = None
    payload: str | None = None
    status: str = "status"
    words: Words = Words()
    due: str = "due_at"
    first_due: str | None = None
    count: str = "failures"
    counts: Counts | str = Counts.FAILURES
    count_max: str | None = None
    last_error: str | None = None
    lease_until: str = "lease_until"
    claim_id: str = "claim_id"
    claimed_at: str | None = None
    done_at: str | None = None
    ended_at: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    deadline: str | None = None
    redrives: str | None = None
    trace: str | None = None
    gate: str | None = None
    tenant: str | None = None
    priority: str | None = None

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise UsageError(f"name the table without its schema, which has a parameter of its own, not {self.name!r}")
        try:
            object.__setattr__(self, "counts", Counts(self.counts))
        except ValueError:
            raise UsageError(f"counts must be failures, retries, attempts or done, not {self.counts!r}") from None
        used = [name for name in self.columns().values() if name not in (self.key, self.id)]
        twice = sorted({name for name in used if used.count(name) > 1})
        if twice:
            raise UsageError(f"table {self.name!r}: {', '.join(twice)} cannot stand for two things")

    @classmethod
    def of(
        cls, model: Any, *, words: Words | None = None, counts: Counts | str | None = None, **columns: Any
    ) -> "LedgerTable":
        """The mapping of a model: a mapped class or a `Table` of SQLAlchemy, or a model of Django.

            LedgerTable.of(Email)
            LedgerTable.of(Email, due=Email.send_after, words=Words(waiting="new", done="sent", dead="given up"))

        Columns are found by their usual names where their types fit, status words by an enum, by choices and by the default of
        the status. What the model does not tell is asked for, never invented. What is given goes first: a column by its name, by
        the attribute's name or by the attribute itself, and None for a column that is not to be used. A count whose name speaks of
        retries counts `retries`, any other `failures`.
        """
        read = read_model(model)
        wrong = sorted(set(columns) - set(ROLES))
        if wrong:
            raise UsageError(f"a ledger table has no {', '.join(wrong)}: it has {', '.join(ROLES)}, words and counts")
        roles = read_roles(read, columns)
        status, count = str(roles["status"]), str(roles["count"])
        given: dict[str, Any] = {role: name for role, name in roles.items() if name is not None}
        return cls(
            read.name,
            schema=read.schema,
            words=Words(**read_words(read, status)) if words is None else words,
            counts=(Counts.RETRIES if counts_retries(count) else Counts.FAILURES) if counts is None else counts,
            **given,
        )

    @property
    def id_column(self) -> str:
        """The column that rows are updated by."""
        return self.id or self.key

    @property
    def gated_by(self) -> str | None:
        """The role of the column that names a row's gate, if there is one."""
        return "gate" if self.gate is not None else "tenant" if self.tenant is not None else None

    def columns(self) -> dict[str, str]:
        """Every mapped column, by what it stands for."""
        named = {role: getattr(self, role) for role in ROLES}
        return {role: name for role, name in (named | {"id": self.id_column}).items() if name is not None}

    def failures(self, count: int, *, claimed: bool) -> int:
        """The failures that a stored count stands for."""
        return max(0, count - 1) if claimed and self.counts is Counts.ATTEMPTS else count

    def failures_max(self, count_max: int | None) -> int | None:
        """The failure at which the row dies, from its own maximum."""
        if count_max is None or self.counts is Counts.DONE:
            return None
        return count_max + 1 if self.counts is Counts.RETRIES else count_max

    def count_max_to_store(self, failures_max: int | None) -> int | None:
        """The row's own maximum, from the failure at which it dies."""
        if failures_max is None:
            return None
        return failures_max - 1 if self.counts is Counts.RETRIES else failures_max

    def count_to_store(self, settlement: Settlement) -> int:
        """The count that a settlement leaves in the row."""
        failures = settlement.failures
        match self.counts:
            case Counts.RETRIES if settlement.explanation is not None:
                return min(failures, settlement.explanation.failures_max - 1)
            case Counts.ATTEMPTS if settlement.state is not State.WAITING:
                return settlement.claim.number
            case Counts.DONE:
                return settlement.claim.task.failures + (settlement.state is State.DONE)
            case _:
                return failures


ROLES = tuple(one.name for one in fields(LedgerTable) if one.name not in ("name", "schema", "words", "counts"))
"""What a column can stand for."""

TASKS = LedgerTable(
    "redrive_task",
    key="key",
    id="id",
    kind="kind",
    payload="payload",
    status="state",
    words=Words(claimed="claimed", cancelled="cancelled"),
    count_max="failures_max",
    last_error="last_error",
    claimed_at="claimed_at",
    ended_at="ended_at",
    created_at="created_at",
    updated_at="updated_at",
    deadline="deadline_at",
    redrives="redrives",
    trace="trace",
    gate="gate",
    tenant="tenant",
    priority="priority",
)
"""redrive's own table."""
