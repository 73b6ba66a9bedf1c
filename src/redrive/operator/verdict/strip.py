"""The strip of figures below the sentences: eight numbers that are always in the same place."""

from datetime import timedelta

from redrive.core.states import State
from redrive.operator.gates import GateDoes
from redrive.operator.verdict.facts import Facts
from redrive.operator.verdict.values import Figure, LinkTo, Target, Tone
from redrive.operator.verdict.versions import Versions
from redrive.operator.verdict.words import said, span_said, took_words

SETTLED_SLOW = timedelta(seconds=30)
"""Where tasks run, and none was settled for longer, that is shown in another colour."""


def strip_of(facts: Facts, versions: Versions) -> tuple[Figure, ...]:
    """The eight figures."""
    return (
        _dead(facts), _waiting(facts), _parked(facts), _running(facts), _done(facts), _oldest(facts), _settled(facts), _workers(facts, versions)
    )  # fmt: skip


def _amount(facts: Facts, state: State) -> int:
    return sum(one.amounts.get(state, 0) for one in facts.ledgers)


def _tasks(state: str) -> Target:
    return Target(to=LinkTo.TASKS, state=state)


def _dead(facts: Facts) -> Figure:
    dead, lately = _amount(facts, State.DEAD), sum(one.dead_lately for one in facts.ledgers)
    note = f"{lately:,} in last 5 min" if lately else "none in last 5 min" if dead else "none"
    return Figure(
        name="Dead", value=f"{dead:,}", note=said(note), tone=Tone.BAD if lately else Tone.PLAIN, link=_tasks("dead")
    )


def _waiting(facts: Facts) -> Figure:
    parked = _parked_amount(facts)
    waiting = max(0, _amount(facts, State.WAITING) - parked)
    due = min((one.next_due for one in facts.ledgers if one.next_due is not None), default=None)
    note = "nothing waits" if not waiting else f"next in {span_said(due)}" if due is not None else "parked not counted"
    return Figure(name="Waiting", value=f"{waiting:,}", note=said(note), link=_tasks("waiting"))


def _parked_amount(facts: Facts) -> int:
    return sum(one.gate.parked or 0 for one in facts.held)


def _parked(facts: Facts) -> Figure:
    parked = _parked_amount(facts)
    gates = sum(bool(one.gate.parked) for one in facts.held)
    holding = any(one.gate.does is GateDoes.HOLDING for one in facts.held)
    note = f"behind {gates:,} {'gate' if gates == 1 else 'gates'}" if parked else "nothing is held back"
    return Figure(
        name="Parked",
        value=f"{parked:,}",
        note=said(note),
        tone=Tone.WARN if holding and parked else Tone.PLAIN,
        link=_tasks("parked"),
    )


def _running(facts: Facts) -> Figure:
    slots = sum(one.slots for one in facts.workers if one.is_there(facts.now))
    running = _amount(facts, State.CLAIMED)
    return Figure(
        name="Running",
        value=f"{running:,}",
        note=said(f"of {slots:,} slots" if slots else "no worker"),
        link=_tasks("claimed"),
    )


def _done(facts: Facts) -> Figure:
    done = sum(one.done_lately for one in facts.ledgers)
    return Figure(name="Done", value=f"{done:,}", note=said("in the last hour"), link=_tasks("done"))


def _oldest(facts: Facts) -> Figure:
    ages = [one.oldest_due for one in facts.ledgers if one.oldest_due is not None]
    oldest = max(ages, default=None)
    late = oldest is not None and oldest > facts.oldest_due_max
    value = "–" if oldest is None else span_said(oldest)
    note = "nothing is due" if oldest is None else "parked not counted"
    return Figure(
        name="Oldest due", value=value, note=said(note), tone=Tone.WARN if late else Tone.PLAIN, link=_tasks("waiting")
    )


def _settled(facts: Facts) -> Figure:
    store, now = facts.store, facts.now
    value = "–" if store.settled_at is None else f"{span_said(now - store.settled_at)} ago"
    note = said(f"store writes in {took_words(store.write_took)}") if store.write_took is not None else said("")
    stands = (
        store.settled_at is not None and now - store.settled_at > SETTLED_SLOW and _amount(facts, State.CLAIMED) > 0
    )
    if store.trouble is not None:
        note = said("the store takes no writes")
    return Figure(
        name="Last settled", value=value, note=note, tone=Tone.WARN if stands or store.trouble else Tone.PLAIN
    )


def _workers(facts: Facts, versions: Versions) -> Figure:
    there = sum(one.is_there(facts.now) for one in facts.workers)
    lost = sum(one.is_lost(facts.now) and facts.now - one.seen_at < timedelta(hours=1) for one in facts.workers)
    running = versions.running
    note = f"{lost:,} lost" if lost else "none" if not there else f"all on {next(iter(running))}" if len(running) == 1 else (
        f"{len(running)} versions" if running else "all there"
    )  # fmt: skip
    return Figure(
        name="Workers", value=f"{there:,} of {there + lost:,}", note=said(note), tone=Tone.WARN if lost else Tone.PLAIN, link=Target(to=LinkTo.WORKERS)
    )  # fmt: skip
