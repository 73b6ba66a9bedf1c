"""Gates as items: what `core.gates` computes, the slots that are taken, and when somebody must look at a gate's line. Pure.

A gate's item is read, asked by the rules of `core.gates`, and put in the place of the one with the version that was seen. Who holds a
slot is written down by the fence of the claim, with the end of its lease: the slots of a worker that was killed come back by themselves.

A part that is due and that its gate keeps back is *parked*: it stands in the gate's line. The gate's item says when somebody must look
at that line, and is in the index of what must be looked at until then (`look_of`). Whoever parks writes that down first (`lined_up`).
An index is a little behind, and whoever said that it will park may not have done so yet: so a line that is found empty is looked at
again, after as long as somebody last lined up, and forgotten only after `FORGET_LINE`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from redrive.core.decide import Settlement
from redrive.core.gate_rules import GateRule
from redrive.core.gates import BreakerState, Gate, claimed, fence_of, settled, shut_for, state_of, sum_up
from redrive.core.pauses import is_of_kinds
from redrive.core.task import GateSeen
from redrive.errors import UsageError
from redrive.ledgers.aws.attributes import Item, Key, from_iso, from_item, from_micros, to_iso, to_micros
from redrive.ledgers.aws.expressions import Action, put_new, put_over
from redrive.ledgers.aws.heads import look_text

LOOK_SOON = timedelta(seconds=0.5)
"""How soon others look at a line from which something may go; whoever has made that possible looks at once."""
LOOK_AGAIN_MIN = timedelta(seconds=1)
LOOK_AGAIN_MAX = timedelta(minutes=5)
"""How soon, and how late, a line that was found empty is looked at again."""
FORGET_LINE = timedelta(minutes=15)
"""How long after somebody last lined up nobody looks any more: longer than any write that is still under way."""
LINE_UP_AGAIN = timedelta(seconds=1)
"""How often it is written down anew that somebody lines up."""
CONCURRENCY_MAX = 1_000
"""The most slots of a gate: each holder of some is written down in its item, which is paid for by its size."""
DEED = "gate:"
_INSTANTS = ("since", "probe_at", "ramp_at", "window_at", "opens_at", "paused_at", "paused_until")
_NUMBERS = ("ramp_started", "trips", "probes", "tries", "fails", "tries_before", "fails_before", "refused")
_TEXTS = ("paused_by", "reason")
_LIMITS = ("concurrency", "failures", "share")
_SPANS = ("within", "probe")


class Slot(NamedTuple):
    """The slots that one claim has taken of a gate, and until when they are its own."""

    taken: int
    until: datetime


class GateItem(NamedTuple):
    """A gate as its item has it."""

    gate: Gate
    """With what is held by slots that are not over."""
    slots: Mapping[str, Slot] = {}
    lined_up_at: datetime | None = None
    """When somebody last wrote down that something will be parked."""
    has_line: bool = False
    """Whether the line was not empty when somebody last looked or lined up."""
    look_at: datetime | None = None
    mark: str = ""
    """Of the last write: by it whoever wrote knows its own."""


class RuleItem(NamedTuple):
    """Limits, and who set them."""

    rule: GateRule
    set_by: str
    reason: str
    set_at: datetime
    mark: str


# --- where they are kept --------------------------------------------------------------------------------------------------


def gate_key(ledger: str, name: str) -> Key:
    """Where a gate is kept; pauses of kinds are on the board."""
    return (board_of(ledger), name) if is_of_kinds(name) else (f"G#{ledger}#{name}", "G")


def board_of(ledger: str) -> str:
    """Where what every worker asks for all the time is kept, in one question: limits by their patterns, and pauses of kinds by their names."""
    return f"GB#{ledger}"


def deeds_key(ledger: str, name: str) -> Key:
    """Where it is counted what people did to a gate, or to the limits of a pattern."""
    return f"G#{ledger}#{name}", "D"


def deed_of(name: str) -> str:
    """What the audit log calls a gate."""
    return f"{DEED}{name}"


def gate_named(id: object) -> str | None:
    """The gate that the audit log calls so; None if it is the name of something else."""
    return str(id).removeprefix(DEED) if str(id).startswith(DEED) else None


def shelf_of(ledger: str) -> str:
    """Where in the index of what must be looked at the gates stand that have a line."""
    return f"gates#{ledger}"


def listing_of(ledger: str, *, holds: bool) -> str:
    """The list of gates that hold, return or are paused, or that of the others."""
    return f"gates#{ledger}#{0 if holds else 1}"


# --- items ----------------------------------------------------------------------------------------------------------------


def slot_name(fence: UUID) -> str:
    """How the holder of slots is written."""
    return fence.hex[:16]


def gate_from(item: Item | None, name: str, now: datetime) -> GateItem:
    """The gate that an item holds; one that lets everything through where there is none."""
    if not item:
        return GateItem(Gate.new(name, now))
    values = from_item(item)
    slots = {holder: Slot(one["n"], from_micros(one["u"])) for holder, one in values.get("slots", {}).items()}
    slots = {holder: slot for holder, slot in slots.items() if slot.until > now}
    given: dict[str, Any] = {one: from_micros(values[one]) for one in _INSTANTS if one in values}
    given |= {one: values[one] for one in (*_NUMBERS, *_TEXTS) if one in values}
    gate = Gate(
        **given,
        name=name,
        turn_at=given["since"],
        tokens_at=given["since"],
        version=values["ver"],
        state=BreakerState(values["breaker"]),
        held=sum(slot.taken for slot in slots.values()),
        probe_claim=UUID(values["probe_claim"]) if "probe_claim" in values else None,
    )
    return GateItem(
        gate,
        slots,
        from_micros(values["lined_up_at"]) if "lined_up_at" in values else None,
        "has_line" in values,
        from_micros(int(values["look_at"])) if "look_at" in values else None,
        values["mark"],
    )


def gate_action(ledger: str, before: GateItem, after: GateItem) -> Action:
    """Put a gate in the place of the one that was seen."""
    gate, name, look_at = after.gate, after.gate.name, after.look_at
    values: dict[str, Any] = {
        "gate": name,
        "ver": before.gate.version + 1,
        "breaker": gate.state.value,
        "probe_claim": None if gate.probe_claim is None else str(gate.probe_claim),
        "slots": {holder: {"n": slot.taken, "u": to_micros(slot.until)} for holder, slot in after.slots.items()}
        or None,
        "lined_up_at": None if after.lined_up_at is None else to_micros(after.lined_up_at),
        "has_line": 1 if after.has_line else None,
        "mark": after.mark,
    }
    for one in _INSTANTS:
        instant = getattr(gate, one)
        values[one] = None if instant is None else to_micros(instant)
    values |= {one: getattr(gate, one) or None for one in (*_NUMBERS, *_TEXTS)}
    if not is_of_kinds(name):
        values |= {"listing": listing_of(ledger, holds=holds(gate)), "listing_at": name}
        if look_at is not None:
            values |= {"due_shard": shelf_of(ledger), "look_at": look_text(look_at)}
    key = gate_key(ledger, name)
    return put_new(key, values) if before.gate.version == 0 else put_over(key, values, "ver", before.gate.version)


def holds(gate: Gate) -> bool:
    """Whether a gate may do anything but let tasks through: people see these first. What time ends is not seen here."""
    return gate.state is not BreakerState.FLOWING or gate.paused_at is not None or gate.opens_at is not None


def rule_from(item: Item) -> RuleItem:
    """The limits that an item holds."""
    values = from_item(item)
    limits: dict[str, Any] = {one: values[one] for one in _LIMITS if one in values}
    limits |= {one: timedelta(seconds=values[f"{one}_s"]) for one in _SPANS}
    rule = GateRule(**limits)
    return RuleItem(rule, values["set_by"], values.get("reason", ""), from_iso(values["set_at"]), values["mark"])


def rule_action(ledger: str, pattern: str, before: RuleItem | None, after: RuleItem) -> Action:
    """Put limits in the place of those that were seen."""
    rule = after.rule
    values = {one: getattr(rule, one) for one in _LIMITS}
    values |= {f"{one}_s": getattr(rule, one).total_seconds() for one in _SPANS}
    values |= {"set_by": after.set_by, "reason": after.reason, "set_at": to_iso(after.set_at), "mark": after.mark}
    key = board_of(ledger), pattern
    return put_new(key, values) if before is None else put_over(key, values, "mark", before.mark)


def check_limits(ledger: str, rule: GateRule) -> None:
    """Refuse what a gate cannot do here."""
    if rule.rate is not None or rule.budget is not None:
        raise UsageError(
            f"gates of {ledger!r} are kept in DynamoDB and have no rate and no budget: "
            "limit how many run at once (concurrency), and set a breaker"
        )
    if rule.concurrency is not None and rule.concurrency > CONCURRENCY_MAX:
        raise UsageError(
            f"gates of {ledger!r} are kept in DynamoDB, where up to {CONCURRENCY_MAX:,} run at once, not "
            f"{rule.concurrency:,}: set less, or no limit"
        )


# --- what happens to a gate -----------------------------------------------------------------------------------------------


def seen_of(item: GateItem, fence: UUID) -> GateSeen:
    """What a claim has seen of its gate."""
    gate = item.gate
    return GateSeen(fence, gate.state is BreakerState.TRIPPED, gate.trips, gate.refused)


def is_noted(item: GateItem, rule: GateRule, now: datetime) -> bool:
    """Whether claims behind this gate are written down in it: not where nothing depends on it."""
    return rule.concurrency is not None or state_of(item.gate, rule, now) is not item.gate.state or (
        item.gate.state is not BreakerState.FLOWING and rule.failures is not None
    )  # fmt: skip


def entered(item: GateItem, rule: GateRule, now: datetime, fence: UUID, taken: int, until: datetime) -> GateItem:
    """The gate after a claim took so many slots, until its lease ends."""
    gate = claimed(item.gate, rule, now, fence, first_tries=taken, retries=0)
    before = item.slots.get(slot_name(fence), Slot(0, until))
    slots = {**item.slots, slot_name(fence): Slot(before.taken + taken, max(before.until, until))}
    return item._replace(gate=gate, slots=slots)


def left(item: GateItem, freed: Mapping[str, int]) -> GateItem:
    """The gate after claims gave slots back, by their holders."""
    slots = {
        holder: slot._replace(taken=slot.taken - freed.get(holder, 0))
        for holder, slot in item.slots.items()
        if slot.taken > freed.get(holder, 0)
    }
    probe = item.gate.probe_claim
    if probe is not None and slot_name(probe) in item.slots.keys() - slots.keys():
        probe = None
    held = sum(slot.taken for slot in slots.values())
    return item._replace(gate=replace(item.gate, held=held, probe_claim=probe), slots=slots)


def answered(item: GateItem, rule: GateRule, now: datetime, settlements: Sequence[Settlement]) -> GateItem | None:
    """The gate after some of its claims were settled; None where it need not know.

    What was lost with its worker says nothing, unless it was the probe, and its slots are over.
    """
    freed: dict[str, int] = {}
    for one in settlements:
        holder = slot_name(fence_of(one.claim))
        freed[holder] = freed.get(holder, 0) + 1
    if all(one.claim.abandoned is not None and one.claim.claim_id != item.gate.probe_claim for one in settlements):
        return None
    gate = settled(item.gate, rule, now, sum_up(settlements, item.gate.probe_claim))
    after = left(item._replace(gate=gate), freed)
    if rule.failures is not None or after.slots != item.slots:
        return after
    same = (gate.opens_at, gate.refused) == (item.gate.opens_at, item.gate.refused)
    return None if same else after


def extended(item: GateItem, holders: Iterable[str], until: datetime) -> GateItem | None:
    """The gate with more time for these holders; None where none of them holds a slot."""
    mine = [holder for holder in holders if holder in item.slots]
    slots = {holder: item.slots[holder]._replace(until=max(item.slots[holder].until, until)) for holder in mine}
    return item._replace(slots={**item.slots, **slots}) if slots else None


def lined_up(item: GateItem, now: datetime) -> GateItem | None:
    """The gate, whose line is going to have something; None where that was just written down."""
    if item.has_line and item.lined_up_at is not None and now - item.lined_up_at < LINE_UP_AGAIN:
        return None
    return item._replace(has_line=True, lined_up_at=now)


def look_of(item: GateItem, rule: GateRule, now: datetime) -> datetime | None:
    """When somebody must look at the line of a gate, at the latest; None where there is none, or a person will say.

    An earlier look that is still to come stays, which saves two writes of an index: it may be for nothing.
    """
    if item.lined_up_at is None or (now - item.lined_up_at >= FORGET_LINE and not item.has_line):
        return None
    wanted = _wanted_look(item, rule, now)
    kept = item.look_at
    return kept if kept is not None and wanted is not None and now < kept <= wanted else wanted


def _wanted_look(item: GateItem, rule: GateRule, now: datetime) -> datetime | None:
    assert item.lined_up_at is not None
    shut = shut_for(item.gate, rule, now)
    if shut is None:
        ago = min(max(now - item.lined_up_at, LOOK_AGAIN_MIN), LOOK_AGAIN_MAX)
        return now + (LOOK_SOON if item.has_line else ago)
    if shut[1] is not None or item.gate.is_paused(now):
        return shut[1]
    return min((slot.until for slot in item.slots.values()), default=now)


def forgets_line(item: GateItem, now: datetime) -> GateItem:
    """The gate after its line was found empty."""
    assert item.lined_up_at is not None
    gone = now - item.lined_up_at >= FORGET_LINE
    return item._replace(has_line=False, lined_up_at=None if gone else item.lined_up_at)


def shown(item: GateItem, rule: GateRule, now: datetime) -> Gate:
    """The gate with what it waits for, as whoever asks for it wants to know."""
    shut = shut_for(item.gate, rule, now)
    waits_for, wake_at = shut or (None, None)
    return replace(item.gate, ready=shut is None, waits_for=waits_for, wake_at=wake_at)
