"""From a head and what is to happen to it, to the write that does it. Pure: no clock, no network, and tried again as often as needed.

Every write of parts has the condition that the head's version is the one that was seen, and raises it. The fence of the part and its
budget are conditions of their own: a second lock, should anybody ever write without the first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from redrive.core.decide import Settlement
from redrive.core.failure import describe_error
from redrive.core.states import Act, State, sources
from redrive.core.task import is_alone
from redrive.ledgers.aws.attributes import EPOCH, to_iso, to_micros
from redrive.ledgers.aws.expressions import Action, Update, delete, put
from redrive.ledgers.aws.follow import Change, FailedPart, Follower
from redrive.ledgers.aws.heads import (
    KEPT,
    OPEN,
    TOMB,
    UNDECODED,
    Head,
    Part,
    UnreadableHeadError,
    head_key,
    index_values,
    line_of,
    look_after,
    look_swept,
    look_text,
    parked_key,
    shard_of,
    split_id,
    to_map,
)
from redrive.ledgers.aws.history import attempt_action, counted, deed_action, failure_action
from redrive.ports import Actor, Return


def revise(
    head: Head,
    parts: Mapping[str, Part],
    follower: Follower,
    now: datetime,
    slack: timedelta,
    *,
    keep_look: bool = False,
    swept: timedelta | None = None,
    failures: Sequence[FailedPart] = (),
    beside: Sequence[Action] = (),
    facts: Mapping[str, Any] | None = None,
) -> Change:
    """The change that gives a head these parts, and its owner's new facts, with all that follows from them.

    A sweep says after how long it wants to see again what it has `swept`. What is parked from now on enters the line of its gate, and what
    is parked no more leaves it, in the same write.
    """
    parts = {
        number: part._replace(parked=part.parked and part.state is State.WAITING) for number, part in parts.items()
    }
    all_parts, given = {**head.parts, **parts}, {**head.facts, **(facts or {})}
    try:
        followed = follower.follow(head._replace(facts=given), all_parts, now, failures)
    except UNDECODED as error:  # the facts of the head are none that whoever follows it knows
        raise UnreadableHeadError(head.id, describe_error(error), list(head.parts)) from error
    told = {name: value for name, value in {**given, **followed.facts}.items() if value is not None}
    after = head._replace(
        parts=all_parts,
        facts=told,
        version=head.version + 1,
        look_at=look_after(all_parts.values(), slack, head.look_at, keep=keep_look)
        if swept is None
        else look_swept(all_parts.values(), now, slack, swept),
    )
    update = Update(head_key(head.id)).require("ver", "=", head.version).set("ver", after.version)
    for number, part in parts.items():
        _change_part(update, number, head.parts[number], part)
    old, new = {**head.facts, **index_values(head)}, {**told, **index_values(after)}
    if followed.kept is not None and not any(part.state in OPEN for part in all_parts.values()):
        new |= {"due_shard": f"{KEPT}#{shard_of(head.id)}", "look_at": followed.kept}
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            update.set(name, new.get(name))
    counts = counted({number: head.parts[number] for number in parts}, parts)
    for name, amount in followed.counts.items():
        counts[name] = counts.get(name, 0) + amount
    return Change(head, after, now, [update.action(), *beside, *_lined_up(head, parts)], counts, failures)


def _lined_up(head: Head, parts: Mapping[str, Part]) -> list[Action]:
    """What puts parts into the line of their gate, and takes them out of it."""
    actions = []
    for number, part in parts.items():
        was, place = head.parts[number].parked, parked_key(head.id, number)
        if part.parked and not was:
            actions.append(put(place, {"due_shard": line_of(part.target), "look_at": look_text(part.due_at or EPOCH)}))
        elif was and not part.parked:
            actions.append(delete(place))
    return actions


def buried(head: Head, now: datetime, counts: Mapping[str, int]) -> Change:
    """The change that makes a tombstone of a head: nobody finds it any more but whoever clears it away."""
    update = Update(head_key(head.id)).require("ver", "=", head.version).set("ver", head.version + 1).set("tomb", 1)
    for name in sorted({*head.facts, "parts", "listing", "listing_at"}):
        update.set(name, None)
    update.set("due_shard", f"{TOMB}#{shard_of(head.id)}").set("look_at", to_iso(now))
    amounts = counted(head.parts, {})
    for name, amount in counts.items():
        amounts[name] = amounts.get(name, 0) + amount
    after = head._replace(parts={}, facts={}, version=head.version + 1, look_at=None, tombstone=True)
    return Change(head, after, now, [update.action()], amounts)


def _change_part(update: Update, number: str, old: Part, new: Part) -> None:
    update.set(("parts", number), to_map(new))
    if old.fence is not None:
        update.require(("parts", number, "cl"), "=", str(old.fence))
    if old.state is new.state is State.CLAIMED and old.lease_until is not None:
        # An extension raises no version: whoever takes over a lease must not take one that was just extended.
        update.require(("parts", number, "lu"), "=", to_micros(old.lease_until))
    if new.retries > old.retries and old.unreadable is None:
        update.require(("parts", number, "n"), "<", new.retries_max)


# --- claiming -----------------------------------------------------------------------------------------------------------


def claimed(head: Head, numbers: Iterable[str], fence: UUID, now: datetime, lease: timedelta) -> dict[str, Part]:
    """These parts, held by whoever has the fence."""
    return {
        number: head.parts[number]._replace(
            state=State.CLAIMED, due_at=None, fence=fence, claimed_at=now, lease_until=now + lease,
            claims=head.parts[number].claims + 1, updated_at=now, parked=False,
        )
        for number in numbers
    }  # fmt: skip


def parked(head: Head, numbers: Iterable[str]) -> dict[str, Part]:
    """These parts, kept back by their gates. Nothing else of them changes: they are neither charged nor put off."""
    return {number: head.parts[number]._replace(parked=True) for number in numbers}


def taken_over(head: Head, numbers: Iterable[str], now: datetime, lease: timedelta, fence: UUID) -> dict[str, Part]:
    """These parts, whose holders are lost, with a lease for whoever settles them.

    The fence stays, since its claim ends in one attempt; one that cannot be read gives way to a new one.
    """
    return {
        number: head.parts[number]._replace(lease_until=now + lease, fence=head.parts[number].fence or fence)
        for number in numbers
    }


# --- settling -----------------------------------------------------------------------------------------------------------


class SettledParts(NamedTuple):
    """What settlements make of a head: its new parts, what is written beside, and which were lost."""

    parts: dict[str, Part]
    beside: list[Action]
    failures: list[FailedPart]
    written: list[Settlement]
    lost: list[Settlement]


def settled(
    head: Head | None,
    settlements: Iterable[Settlement],
    worker: str,
    now: datetime,
    count: Callable[[Settlement], int],
) -> SettledParts:
    """Each settlement where its claim still holds; `count` is what it leaves in the part."""
    made = SettledParts({}, [], [], [], [])
    for one in settlements:
        named = split_id(one.claim.task.id)
        part = None if head is None or named is None else head.parts.get(named[1])
        if head is None or named is None or part is None or part.fence != one.claim.claim_id or named[1] in made.parts:
            made.lost.append(one)
            continue
        number = named[1]
        error = None if one.outcome == "snoozed" else one.error
        new = _settled_part(part, one, now, count(one), failed=part.failed or error is not None)
        made.parts[number] = new
        made.beside.append(attempt_action(head, number, one, worker, now))
        failure = failure_action(head, number, new, now, error)
        if failure is not None:
            made.beside.append(failure)
        if one.explanation is not None:
            ended_at = None if one.claim.abandoned is not None else one.claim.claimed_at + one.elapsed
            made.failures.append(FailedPart(number, one.error, ended_at))
        made.written.append(one)
    return made


def _settled_part(part: Part, one: Settlement, now: datetime, count: int, *, failed: bool) -> Part:
    lost = one.outcome == "lease_expired"
    return part._replace(
        state=one.state,
        retries=count,
        due_at=None if one.delay is None else now + one.delay,
        fence=None,
        lease_until=None,
        updated_at=now,
        # A release is no end: the run was only put off.
        lost=lost or (part.lost and one.outcome == "released"),
        lost_alone=part.lost_alone + (lost and is_alone(one.claim.claim_id)),
        failed=failed and one.state is not State.DONE,
    )


# --- acts of people and systems -----------------------------------------------------------------------------------------


class ActedParts(NamedTuple):
    """What an act makes of a head: its new parts, and what is written beside."""

    parts: dict[str, Part]
    beside: list[Action]


def acted(
    ledger: str, head: Head, numbers: Iterable[str], act: Act, state: State, actor: Actor, deed: str, now: datetime
) -> ActedParts:
    """Those of the parts that the act may lead to the state."""
    may = sources(act, state)
    made = ActedParts({}, [])
    for number in sorted(set(numbers)):
        part = head.parts.get(number)
        if part is None or part.state not in may:
            continue
        new = part._replace(
            state=state, due_at=None, updated_at=now, deed=deed, failed=part.failed and state is not State.DONE
        )
        if state is State.WAITING:
            new = new._replace(due_at=now, retries=0, redrives=part.redrives + 1)
        _note(made, ledger, head, number, new, act, actor, deed, now)
    return made


def returned(
    ledger: str, head: Head, returns: Mapping[str, Return], actor: Actor, deed: str, now: datetime
) -> ActedParts:
    """Those of the parts that have ended, waiting again with the larger of both counts."""
    may = sources(Act.RETURN, State.WAITING)
    made = ActedParts({}, [])
    for number, one in sorted(returns.items()):
        part = head.parts.get(number)
        if part is None or part.state not in may:
            continue
        retries = max(part.retries, min(one.failures, part.retries_max))
        new = part._replace(
            state=State.WAITING, due_at=now + one.delay, updated_at=now, deed=deed, retries=retries,
            failed=part.failed or one.error is not None,
        )  # fmt: skip
        _note(made, ledger, head, number, new, Act.RETURN, actor, deed, now, one.error)
    return made


def _note(
    made: ActedParts,
    ledger: str,
    head: Head,
    number: str,
    new: Part,
    act: Act,
    actor: Actor,
    deed: str,
    now: datetime,
    error: str | None = None,
) -> None:
    made.parts[number] = new
    made.beside.append(deed_action(ledger, head, number, deed, act.value, actor, now))
    failure = failure_action(head, number, new, now, error)
    if failure is not None:
        made.beside.append(failure)
