"""What is written beside a head: attempts, failures, deeds, counters, minutes. Pure.

A failure is there only for a task that has failed and is not done, so that a task which goes well pays for none of the indexes by
which people find what went wrong.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from redrive.core.cause import cause_of
from redrive.core.decide import Settlement
from redrive.core.failure import redact
from redrive.core.states import State
from redrive.core.task import Attempt, Claim, Deed
from redrive.ledgers.aws.attributes import Item, Key, from_iso, from_item, to_iso
from redrive.ledgers.aws.expressions import Action, Update, delete, put, put_new
from redrive.ledgers.aws.heads import LETTERS, Head, Part, shard_of, task_id
from redrive.ledgers.build import build
from redrive.ports import Actor, WholeAct

ENDPOINT_SHARDS = 8
CAUSE_SHARDS = 8
COUNTER_SHARDS = 64
MINUTE_SHARDS = 8
ROLLUP_DAYS = 400
MINUTES = "minutes"
"""The list of minutes that are not folded yet."""
_ENDED_COUNTERS = {State.DONE: "d_done", State.DEAD: "d_dead", State.CANCELLED: "d_cancelled"}
OPEN_COUNTER = "d_open"
_COUNTERS = {state: _ENDED_COUNTERS.get(state, OPEN_COUNTER) for state in State}


# --- attempts -----------------------------------------------------------------------------------------------------------


def attempt_key(head_id: str, number: str, claims: int) -> Key:
    """Where the attempt of a claim is kept: known before it is written, since claims are counted."""
    return f"E#{head_id}", f"A#{number}#{claims:06}"


def started_at(claim: Claim) -> datetime | None:
    """The start of the run that ended: of the lost one, if this claim only buries it."""
    return claim.claimed_at if claim.abandoned is None else claim.abandoned.claimed_at


def attempt_action(head: Head, number: str, settlement: Settlement, worker: str, now: datetime) -> Action:
    """Write the attempt of a claim, if there is none."""
    part, claim, explanation = head.parts[number], settlement.claim, settlement.explanation
    began, id_ = started_at(claim), task_id(head.id, number)
    values = {
        "claim_id": str(claim.claim_id),
        "try_number": claim.number,
        "outcome": settlement.outcome,
        "att_state": settlement.state.value,
        "worker": worker,
        "version": build(),
        "started_at": None if began is None else to_iso(began),
        "ended_at": to_iso(now),
        "duration_s": settlement.elapsed.total_seconds(),
        "delay_s": None if settlement.delay is None else settlement.delay.total_seconds(),
        "error_class": None if explanation is None else explanation.error_class.value,
        "att_error": settlement.error,
        "explanation": None if explanation is None else explanation.json_text(),
        "endpoint_id": part.target,
        "endpoint_key": f"A#{part.target}#{shard_of(id_) % ENDPOINT_SHARDS}",
        "endpoint_at": f"{to_iso(now)}#{id_}",
    }
    return put_new(attempt_key(head.id, number, part.claims), values)


def attempt_from(item: Item) -> Attempt:
    """The attempt that an item holds."""
    values = from_item(item)
    began, delay, explanation = values.get("started_at"), values.get("delay_s"), values.get("explanation")
    return Attempt(
        claim_id=UUID(values["claim_id"]),
        number=values["try_number"],
        started_at=None if began is None else from_iso(began),
        ended_at=from_iso(values["ended_at"]),
        outcome=values["outcome"],
        state=State(values["att_state"]),
        worker=values["worker"],
        version=values.get("version"),
        duration=timedelta(seconds=values["duration_s"]),
        delay=None if delay is None else timedelta(seconds=delay),
        error_class=values.get("error_class"),
        error=values.get("att_error"),
        explanation=None if explanation is None else json.loads(explanation),
    )


def stack_key(id: str) -> Key:
    """Where a traceback is kept that attempts name."""
    return f"ST#{id}", "STACK"


def stack_action(id: str, frames: str, now: datetime) -> Action:
    """Keep a traceback, or that it was seen again."""
    return put(stack_key(id), {"frames": frames, "seen_at": to_iso(now)})


# --- failures -----------------------------------------------------------------------------------------------------------


def failure_key(head_id: str, number: str) -> Key:
    """Where the failure of a task is kept."""
    return f"E#{head_id}", f"F#{number}"


def failure_action(head: Head, number: str, part: Part, now: datetime, error: str | None = None) -> Action | None:
    """What becomes of the failure item of a part that has changed; an error is a new one. None where nothing does."""
    if part.state is State.DONE:
        return delete(failure_key(head.id, number)) if head.parts[number].failed else None
    if error is None and not head.parts[number].failed:
        return None
    id_ = task_id(head.id, number)
    update = Update(failure_key(head.id, number)).set("part_state", LETTERS[part.state]).set("endpoint_id", part.target)
    if error is not None:
        update.set("last_error", error).set("since", to_iso(now)).set("cause", cause_of(error).id)
    dead = part.state is State.DEAD
    update.set("listing", f"dead#{shard_of(head.id)}" if dead else None).set("listing_at", id_ if dead else None)
    if dead and error is not None:
        update.set("cause_key", f"{cause_of(error).id}#{shard_of(id_) % CAUSE_SHARDS}")
        update.set("cause_at", f"{to_iso(now)}#{id_}")
    elif not dead:
        update.set("cause_key", None).set("cause_at", None)
    ended = part.state is State.CANCELLED
    update.set("endpoint_key", None if ended else f"F#{part.target}#{LETTERS[part.state]}")
    update.set("endpoint_at", None if ended else id_)
    return update.action()


def cause_partition(ledger: str) -> str:
    """Where the causes are kept that tasks of a ledger died of."""
    return f"CA#{ledger}"


def cause_action(ledger: str, error: str, since: datetime) -> Action:
    """Write down what tasks died of, if nobody has. How many there are is counted by a census."""
    cause, at = cause_of(error), to_iso(since)
    values = {"cause_text": cause.text, "cause_sample": redact(error), "first_seen": at, "last_seen": at}
    return put_new((cause_partition(ledger), cause.id), values)


# --- deeds --------------------------------------------------------------------------------------------------------------


def deed_action(ledger: str, head: Head, number: str, deed: str, act: str, actor: Actor, now: datetime) -> Action:
    """Write who did what to a task, and why. The version puts deeds in their order, also those of one instant."""
    place = f"E#{head.id}", f"H#{number}#{head.version:010}#{deed}"
    return audit_action(place, ledger, task_id(head.id, number), deed, act, actor, now)


def audit_action(place: Key, ledger: str, id: str, deed: str, act: str, actor: Actor, now: datetime) -> Action:
    """Write who did what, to a task or to what else people act on, at a place beside it and on the list of its month, or of its act.

    `ledger` is what the audit calls such things, `id` which one of them.
    """
    listing = audit_listing(now) if actor.whole is None else act_listing(actor.whole.id)
    return put(place, _said(ledger, act, actor, now) | {"task_id": id} | _listed(listing, now, deed))


def act_action(ledger: str, act: str, actor: Actor, whole: WholeAct, now: datetime) -> Action:
    """Write down that an act on several has begun, on the list of its month. What it changed is on a list of its own."""
    asked = None if whole.asked is None else json.dumps(whole.asked, ensure_ascii=False)
    values = {"whole": whole.id, "asked": asked} | _listed(audit_listing(now), now, whole.id)
    return put_new((f"ACT#{whole.id}", "A"), _said(ledger, act, actor, now) | values)


def _said(ledger: str, act: str, actor: Actor, now: datetime) -> dict[str, Any]:
    return {
        "act": act,
        "actor": actor.name,
        "reason": actor.reason,
        "origin": actor.origin or None,
        "done_at": to_iso(now),
        "ledger": ledger,
    }


def _listed(listing: str, now: datetime, mark: str) -> dict[str, str]:
    return {"listing": listing, "listing_at": f"{to_iso(now)}#{mark}"}


def act_listing(whole: str) -> str:
    """The list of all deeds of one act."""
    return f"act#{whole}"


def audit_listing(month: datetime) -> str:
    """The list of all deeds of a month."""
    return f"audit#{to_iso(month)[:7]}"


def deed_from(item: Item) -> Deed:
    """The deed that an item holds."""
    values = from_item(item)
    return Deed(
        at=from_iso(values["done_at"]), act=values["act"], actor=values["actor"], reason=values.get("reason", "")
    )


# --- counters and minutes -----------------------------------------------------------------------------------------------


def counted(before: Mapping[str, Part], after: Mapping[str, Part]) -> dict[str, int]:
    """What a change of parts adds to the counters of their owner. All of them together count every task once."""
    amounts: dict[str, int] = {}
    for parts, step in ((before, -1), (after, 1)):
        for part in parts.values():
            amounts[_COUNTERS[part.state]] = amounts.get(_COUNTERS[part.state], 0) + step
    return {name: amount for name, amount in amounts.items() if amount}


def counter_action(user_id: str, shard: int, amounts: Mapping[str, int]) -> Action:
    """Add to the counters of a user, in one of their shards."""
    update = Update((f"C#{user_id}", f"{shard:02}"))
    for name, amount in amounts.items():
        update.add(name, amount)
    return update.action()


def ended_counts(counters: Mapping[str, Any]) -> dict[State, int]:
    """How many tasks have ended in which way, from counters that were added up."""
    return {state: int(counters.get(name, 0)) for state, name in _ENDED_COUNTERS.items()}


def minute_action(minute: datetime, shard: int, ledger: str, worker: str, amounts: Mapping[str, float]) -> Action:
    """Add to the minute of a worker, and list it until it is folded. How often was added tells whether it has changed since."""
    expires = int((minute + timedelta(days=ROLLUP_DAYS)).timestamp())
    update = Update((f"R#{to_iso(minute)}#{shard}", f"{ledger}#{worker}")).set("expires_at", expires).add("adds", 1)
    update.set("ledger", ledger).set("worker", worker).set("rolled_minute", to_iso(minute))
    update.set("listing", MINUTES).set("listing_at", f"{to_iso(minute)}#{shard}")
    for name, amount in amounts.items():
        if amount:
            update.add(name, amount)
    return update.action()
