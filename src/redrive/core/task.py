"""The nouns: a task to be done, the claim to run it, the attempts it has had.

A task is one row and its current state, whatever the table; see `docs/concepts.md` for the words.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, NamedTuple, Self
from uuid import UUID, uuid5

from typing_extensions import TypeVar

from redrive.core.durations import ZERO, Span, read_span
from redrive.core.effect_mark import EffectMark
from redrive.core.stack import Raised
from redrive.core.states import State
from redrive.errors import PayloadError, UsageError

TaskId = int | str | UUID
"""The single column that rows are updated by."""

P = TypeVar("P", default=Any)
"""What a payload is: `Task[Payment]`. A plain `Task` holds any JSON."""

KEY_CHARS_MAX = 500
KIND_CHARS_MAX = 200
PAYLOAD_BYTES_MAX = 1 << 20
GATE_CHARS_MAX = 200
PAUSED_KIND = "kind:"
"""What the names of pauses of kinds begin with, and those of gates do not: see `core.pauses`."""
PRIORITIES = (None, 0, 1, 2)
"""High, normal and low; none is normal."""


class Task(NamedTuple, Generic[P]):
    """What is to be done: one row, its current state. A handler that takes `Task[Payment]` gets its payload as a `Payment`.

    A named tuple, as the other values that every attempt makes: as immutable as a frozen dataclass and made in a fifth of
    the time (0.7 µs instead of 3.9 µs for these fields).
    """

    id: TaskId
    key: str
    kind: str
    payload: P
    state: State
    failures: int
    failures_max: int | None = None
    redrives: int = 0
    due_at: datetime | None = None
    deadline_at: datetime | None = None
    lease_until: datetime | None = None
    claimed_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    ended_at: datetime | None = None
    last_error: str | None = None
    trace: str | None = None
    gate: str | None = None
    tenant: str | None = None
    priority: int | None = None


class _NewTask(NamedTuple):
    kind: str
    key: str
    payload: Any
    delay: timedelta
    failures_max: int | None
    deadline: timedelta | None
    trace: str | None
    gate: str | None
    tenant: str | None
    priority: int | None
    payload_json: str


class NewTask(_NewTask):
    """A task to be added. Checked here, so that a ledger only sees what it can store.

    `payload_bytes_max` is for a system that lets its payloads be larger than others.
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        kind: str,
        key: str,
        payload: Any = None,
        delay: Span = ZERO,
        failures_max: int | None = None,
        deadline: Span | None = None,
        trace: str | None = None,
        gate: str | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
    ) -> Self:
        """A task of which everything can be stored, or a `UsageError`."""
        if delay is not ZERO:
            delay = read_span("delay", delay)
        if deadline is not None:
            deadline = read_span("deadline", deadline)
        check_text("kind", kind, KIND_CHARS_MAX)
        check_text("key", key, KEY_CHARS_MAX)
        most = failures_max
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= 1_000_000):
            raise UsageError(f"attempts must be a whole number from 1 to 1,000,000, not {most!r}")
        if gate is not None:
            check_gate(gate)
        if tenant is not None:
            check_text("tenant", tenant, GATE_CHARS_MAX)
        if priority not in PRIORITIES:
            raise UsageError(f"priority must be 0 (high), 1 (normal) or 2 (low), not {priority!r}")
        text = encode_payload(payload, payload_bytes_max)
        fields = (kind, key, payload, delay, failures_max, deadline, trace, gate, tenant, priority, text)
        return tuple.__new__(cls, fields)

    def __reduce__(self) -> tuple[Any, ...]:
        """How it is copied: what is in it has been checked."""
        return self._make, (tuple(self),)

    def behind(self, gate: str | None, deadline: timedelta | None) -> Self:
        """The same task behind a gate, with a deadline unless it has one: nobody claims what is parked and sees a policy's."""
        return self._replace(
            gate=self.gate if gate is None else check_gate(gate),
            deadline=deadline if self.deadline is None else self.deadline,
        )


class Added(NamedTuple):
    """What adding came to: the task's id, and whether it is new or was there already.

    `same_payload` is false where the key was there with another payload: the task that is there stays as it is.
    """

    id: TaskId
    key: str
    new: bool
    same_payload: bool = True


class GateSeen(NamedTuple):
    """What a claim saw of its gate: under which fence, whether it is the probe, how often its breaker has tripped since it flowed,
    and how many answers in a row have asked for a pause."""

    fence: UUID
    probe: bool = False
    trips: int = 0
    refused: int = 0


class Claim(NamedTuple):
    """The right to run a task until its lease ends.

    `claim_id` is the fence: every write that ends or extends the attempt is made only where the row still has it.
    `abandoned` holds the claim that was never settled, if there was one: such a task must be settled as
    `LeaseExpired` and not run. `suspect` says that the task's last run was lost with its worker: it must run with nothing
    beside it, under the fence of `alone`. `unreadable` says what in the row cannot be read: such a task is not run, it is dead.
    `seen` is what is known of the task's gate, where it has one. `effect` is the mark of its effect as it is to be written with
    the settlement, where a try has entered one.
    """

    task: Task
    claim_id: UUID
    claimed_at: datetime
    abandoned: "Abandoned | None" = None
    suspect: bool = False
    unreadable: str | None = None
    seen: GateSeen | None = None
    effect: EffectMark | None = None

    @property
    def number(self) -> int:
        """Which try this is, counted from one since the task was added or redriven."""
        return self.task.failures + 1

    def alone(self) -> "Claim":
        """The same claim as it is fenced while the task runs alone. Whoever finds it lost knows by that what is to blame."""
        return self if is_alone(self.claim_id) else self._replace(claim_id=uuid5(self.claim_id, "alone"))


def is_alone(fence: UUID) -> bool:
    """Whether a fence is that of a run with nothing beside it: made from another one, where those of claims are drawn."""
    return fence.version == 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """The claim that ran out: who held it and since when, as far as the row tells.

    `lost_alone` is how many runs of the task were lost before while nothing ran beside them.
    """

    claim_id: UUID | None
    claimed_at: datetime | None
    lost_alone: int = 0


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """A settlement or an extension that was not written: somebody else owns the task now."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class ClaimLocked:
    """A settlement or an extension that was not written yet: the claim holds, but somebody has locked its row. Come back."""

    claim: Claim


Unwritten = ClaimLost | ClaimLocked
"""Why a settlement or an extension was not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of a task, as it stands in the history."""

    claim_id: UUID
    number: int
    started_at: datetime | None
    ended_at: datetime
    outcome: str
    state: State
    worker: str
    duration: timedelta | None = None
    delay: timedelta | None = None
    error_class: str | None = None
    error: str | None = None
    explanation: Mapping[str, Any] | None = None
    stack: Sequence[Raised] = ()
    """Where the exception came from: the raised one, then what led to it."""
    version: str | None = None
    """Of the code that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What a person or a system did to a task: redriven, cancelled, resolved, returned; by whom and why."""

    at: datetime
    act: str
    actor: str
    reason: str


def json_writer(*, ensure_ascii: bool) -> Callable[[Any], str]:
    """`json.dumps(value, ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"))`, in a fifth of the time for a small value.

    Python makes an encoder for each call, and within it another of C, which takes longer than to encode. What refers to itself is a
    `RecursionError` here.
    """
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"))
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]  # the stubs do not know it
    if make is None:  # pragma: no cover - a Python without it
        return encoder.encode
    text = json.encoder.encode_basestring_ascii if ensure_ascii else json.encoder.encode_basestring
    chunks = make(None, encoder.default, text, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


_encode = json_writer(ensure_ascii=False)


def encode_payload(payload: Any, bytes_max: int = PAYLOAD_BYTES_MAX, *, called: str = "payload") -> str:
    """The payload, or what else it is `called`, as JSON text, or a `PayloadError` that says where it stops being JSON."""
    try:
        text = _encode(payload)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"the {called} is not JSON: {error}; use dicts with text keys, lists, text, finite numbers, booleans, None"
        ) from error
    if size > bytes_max:
        raise PayloadError(
            f"the {called} is {size:,} bytes, more than {bytes_max:,}: store it elsewhere and add a reference"
        )
    return text


def same_json(one: Any, other: Any) -> bool:
    """Whether two payloads are the same once they are JSON: a tuple is a list there, 1.0 is 1, and 1e23 is what it says."""
    return bool(_as_json(one) == _as_json(other))


def _as_json(payload: Any) -> Any:
    # As decimals: a column may give the digits of 1e23 back, and the float is another number by a few millions.
    return json.loads(json.dumps(payload, default=str), parse_float=Decimal)


def check_text(name: str, text: str, chars_max: int) -> str:
    """Return the text if it is neither empty, too long nor unstorable, else raise `UsageError`."""
    if not isinstance(text, str) or not text or len(text) > chars_max:
        raise UsageError(f"{name} must be 1 to {chars_max} characters of text, not {text!r:.80}")
    try:
        storable = "\0" not in text and (text.isascii() or bool(text.encode()))
    except UnicodeEncodeError:
        storable = False
    if not storable:
        raise UsageError(f"{name} holds a character that no database stores: {text!r:.80}")
    return text


def check_gate(name: str) -> str:
    """Return the name of a gate if it can be one, else raise `UsageError`."""
    if check_text("gate", name, GATE_CHARS_MAX).startswith(PAUSED_KIND):
        raise UsageError(f"{name!r:.80} is a name for the pause of a kind: let the gate's name begin with another word")
    return name
