"""From facts to a verdict: what counts as trouble, how bad it is, and what the first screen says. Pure and total."""

from collections.abc import Sequence
from datetime import timedelta

from redrive.core.states import State
from redrive.operator.gates import GateDoes
from redrive.operator.roster import WorkerSeen
from redrive.operator.verdict import troubles as sentences
from redrive.operator.verdict.facts import CauseFacts, Facts, KindFacts, LedgerNow
from redrive.operator.verdict.returning import comes_back
from redrive.operator.verdict.strip import strip_of
from redrive.operator.verdict.values import KindHealth, Rank, Sentence, Subject, Trouble, Verdict
from redrive.operator.verdict.versions import Versions
from redrive.operator.verdict.words import amount, counted, minute, said

TROUBLES_MAX = 20
QUIET_MAX = 10
FAILURES_MIN = 10
"""Fewer failures of one cause are nothing to call a person for."""
SHARE_MIN = 0.05
"""Of so many tries of its kind a cause must make fail, or kill as many tasks as above."""
QUIET_AFTER = timedelta(minutes=5)
"""A cause that only some tasks have is over when it has been quiet for so long."""
SURE_AFTER = timedelta(minutes=1)
SURE_TRIES = 10
"""A kind that failed as a whole has recovered after so many tries, or so long, without a failure of the cause."""
WROTE_MAX = timedelta(seconds=5)
"""A store that has taken no write for longer is in trouble."""
LOST_SHOWN = timedelta(hours=1)
LOST_TOGETHER = 3
"""So many lost workers are one row: a host or a network is gone, and nobody reads the same sentence six times."""
RESTARTS_WITHIN = timedelta(seconds=10)
"""So long after the last worker was there, its successor may still be starting."""


def judge(facts: Facts) -> Verdict:
    """How things are."""
    versions = Versions.of(facts.workers, facts.now)
    found, quiet = _troubles(facts, versions)
    found.sort(key=lambda one: (one.rank.order, one.since))
    kinds = _kinds(facts, found)
    calm_since = None if found else facts.last_trouble_at
    return Verdict(
        at=facts.now, title=_title(found, facts), summary=_summary(found, facts, kinds),
        troubles=tuple(found[:TROUBLES_MAX]), more=max(0, len(found) - TROUBLES_MAX), quiet=tuple(quiet[:QUIET_MAX]),
        strip=strip_of(facts, versions), kinds=kinds, kinds_note=facts.kinds_note, calm_since=calm_since,
        waiting=sum(one.amounts.get(State.WAITING, 0) for one in facts.ledgers),
        returns=tuple(one for held in facts.held if (one := comes_back(held)) is not None),
    )  # fmt: skip


# --- what is wrong --------------------------------------------------------------------------------------------------------


def _troubles(facts: Facts, versions: Versions) -> tuple[list[Trouble], list[Sentence]]:
    now = facts.now
    found, quiet = list[Trouble](), list[Sentence]()
    if is_away(facts):
        found.append(sentences.ledger_away(facts.store, now, held=_held(facts)))
    bad = [one for one in facts.causes if is_failing(one, facts)]
    others_fine = len({one.kind for one in bad}) == 1 < len(facts.kinds)
    found += [
        sentences.retried(one, now, versions)
        if goes_through(one)
        else sentences.failing(one, now, versions, others_fine=others_fine)
        for one in bad
    ]
    found += [sentences.ready(one, now, versions) for one in facts.causes if one.dead and one not in bad]
    found += [sentences.ungrouped(one, now) for one in _ungrouped(facts)]
    found += [sentences.unanswered(one, now) for one in facts.ledgers if one.unanswered]
    found += [sentences.halted(one, now) for one in facts.halted]
    for held in facts.held:
        match held.gate.does:
            case GateDoes.PAUSED:
                quiet.append(sentences.on_purpose(held, now))
            case GateDoes.HOLDING | GateDoes.RETURNING:
                found.append(sentences.holding(held, now))
            case GateDoes.LETTING_THROUGH:
                pass
    lost, past = _lost(facts)
    found += lost
    quiet += past
    if not any(one.rank is Rank.STOPPED for one in found):
        found += _late(facts)
    return found, quiet


def _ungrouped(facts: Facts) -> list[LedgerNow]:
    """Ledgers with dead tasks that nobody has counted yet."""
    told = {one.ledger for one in facts.causes if one.dead}
    return [
        one for one in facts.ledgers if not one.is_counted and one.amounts.get(State.DEAD, 0) and one.ledger not in told
    ]


def is_away(facts: Facts) -> bool:
    """Whether the store takes no writes."""
    wrote = facts.store.wrote_at
    return facts.store.trouble is not None or (wrote is not None and facts.now - wrote > WROTE_MAX)


def has_recovered(cause: CauseFacts, facts: Facts) -> bool:
    """Whether what made tries fail is over, as far as later tries of the kind can tell."""
    quiet = facts.now - cause.last_failure
    if cause.recovered_at is None:
        # Nobody has tried since. What waits will; without anything that waits, the cause is history.
        return not cause.waiting and quiet > QUIET_AFTER
    if cause.failures * 2 >= cause.tries:
        return cause.tries_since >= SURE_TRIES or quiet > SURE_AFTER
    return quiet > QUIET_AFTER


def is_failing(cause: CauseFacts, facts: Facts) -> bool:
    """Whether so many tries fail of this cause, or so many tasks die of it, that a person must know."""
    if cause.paused or has_recovered(cause, facts):
        return False
    if cause.held_by is not None and not cause.died_lately:
        return False  # its gate keeps the others from it, and says so itself
    if cause.died_lately >= FAILURES_MIN:
        return True
    return cause.failures >= FAILURES_MIN and cause.failures >= cause.tries * SHARE_MIN


def goes_through(cause: CauseFacts) -> bool:
    """Whether what fails is done at a later try, as far as can be seen: most tries work, nobody died of it lately, and few wait for their next try."""
    if cause.died_lately or cause.waiting_more:
        return False
    return cause.failures * 2 < cause.tries and cause.waiting * 4 < cause.failures


def _lost(facts: Facts) -> tuple[list[Trouble], list[Sentence]]:
    now, away = facts.now, is_away(facts)
    there = [one for one in facts.workers if one.is_there(now) and not one.is_silent(now)]
    room = sum(one.slots - one.held for one in there)
    lost, past = list[Trouble](), list[Sentence]()
    gone = [
        one
        for one in facts.workers
        if one.is_lost(now) and now - one.seen_at <= LOST_SHOWN and not (there and _is_back(one, facts))
    ]
    together = len(gone) >= LOST_TOGETHER
    if together:
        lost.append(sentences.lost_workers(gone, now, others=len(there), room=room))
    for one in facts.workers:
        # Where nothing can be written nobody can give a sign.
        if one.is_silent(now) and not away:
            lost.append(sentences.silent_worker(one, now, others=len(there), room=room))
        if not one.is_lost(now) or now - one.seen_at > LOST_SHOWN:
            continue
        if one not in gone:
            past.append(sentences.over(one, now))
        elif not together:
            lost.append(sentences.lost_worker(one, now, others=len(there), room=room))
    return lost, past


def _is_back(worker: WorkerSeen, facts: Facts) -> bool:
    """Whether what it held is free again."""
    ends = worker.leases_end
    return facts.now > (ends if ends is not None else worker.seen_at + QUIET_AFTER)


def _late(facts: Facts) -> list[Trouble]:
    there = [one for one in facts.workers if one.is_there(facts.now)]
    if not there:
        return _nobody(facts)
    busy, slots = sum(one.held for one in there), sum(one.slots for one in there)
    found = []
    for one in _due_for(facts, facts.oldest_due_max):
        late = [
            kind
            for kind in facts.kinds
            if kind.ledger == one.ledger and (kind.oldest_due or timedelta(0)) > facts.oldest_due_max
        ]
        # There is room, and nobody has tried it for minutes: its handler is nowhere.
        untaken = [kind for kind in late if not kind.tries and busy < slots]
        if untaken:
            found.append(sentences.untaken(one, untaken, facts.now, busy=busy, slots=slots))
        if len(untaken) < len(late) or not late:
            found.append(sentences.behind(one, facts.now, busy=busy, slots=slots))
    return found


def _due_for(facts: Facts, span: timedelta) -> list[LedgerNow]:
    """The ledgers whose oldest due task has waited for longer."""
    return [one for one in facts.ledgers if one.oldest_due is not None and one.oldest_due > span]


def _nobody(facts: Facts) -> list[Trouble]:
    """Nobody works: whatever is due waits, unless somebody comes back in a moment."""
    last = max((one.seen_at for one in facts.workers), default=None)
    restarts = last is not None and facts.now - last <= RESTARTS_WITHIN
    due = _due_for(facts, facts.oldest_due_max if restarts else timedelta(0))
    return [sentences.nobody_works(due, last, facts.now)] if due else []


def _held(facts: Facts) -> int:
    return sum(one.held for one in facts.workers if one.is_there(facts.now))


# --- the title ------------------------------------------------------------------------------------------------------------


def _title(found: Sequence[Trouble], facts: Facts) -> str:
    needy = sum(one.needs_you for one in found)
    if needy:
        return f"{counted(needy)} {'thing needs' if needy == 1 else 'things need'} you"
    if any(one.rank not in (Rank.READY, Rank.DEAD) for one in found):
        return "Nothing needs you"
    if dead := _dead_of(found, facts, Subject.DEAD):
        return f"{amount(dead, 'task')} {'is' if dead == 1 else 'are'} dead, not recovered"
    if dead := _ready(found, facts):
        return f"{amount(dead, 'dead task')} {'is' if dead == 1 else 'are'} ready to come back"
    return "All is well"


def _ready(found: Sequence[Trouble], facts: Facts) -> int:
    return sum(one.amounts[State.DEAD] for one in _ungrouped(facts)) + _dead_of(found, facts, Subject.RECOVERED)


def _dead_of(found: Sequence[Trouble], facts: Facts, subject: Subject) -> int:
    causes = {(one.ledger, one.cause) for one in found if one.subject is subject}
    return sum(one.dead for one in facts.causes if (one.ledger, one.id) in causes)


def _summary(found: Sequence[Trouble], facts: Facts, kinds: Sequence[KindHealth]) -> Sentence:
    if not found:
        return _calm(facts)
    mends = sum(one.rank in (Rank.HELD, Rank.HEALS) for one in found)
    dead = _ready(found, facts)
    parts = []
    if mends:
        parts.append(
            "one problem is recovering by itself"
            if mends == 1
            else f"{counted(mends).lower()} problems are recovering by themselves"
        )
    if dead and any(one.rank is not Rank.READY for one in found):
        parts.append(f"{amount(dead, 'dead task')} {'is' if dead == 1 else 'are'} ready to come back")
    text = f"{', and '.join(parts)}." if parts else ""
    text = text[:1].upper() + text[1:]
    affected = sum(one.rank in (Rank.DYING, Rank.HELD) for one in kinds)
    if affected:
        text += f" {affected:,} of {amount(len(kinds), 'kind')} {'is' if affected == 1 else 'are'} affected."
    return said(text.strip() or "Everything else is fine.")


def _calm(facts: Facts) -> Sentence:
    kinds, workers = len(facts.kinds), sum(one.is_there(facts.now) for one in facts.workers)
    things = [amount(kinds, "kind")] if kinds else []
    things += [amount(workers, "worker")] if workers else ["no worker"]
    since = said(" Quiet since ", minute(facts.last_trouble_at, facts.now), ".") if facts.last_trouble_at else ()
    return said(f"{' and '.join(things)}: nothing fails, nothing is late, nothing is dead.".capitalize(), since)


# --- kinds ----------------------------------------------------------------------------------------------------------------


def _kinds(facts: Facts, found: Sequence[Trouble]) -> tuple[KindHealth, ...]:
    health = [_health(one, facts, found) for one in facts.kinds]
    best = len(Rank)
    health.sort(key=lambda one: (best if one.rank is None else one.rank.order, -one.tries, one.kind))
    return tuple(health)


def _health(kind: KindFacts, facts: Facts, found: Sequence[Trouble]) -> KindHealth:
    rank, words = _worst(kind, facts, found)
    return KindHealth(
        ledger=kind.ledger, kind=kind.kind, health=words, rank=rank, tries=kind.tries, failures=kind.failures, begun_a_minute=kind.begun_a_minute, p50=kind.p50, p95=kind.p95,
        oldest_due=kind.oldest_due, waiting=kind.waiting, waiting_more=kind.waiting_more, parked=kind.parked, dead=kind.dead, trend=tuple(kind.points),
    )  # fmt: skip


def _worst(kind: KindFacts, facts: Facts, found: Sequence[Trouble]) -> tuple[Rank | None, str]:
    mine = [one for one in found if one.ledger == kind.ledger and one.kind == kind.kind]
    if any(one.subject is Subject.FAILING for one in mine):
        return Rank.DYING, "Failing"
    retried = any(one.subject is Subject.RETRIED for one in mine)
    for held in facts.held:
        gate = held.gate
        if gate.ledger == kind.ledger and kind.kind in gate.kinds and gate.does is GateDoes.HOLDING:
            return Rank.HELD, f"Held by {gate.name}"
        if gate.ledger == kind.ledger and gate.does is GateDoes.PAUSED and gate.name == f"kind:{kind.kind}":
            return None, f"Paused by {gate.paused_by}"
    if any(one.rank is Rank.DEAD for one in mine):
        return Rank.DEAD, "Dead, not recovered"
    if any(one.rank is Rank.READY for one in mine):
        return Rank.READY, "Ready to redrive"
    return (Rank.HEALS, "Some tries fail") if retried else (None, "Fine")
