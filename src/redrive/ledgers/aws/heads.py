"""Heads: items that hold what belongs together, each of its tasks as a part. Pure.

All deliveries of an event are parts of one head, so taking an event in, claiming its deliveries and folding them into its status are
changes of one item, and nobody ever sees them half done. A head has a version, which every change of its parts raises.

A part is written with short names, since DynamoDB bills by the kilobyte: `ep` target, `st` state, `n` retries, `mx` most of them, `due`, `cl`
fence, `ca` claimed at, `lu` lease until, `seq` claims so far, `rd` redrives, `up` changed at, `lo` lost with its worker, `la` lost while
nothing ran beside it, `f` has a failure item, `dd` the deed that changed it last, `g` is parked behind its gate. What means nothing in a
state is not there.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from redrive.core.failure import describe_error
from redrive.core.states import TERMINAL, State
from redrive.core.task import Task, TaskId
from redrive.errors import LedgerError
from redrive.ledgers.aws.attributes import EPOCH, Item, Key, from_iso, from_item, from_micros, to_iso, to_micros

SHARDS = 16
"""Over how many keys of an index the heads are spread: one key takes a thousand writes per second."""
OPEN = frozenset({State.WAITING, State.CLAIMED})
LETTERS = {State.WAITING: "w", State.CLAIMED: "c", State.DONE: "d", State.DEAD: "x", State.CANCELLED: "k"}
STATES = {letter: state for state, letter in LETTERS.items()}
DUE, KEPT, TOMB = "due", "kept", "tomb"
"""Where heads stand in the index of what must be looked at: what is open, what may be forgotten some day, and what is being forgotten."""
PARKED = "G#"
NUMBER_WIDTH = 2
LOOK_WIDTH = 20
LOOK_AGAIN_MAX = timedelta(minutes=15)
"""How long a sweep puts off its next look at what is long due, at most."""
_OWN = frozenset(
    {"pk", "sk", "event_id", "user_id", "timestamp", "ver", "parts", "due_shard", "look_at", "listing", "listing_at", "tomb"}
)  # fmt: skip
"""Attributes that are the ledger's own; all others are facts, which belong to whoever made the head."""
UNDECODED = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What reading raises where something was written that is none of ours."""


class UnreadableHeadError(LedgerError):
    """A head that cannot be read: nobody knows what it is, so it is set aside, and costs no other."""

    def __init__(self, id: str, why: str, numbers: Sequence[str] = ()) -> None:
        self.id = id
        self.why = why
        self.numbers = numbers
        """The parts that it seems to have."""
        super().__init__(
            f"event {id} cannot be read: {why}. Correct the item with pk E#{id} and sk E; it is looked at again within an hour"
        )


class Part(NamedTuple):
    """One task of a head."""

    target: str
    state: State = State.WAITING
    retries: int = 0
    retries_max: int = 3
    due_at: datetime | None = None
    fence: UUID | None = None
    claimed_at: datetime | None = None
    """When it was last claimed; None if it never was."""
    lease_until: datetime | None = None
    claims: int = 0
    redrives: int = 0
    updated_at: datetime | None = None
    """When it last changed; for one that has ended, when it ended."""
    lost: bool = False
    """Whether its last run was lost with its worker."""
    lost_alone: int = 0
    failed: bool = False
    """Whether there is a failure item beside it."""
    deed: str | None = None
    parked: bool = False
    """Whether it is due and its gate keeps it back: it stands in the gate's line, and no sweep looks at it."""
    unreadable: str | None = None
    """What in it cannot be read: such a task is not run, it is dead."""
    kept: Mapping[str, Any] | None = None
    """What cannot be read as it was written, for whoever corrects it."""


class Head(NamedTuple):
    """An item with its parts, as it was read."""

    id: str
    user_id: str
    created_at: datetime
    parts: Mapping[str, Part]
    facts: Mapping[str, Any]
    version: int = 1
    look_at: datetime | None = None
    tombstone: bool = False


def head_key(id: str) -> Key:
    """Where a head is kept."""
    return f"E#{id}", "E"


def task_id(head_id: str, number: str) -> str:
    """The id of a task: it sorts by its head, and needs no look-up."""
    return f"{head_id}.{number}"


def split_id(id: TaskId) -> tuple[str, str] | None:
    """The head and the number of a task; None if this cannot be the id of one."""
    head_id, dot, number = str(id).rpartition(".")
    return (head_id, number) if dot and head_id and number.isdecimal() and len(number) >= NUMBER_WIDTH else None


def line_of(gate: str) -> str:
    """Where in the index of what must be looked at the parts stand that a gate keeps back, by when they were due."""
    return f"gate#{gate}"


def parked_key(head_id: str, number: str) -> Key:
    """Where it is written down that a part stands in the line of its gate."""
    return f"E#{head_id}", f"{PARKED}{number}"


def part_number(position: int) -> str:
    """The number of a part, which sorts as text as long as there are at most a hundred."""
    return f"{position:0{NUMBER_WIDTH}}"


def shard_of(id: str) -> int:
    """Which of the shards an item is in."""
    return zlib.crc32(id.encode()) % SHARDS


def to_map(part: Part) -> dict[str, Any]:
    """A part as it is written."""
    written = {
        "ep": part.target,
        "st": LETTERS[part.state],
        "n": part.retries,
        "mx": part.retries_max,
        "due": _micros(part.due_at),
        "cl": None if part.fence is None else str(part.fence),
        "ca": _micros(part.claimed_at),
        "lu": _micros(part.lease_until),
        "seq": part.claims,
        "rd": part.redrives or None,
        "up": _micros(part.updated_at),
        "lo": 1 if part.lost else None,
        "la": part.lost_alone or None,
        "f": 1 if part.failed else None,
        "dd": part.deed,
        "g": 1 if part.parked else None,
    }
    for name, value in (part.kept or {}).items():
        if name in _GUESSED or written[name] is None:
            written[name] = value
    return written


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not text")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


_CELLS: Mapping[str, tuple[str, Callable[[Any], Any], Any]] = {
    "ep": ("target", _text, ""),
    "n": ("retries", _count, 0),
    "mx": ("retries_max", _count, 0),
    "due": ("due_at", from_micros, None),
    "cl": ("fence", UUID, None),
    "ca": ("claimed_at", from_micros, None),
    "lu": ("lease_until", from_micros, None),
    "rd": ("redrives", _count, 0),
    "up": ("updated_at", from_micros, None),
    "la": ("lost_alone", _count, 0),
    "dd": ("deed", _same, None),
}
"""By their names: the field, how it is read, and what stands there if it cannot be."""
_NEEDED = ("ep", "n", "mx")
_GUESSED = frozenset({"ep", "n", "mx", "rd", "la"})
"""What nobody may overwrite with what only stands there because the real one cannot be read."""


def from_map(written: Mapping[str, Any]) -> Part:
    """The part that was written so. One cell that cannot be read is that part's failure; without state or claims nobody knows it."""
    fields: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, (field, read, instead) in _CELLS.items():
        if name in written or name in _NEEDED:
            try:
                fields[field] = read(written[name])
            except UNDECODED as error:
                fields[field], wrong[name] = instead, describe_error(error)
    part = Part(
        **fields,
        state=STATES[written["st"]],
        claims=_count(written["seq"]),
        lost="lo" in written,
        failed="f" in written,
        parked="g" in written,
    )
    if not wrong:
        return part
    why = "; ".join(f"{name!r} ({error})" for name, error in wrong.items())
    return part._replace(unreadable=why, kept={name: written[name] for name in wrong if name in written})


def _micros(instant: datetime | None) -> int | None:
    return None if instant is None else to_micros(instant)


def head_from(item: Item) -> Head:
    """The head that an item holds. Raises `UnreadableHeadError`."""
    try:
        return _head_from(item)
    except UNDECODED as error:
        numbers = sorted(item.get("parts", {}).get("M", {}))
        raise UnreadableHeadError(head_id(item), describe_error(error), numbers) from error


def head_id(item: Item) -> str:
    """The id of the head with this key."""
    return str(item["pk"]["S"]).removeprefix("E#")


def fence_in(item: Item | None, number: str) -> str | None:
    """The fence of a part, also where nothing else of the head can be read."""
    part = ((item or {}).get("parts", {}).get("M", {}).get(number) or {}).get("M", {})
    fence: str | None = part.get("cl", {}).get("S")
    return fence


def head_ids(items: Iterable[Item]) -> list[str]:
    """The ids of those items that are heads, by their keys."""
    return [head_id(item) for item in items if item["sk"]["S"] == "E"]


def _head_from(item: Item) -> Head:
    values = from_item(item)
    look_at = values.get("look_at") if values.get("due_shard", "").startswith(f"{DUE}#") else None
    return Head(
        id=_text(values["event_id"]),
        user_id=_text(values["user_id"]),
        created_at=from_iso(values["timestamp"]),
        parts={number: from_map(written) for number, written in sorted(values.get("parts", {}).items())},
        facts={name: value for name, value in values.items() if name not in _OWN},
        version=_count(values["ver"]),
        look_at=None if look_at is None else from_micros(int(look_at)),
        tombstone="tomb" in values,
    )


def head_values(head: Head) -> dict[str, Any]:
    """All attributes of a head but its key."""
    return {
        **head.facts,
        "event_id": head.id,
        "user_id": head.user_id,
        "timestamp": to_iso(head.created_at),
        "ver": head.version,
        "parts": {number: to_map(part) for number, part in head.parts.items()},
        **index_values(head),
    }


def index_values(head: Head) -> dict[str, str | None]:
    """What puts a head into the index of what is due and into the list of what is open; None where it does not belong."""
    is_open = any(part.state in OPEN for part in head.parts.values())
    shard = shard_of(head.id)
    return {
        "due_shard": None if head.look_at is None else f"{DUE}#{shard}",
        "look_at": None if head.look_at is None else look_text(head.look_at),
        "listing": f"open#{shard}" if is_open else None,
        "listing_at": head.id if is_open else None,
    }


def look_text(instant: datetime) -> str:
    """An instant that sorts as text."""
    return f"{to_micros(instant):0{LOOK_WIDTH}}"


def earliest(parts: Iterable[Part]) -> datetime | None:
    """When the first of the parts is due or loses its lease; None where nothing is open but what a gate keeps back."""
    return min((_ends_at(part) for part in parts if _is_looked_at(part)), default=None)


def _is_looked_at(part: Part) -> bool:
    """Whether somebody must look at a part some day: it is open, and no gate keeps it back."""
    return part.state in OPEN and not part.parked


def _ends_at(part: Part) -> datetime:
    """When a part that is open is due or loses its lease; long ago, where that cannot be read."""
    return (part.due_at if part.state is State.WAITING else part.lease_until) or EPOCH


def look_after(
    parts: Iterable[Part], slack: timedelta, before: datetime | None = None, *, keep: bool = False
) -> datetime | None:
    """When a sweep must look at the head. With `keep` an earlier look is left as it is, which saves two writes of an index."""
    first = earliest(parts)
    if first is None:
        return None
    wanted = first + slack
    return before if keep and before is not None and before <= wanted else wanted


def look_swept(parts: Iterable[Part], now: datetime, slack: timedelta, again: timedelta) -> datetime | None:
    """The same after a sweep: what is overdue has been sent another message, and is looked at `again` later.

    What has been overdue for longer is looked at after as long again, up to `LOOK_AGAIN_MAX`: where everything is late because there is
    too much of it, more messages would make it later.
    """
    looks = []
    for part in parts:
        if _is_looked_at(part):
            end = _ends_at(part)
            overdue = part.state is State.WAITING and end + slack <= now
            looks.append(now + max(again, min(now - end, LOOK_AGAIN_MAX)) if overdue else end + slack)
    return min(looks, default=None)


def waiting_parts(head: Head) -> dict[str, Part]:
    """The parts that wait for their time or for a worker, and not behind a gate."""
    return {number: part for number, part in head.parts.items() if part.state is State.WAITING and not part.parked}


def due_parts(head: Head, now: datetime) -> list[str]:
    """The parts that wait and are due, those that have waited longest first; not those that a gate keeps back."""
    waiting = [(part.due_at, number) for number, part in waiting_parts(head).items()]
    return [number for due_at, number in sorted((due or now, number) for due, number in waiting) if due_at <= now]


def lost_parts(head: Head, now: datetime, grace: timedelta) -> list[str]:
    """The parts that are held by somebody whose lease is over."""
    held = [(number, part) for number, part in head.parts.items() if part.state is State.CLAIMED]
    return [number for number, part in held if part.lease_until is None or part.lease_until + grace <= now]


def task_of(head: Head, number: str, kind: str, *, last_error: str | None = None) -> Task:
    """The task that a part stands for."""
    part, id_ = head.parts[number], task_id(head.id, number)
    payload = {
        "id": id_,
        "event_id": head.id,
        "endpoint_id": part.target,
        "user_id": head.user_id,
        "correlation_id": head.facts.get("correlation_id", ""),
    }
    return Task(
        id=id_,
        key=id_,
        kind=kind,
        payload=payload,
        state=part.state,
        failures=part.retries,
        failures_max=part.retries_max + 1,
        redrives=part.redrives,
        due_at=part.due_at,
        lease_until=part.lease_until,
        claimed_at=part.claimed_at,
        created_at=head.created_at,
        gate=part.target or None,
        updated_at=part.updated_at or head.created_at,
        ended_at=part.updated_at if part.state in TERMINAL else None,
        last_error=last_error,
    )


def said_of(head: Head, number: str) -> str | None:
    """What in a part cannot be read, and the remedy; None where all can."""
    why = head.parts[number].unreadable
    return why and f"delivery {task_id(head.id, number)} cannot be read: {why}. Correct its item, then redrive the task"
