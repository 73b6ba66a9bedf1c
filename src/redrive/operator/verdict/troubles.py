"""The sentences of each kind of trouble. What counts as one is decided in `judge`."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from redrive.core.failure import redact
from redrive.core.states import State
from redrive.operator.gates import GateDoes, amount_words, span_words
from redrive.operator.operations import Operation
from redrive.operator.roster import WorkerSeen
from redrive.operator.verdict.facts import CauseFacts, HeldFacts, KindFacts, LedgerNow, StoreNow
from redrive.operator.verdict.returning import drain_of
from redrive.operator.verdict.values import (
    Button,
    ButtonAct,
    LinkTo,
    Piece,
    Rank,
    Sentence,
    Subject,
    Target,
    Trend,
    Trouble,
)
from redrive.operator.verdict.versions import Versions
from redrive.operator.verdict.words import (
    about,
    amount,
    kind_piece,
    minute,
    minute_after,
    said,
    second,
    share_words,
    span_said,
)

ERROR_CHARS_MAX = 200
RECENT = timedelta(minutes=5)
"""So long what failed in an unknown version is taken to fail still."""
LIKELY_FAILS = "This will most likely fail."
NOTHING_TO_PRESS = "Nothing to press."
START_A_WORKER = "Start a worker: redrive worker MODULE:APP."
STOPS_ABOVE = "It stops by itself if more than 10% fail again."
_ELSEWHERE = ("Connect", "Timeout", "HTTP", "SSL", "Socket", "DNS", "gaierror", "503", "502", "504")
"""What an error is called whose remedy lies with somebody else."""


def line_of(at: str | None) -> str | None:
    """`shop/mail.py:23` of `shop/mail.py:23 in render`."""
    return None if at is None else at.partition(" in ")[0]


def error_of(cause: CauseFacts) -> str:
    """The error, on one line and not too long."""
    text = " ".join(redact(cause.error).split())
    return text if len(text) <= ERROR_CHARS_MAX else text[: ERROR_CHARS_MAX - 1] + "…"


def _is_elsewhere(cause: CauseFacts) -> bool:
    name = cause.error.partition(":")[0]
    return any(word in name for word in _ELSEWHERE) or (cause.at is None and "lost" not in name)


def _raised(cause: CauseFacts) -> Sentence:
    """The error, and the line that it comes from."""
    error, line = Piece(error_of(cause), code=True), line_of(cause.at)
    if line is None:
        return (error,)
    return said(error, " at ", Piece(line, Target(to=LinkTo.CAUSE, ledger=cause.ledger, name=cause.id)))


def _dead(cause: CauseFacts) -> Piece:
    if not cause.dead:
        return Piece("0 dead")  # a link would lead to an empty list
    return Piece(f"{cause.dead:,} dead", Target(to=LinkTo.TASKS, ledger=cause.ledger, state="dead", cause=cause.id))


def _many(cause: CauseFacts) -> str:
    return f"{cause.waiting:,}{'+' if cause.waiting_more else ''}"


def _waiting(cause: CauseFacts) -> Piece:
    return Piece(
        f"{_many(cause)} waiting", Target(to=LinkTo.TASKS, ledger=cause.ledger, state="waiting", kind=cause.kind)
    )


def _common(cause: CauseFacts) -> dict[str, object]:
    return {
        "ledger": cause.ledger,
        "kind": cause.kind,
        "cause": cause.id,
        "at": line_of(cause.at),
        "error": error_of(cause),
        "version": cause.last_version,
        "view": Target(to=LinkTo.CAUSE, ledger=cause.ledger, name=cause.id),
    }


# --- failing --------------------------------------------------------------------------------------------------------------


def failing(cause: CauseFacts, now: datetime, versions: Versions, *, others_fine: bool) -> Trouble:
    """Tries fail, and tasks will die of it."""
    kind, share = kind_piece(cause.ledger, cause.kind), share_words(cause.failures, cause.tries)
    head = said(
        kind,
        " has been failing since ",
        second(cause.since, now),
        f": {share} of {amount(cause.tries, 'try', 'tries')}",
    )
    raised, counts = (
        _raised(cause),
        said(_dead(cause), ", ", _waiting(cause), "; other kinds are fine." if others_fine else "."),
    )
    version = _version(cause, now, versions)
    told = said(head, ", ", raised, *((" (", _lowered(version), ")") if version else ()), ". ", counts)
    button, beside, safe = _safe(cause, versions)
    return Trouble(
        rank=Rank.DYING, subject=Subject.FAILING, since=cause.since,
        wrong=(said(head, "."), raised, said(*((version, ". ") if version else ()), counts)),
        moves=Trend(label="failed a minute", now=f"{_a_minute(cause):,}", points=tuple(cause.points)),
        by_itself=_forecast(cause, now), safe=safe, told=told, button=button, beside=beside, **_common(cause),  # type: ignore[arg-type]
    )  # fmt: skip


def retried(cause: CauseFacts, now: datetime, versions: Versions) -> Trouble:
    """Tries fail, and their tasks are done at a later one: that is what retries are for."""
    share = f"{share_words(cause.failures, cause.tries)} of {amount(cause.tries, 'try', 'tries')}"
    head = said(
        kind_piece(cause.ledger, cause.kind),
        " has been failing now and then since ",
        second(cause.since, now),
        f": {share}",
    )
    raised, counts, version = (
        _raised(cause),
        said(_dead(cause), ", ", _waiting(cause), "."),
        _version(cause, now, versions),
    )
    tries = (
        ""
        if cause.tries_max is None or cause.lasts is None
        else f": each gets {cause.tries_max} in {about(cause.lasts)}"
    )
    return Trouble(
        rank=Rank.HEALS, subject=Subject.RETRIED, since=cause.since, wrong=(said(head, "."), raised, said(*((version, ". ") if version else ()), counts)),
        moves=Trend(label="failed a minute", now=f"{_a_minute(cause):,}", points=tuple(cause.points)),
        by_itself=said(f"Its tasks are done at a later try{tries}."), safe=said(NOTHING_TO_PRESS),
        told=said(head, ", ", raised, ". ", counts), **_common(cause),  # type: ignore[arg-type]
    )  # fmt: skip


def _version(cause: CauseFacts, now: datetime, versions: Versions) -> Sentence:
    if cause.last_version is None:
        return ()
    deployed = versions.deployed(cause.last_version)
    return said(f"Version {cause.last_version}", *((", deployed ", minute(deployed, now)) if deployed else ()))


def _lowered(sentence: Sentence) -> Sentence:
    first, *rest = sentence
    return (Piece(first.text[:1].lower() + first.text[1:]), *rest)


def _a_minute(cause: CauseFacts) -> int:
    """Failures of the last whole minute; of the running one while there is no other."""
    points = list(cause.points)
    if len(points) >= 2 and points[-2]:
        return points[-2]
    return points[-1] if points else 0


def _those(cause: CauseFacts) -> str:
    """Those that wait."""
    return "the one waiting" if cause.waiting == 1 else f"the {_many(cause)} waiting"


def _are(cause: CauseFacts) -> str:
    return "is" if cause.waiting == 1 else "are"


def _forecast(cause: CauseFacts, now: datetime) -> Sentence:
    if cause.tries_max is None or cause.lasts is None:
        if not cause.waiting:
            return said("Nothing recovers: what fails here dies.")
        return said(f"Nothing recovers: {_those(cause)} {_are(cause)} tried again until all tries are used up.")
    if cause.tries_max <= 1 or cause.lasts <= timedelta(0):
        return said("Nothing recovers: each task gets one try, and what fails is dead.")
    tries = f"Each task gets {cause.tries_max} tries in {about(cause.lasts)}"
    by = minute_after(now + cause.lasts, now)
    arrives = f", and {cause.arrives:,} more follow each minute" if cause.arrives else ""
    if not cause.waiting:
        return said(f"Nothing recovers. {tries}{arrives}.")
    if _is_elsewhere(cause):
        return said(
            f"Tries go on. {tries}: if it answers, {_those(cause)} {_are(cause)} done; if not, dead by ", by, f"{arrives}."
        )  # fmt: skip
    return said(f"Nothing recovers. {tries}: {_those(cause)} will be dead by ", by, f"{arrives}.")


def _safe(cause: CauseFacts, versions: Versions) -> tuple[Button | None, Button | None, Sentence]:
    """What is advised, what may be pressed beside it, and why."""
    try_one = _try_one(cause)
    if versions.newer_runs(cause.last_version):
        newest = versions.newest
        if try_one is None:
            return None, None, said(f"{NOTHING_TO_PRESS} Version {newest} runs now; the next tries will tell.")
        return try_one, None, said(f"Try one task: version {newest} runs now, and they failed in {cause.last_version}.")
    repeats = "wait until it answers" if _is_elsewhere(cause) else "fix the code first"
    if cause.kind is None:
        return None, None, said(f"{NOTHING_TO_PRESS} Redriving now repeats the failure: {repeats}.")
    pause = Button(act=ButtonAct.PAUSE_KIND, words=f"Pause {cause.kind}", ledger=cause.ledger, kind=cause.kind)
    beside = _try_one(cause, warning=LIKELY_FAILS)
    why = said(f"Pause it: tasks wait, and no try is charged. Redriving now repeats the failure: {repeats}.")
    return pause, beside, why


def _try_one(cause: CauseFacts, warning: str | None = None) -> Button | None:
    if not cause.dead:
        return None
    return Button(
        act=ButtonAct.TRY_ONE, words="Try one first", ledger=cause.ledger, kind=cause.kind, cause=cause.id, warning=warning
    )  # fmt: skip


# --- dead, and ready to come back -------------------------------------------------------------------------------------------


def ready(cause: CauseFacts, now: datetime, versions: Versions) -> Trouble:
    """Tasks are dead, and no more tries fail than a person must know of. Ready only where a redrive is likely to do better."""
    kind, tasks = kind_piece(cause.ledger, cause.kind), amount(cause.dead, "task")
    recovered = cause.recovered_at if cause.failures * 2 >= cause.tries else None
    if recovered is not None:
        head = said(kind, " recovered at ", second(recovered, now), f"; {tasks} had died by then.")
    elif cause.kind is None:
        head = said(kind, f" died: {cause.dead:,}.")
    else:
        head = said(
            f"{tasks} of ", kind, " died" + ("; its other tasks are fine." if cause.tries > cause.failures else ".")
        )
    facts = said(_dead(cause), *_between(cause, now), ".", *_since(cause))
    raised, safe = _raised(cause), said("Redriving in steps, one task first. ", STOPS_ABOVE)
    why = None if recovered is not None else _would_repeat(cause, now, versions)
    if why is not None:
        first = "See whether it answers first" if _is_elsewhere(cause) else "Fix the code first"
        safe = said(
            f"{first}. {why} One task may be tried: if it fails, it is dead again, and nothing else is touched."
        )
    elif recovered is None and versions.newer_runs(cause.last_version):
        safe = said(f"Version {versions.newest} runs now; they failed in {cause.last_version}. ", safe)
    try_one = _try_one(cause, None if why is None else f"{LIKELY_FAILS} {why}")
    return Trouble(
        rank=Rank.READY if why is None else Rank.DEAD, subject=Subject.RECOVERED if why is None else Subject.DEAD, since=cause.dead_from or cause.since,
        wrong=(head, raised, facts),
        moves=Trend(label="failed a minute", now=f"{_a_minute(cause):,}", points=tuple(cause.points)),
        by_itself=said("Nothing: dead tasks stay dead until a person brings them back."),
        safe=safe, told=said(head, " ", raised, ". ", facts), button=try_one if why is None else None, beside=None if why is None else try_one,
        **_common(cause),  # type: ignore[arg-type]
    )  # fmt: skip


def _would_repeat(cause: CauseFacts, now: datetime, versions: Versions) -> str | None:
    """Why a redrive would most likely end as before; None where something has changed, or where it is long ago and nobody knows."""
    failed_in = cause.last_version
    if failed_in is None:
        return "Nothing of it has worked since." if now - cause.last_failure <= RECENT else None
    if versions.newer_runs(failed_in):
        return None
    if failed_in in versions.running:
        return f"Version {failed_in}, in which they failed, still runs."
    return f"No version runs that is newer than {failed_in}, in which they failed."


def ungrouped(ledger: LedgerNow, now: datetime) -> Trouble:
    """Tasks are dead, and nobody has grouped them by their causes yet: no service runs that would, or it has just begun."""
    dead = ledger.amounts.get(State.DEAD, 0)
    tasks = Target(to=LinkTo.TASKS, ledger=ledger.ledger, state="dead")
    head = said(Piece(f"{amount(dead, 'task')} of {ledger.ledger}", tasks), f" {'is' if dead == 1 else 'are'} dead.")
    why = said("The cause is not known yet: a running service groups them by cause within seconds.")
    return Trouble(
        rank=Rank.READY, subject=Subject.RECOVERED, since=now, wrong=(head, why), moves=Trend(label="", now="", points=()),
        by_itself=said("Nothing: dead tasks stay dead until a person brings them back."),
        safe=said("Looking at them. Redriving in steps, one task first, stops by itself if it fails."), told=said(head, " ", why),
        ledger=ledger.ledger, view=tasks,
    )  # fmt: skip


def _between(cause: CauseFacts, now: datetime) -> Sentence:
    first, last = cause.dead_from, cause.dead_to
    if first is None or last is None:
        return ()
    if last - first < timedelta(minutes=1):
        return said(" since ", minute(first, now))
    return said(" between ", minute(first, now), " and ", minute(last, now))


def _since(cause: CauseFacts) -> Sentence:
    if not cause.tries_since:
        return ()
    tries = amount(cause.tries_since, "try", "tries")
    return said(f" Since then {cause.failures_since:,} of {tries} failed.")


# --- gates ----------------------------------------------------------------------------------------------------------------


def holding(held: HeldFacts, now: datetime) -> Trouble:
    """A gate holds tasks back, or lets them through again little by little."""
    gate = held.gate
    name = Piece(gate.name, Target(to=LinkTo.GATE, ledger=gate.ledger, name=gate.name))
    since = gate.since or now
    kinds = _kinds(gate.ledger, gate.kinds)
    returns = gate.does is GateDoes.RETURNING
    head = (
        said("Gate ", name, " has been returning since ", second(since, now), ".")
        if returns
        else said("Gate ", name, " has been holding ", kinds, " back since ", second(since, now), ".")
    )
    parked = Piece(
        f"{amount_words(gate.parked)} parked",
        Target(to=LinkTo.TASKS, ledger=gate.ledger, state="parked", gate=gate.name),
    )
    facts = said(parked, ", no try charged.")
    error = (
        said(Piece(redact(held.error)[:ERROR_CHARS_MAX], code=True), *_probes(held))
        if held.error
        else said("Its destination does not serve us.")
    )
    return Trouble(
        rank=Rank.HEALS if returns else Rank.HELD, subject=Subject.GATE, since=since,
        wrong=(head, error, facts), moves=Trend(label="parked", now=amount_words(gate.parked), points=tuple(held.points)),
        by_itself=_returns(held, now), safe=said(NOTHING_TO_PRESS), told=said(head, " ", error, "" if not held.error else ".", " ", facts),
        view=Target(to=LinkTo.GATE, ledger=gate.ledger, name=gate.name), ledger=gate.ledger, error=held.error,
        kind=gate.kinds[0] if len(gate.kinds) == 1 else None,
    )  # fmt: skip


def _probes(held: HeldFacts) -> Sentence:
    if not held.probes:
        return ()
    return said(" on the one probe" if held.probes == 1 else f" on all {held.probes:,} probes")


def _kinds(ledger: str, kinds: Sequence[str]) -> Sentence:
    if not kinds:
        return said("its tasks")
    if len(kinds) <= 2:
        pieces = [kind_piece(ledger, kind) for kind in kinds]
        return said(*pieces) if len(pieces) == 1 else said(pieces[0], " and ", pieces[1])
    return said(kind_piece(ledger, kinds[0]), f" and {len(kinds) - 1} other kinds")


def _returns(held: HeldFacts, now: datetime) -> Sentence:
    gate, drains = held.gate, drain_of(held.gate)
    through = "" if drains is None else f", all are through in {about(drains)}"
    if gate.does is GateDoes.RETURNING:
        return said("It lets 1, 2, 4 … a second through", f": all are through in {about(drains)}." if drains else ".")
    if gate.next_probe is None:
        if gate.until is None:
            return said("It lets tasks through again by itself.")
        return said("It lets tasks through again at ", second(gate.until, now), ", as its destination asked.")
    following = (
        said(", next at ", second(gate.next_probe, now)) if gate.next_probe > now else said("; one is running now")
    )
    every = f"One probe every {span_words(gate.limits.probe)}".replace("0s", "0 s").replace("5s", "5 s")
    return said(every, following, f". When one succeeds{through or ', it returns step by step'}.")


def on_purpose(held: HeldFacts, now: datetime) -> Sentence:
    """What a person has paused."""
    gate = held.gate
    title = f"{'' if gate.is_of_kinds else 'gate '}{gate.title}"
    link = Target(to=LinkTo.GATE, ledger=gate.ledger, name=gate.name)
    until = said(" until ", minute(gate.paused_until, now)) if gate.paused_until else said(" until somebody resumes it")
    reason = f", “{redact(gate.reason)}”" if gate.reason else ""
    parked = f" {amount_words(gate.parked)} parked." if gate.parked else ""
    return said("On purpose: ", Piece(title, link), f" is paused by {gate.paused_by}", until, f"{reason}.{parked}")


# --- workers --------------------------------------------------------------------------------------------------------------


def lost_worker(worker: WorkerSeen, now: datetime, *, others: int, room: int) -> Trouble:
    """A worker is gone without a goodbye."""
    return _gone_worker(
        worker, now, " has been lost since ", "No goodbye, so it was killed or cut off.", others=others, room=room
    )


def silent_worker(worker: WorkerSeen, now: datetime, *, others: int, room: int) -> Trouble:
    """A worker has not been heard from for some seconds: nobody knows yet whether it is gone."""
    return _gone_worker(
        worker, now, " has given no sign of life since ", "It was killed or cut off, or it is stuck.", others=others, room=room
    )  # fmt: skip


def lost_workers(workers: Sequence[WorkerSeen], now: datetime, *, others: int, room: int) -> Trouble:
    """Several are gone, most likely with their host or their network."""
    first, held = min(one.seen_at for one in workers), sum(one.held for one in workers)
    head = said(
        Piece(f"{len(workers):,} workers", Target(to=LinkTo.WORKERS)), " have been lost since ", second(first, now),
        f", holding {amount(held, 'task') if held else 'nothing'}.",
    )  # fmt: skip
    hosts = sorted({one.host for one in workers})
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts):,} hosts"
    why = said(
        f"{'All' if len(hosts) == 1 else 'They were'} {where}; no goodbye, so they were killed or cut off. ",
        _others(others, room),
    )
    ends = [one.leases_end for one in workers if one.held]
    by = max((end for end in ends if end is not None), default=None) if None not in ends else None
    return Trouble(
        rank=Rank.HEALS if others else Rank.STOPPED, subject=Subject.LOST_WORKER, since=first, wrong=(head, why),
        moves=Trend(label="lost", now=f"{len(workers):,}"), by_itself=_taken_over(held, by, now, others=others),
        safe=said(NOTHING_TO_PRESS if others else START_A_WORKER), told=said(head, " ", why), view=Target(to=LinkTo.WORKERS),
    )  # fmt: skip


def _others(others: int, room: int) -> Piece:
    if not others:
        return Piece("Nobody else works.")
    have = "The other worker has" if others == 1 else f"The other {others:,} workers have"
    return Piece(f"{have} {'room' if room > 0 else 'no free slot'}.", Target(to=LinkTo.WORKERS))


def _taken_over(held: int, by: datetime | None, now: datetime, *, others: int, whose: str = "Their") -> Sentence:
    """What becomes of what lost workers held."""
    if not held:
        return said("No task was held at the last sign of life; one claimed after it comes back when its lease ends.")
    they = "the other worker takes" if others == 1 else "the other workers take"
    then = f"; then {they} the {amount(held, 'task')}." if others else "; then the tasks wait for a worker."
    return said(f"{whose} leases end", *((" by ", second(by, now)) if by else (" soon",)), then)


def _gone_worker(worker: WorkerSeen, now: datetime, what: str, guess: str, *, others: int, room: int) -> Trouble:
    name = Piece(worker.name, Target(to=LinkTo.WORKER, name=worker.name))
    held = amount(worker.held, "task") if worker.held else "nothing"
    head = said("Worker ", name, what, second(worker.seen_at, now), f", holding {held}.")
    why = said(f"{guess} ", _others(others, room))
    by_itself = _taken_over(worker.held, worker.leases_end, now, others=others, whose="Its")
    return Trouble(
        rank=Rank.HEALS if others else Rank.STOPPED, subject=Subject.LOST_WORKER, since=worker.seen_at, wrong=(head, why),
        moves=Trend(label="signs of life", now="none", points=_signs(worker, now)), by_itself=by_itself,
        safe=said(NOTHING_TO_PRESS if others else START_A_WORKER),
        told=said(head, " ", why), view=Target(to=LinkTo.WORKER, name=worker.name), version=worker.version,
    )  # fmt: skip


def _signs(worker: WorkerSeen, now: datetime) -> tuple[int, ...]:
    """In which minutes of the last hour it was there: it gave signs from its start to its last one."""
    running = now.replace(second=0, microsecond=0)
    starts = [running - timedelta(minutes=back) for back in range(59, -1, -1)]
    return tuple(int(worker.started_at < start + timedelta(minutes=1) and start <= worker.seen_at) for start in starts)


def nobody_works(ledgers: Sequence[LedgerNow], last: datetime | None, now: datetime) -> Trouble:
    """Tasks are due, and there is no worker; `last` is when the last one was there."""
    due = max(one.oldest_due or timedelta(0) for one in ledgers)
    head = said("No worker is running, and tasks are due; the oldest for ", span_said(due), ".")
    names = ", ".join(one.ledger for one in ledgers)
    seen = (
        said("The last worker was there at ", second(last, now), ".")
        if last
        else said("No worker has been here in the last week.")
    )
    facts = said(f"They wait in {names}. ", seen)
    return Trouble(
        rank=Rank.STOPPED, subject=Subject.NOBODY_WORKS, since=now - due if last is None else min(last, now), wrong=(head, facts),
        moves=Trend(label="oldest due", now=span_said(due)),
        by_itself=said("Nothing: tasks wait until a worker takes them."),
        safe=said(START_A_WORKER), told=said(head, " ", facts), view=Target(to=LinkTo.WORKERS),
        ledger=ledgers[0].ledger if len(ledgers) == 1 else None,
    )  # fmt: skip


def untaken(one: LedgerNow, kinds: Sequence[KindFacts], now: datetime, *, busy: int, slots: int) -> Trouble:
    """Due tasks wait though there is room: no worker that runs handles their kinds."""
    due = max(kind.oldest_due or timedelta(0) for kind in kinds)
    named = _kinds(one.ledger, [kind.kind for kind in kinds])
    head = said("Nobody takes ", named, ": the oldest due task has waited for ", span_said(due), ".")
    its = "this kind" if len(kinds) == 1 else "these kinds"
    facts = said(f"{slots - busy:,} of {slots:,} slots are free: no worker that runs seems to handle {its}.")
    return Trouble(
        rank=Rank.ASKED, subject=Subject.UNTAKEN, since=now - due, wrong=(head, facts),
        moves=Trend(label="oldest due", now=span_said(due)),
        by_itself=said("Nothing: they wait, and no try is charged."),
        safe=said(f"Start a worker whose code handles {its}."),
        told=said(head, " ", facts), ledger=one.ledger, kind=kinds[0].kind if len(kinds) == 1 else None, view=Target(to=LinkTo.WORKERS),
    )  # fmt: skip


def behind(one: LedgerNow, now: datetime, *, busy: int, slots: int) -> Trouble:
    """Due tasks wait though workers are there, and take them."""
    due = one.oldest_due or timedelta(0)
    tasks = Piece(f"tasks of {one.ledger}", Target(to=LinkTo.TASKS, ledger=one.ledger, state="waiting"))
    head = said("Due ", tasks, f" are late: the oldest has waited for {span_said(due)}.")
    full = busy >= slots
    facts = said(f"{busy:,} of {slots:,} slots are in use.")
    return Trouble(
        rank=Rank.HELD, subject=Subject.BEHIND, since=now - due, wrong=(head, facts),
        moves=Trend(label="oldest due", now=span_said(due)),
        by_itself=said("Workers go on; the oldest goes first."),
        safe=said("Nothing to press.", " More workers make it faster." if full else ""),
        told=said(head, " ", facts), ledger=one.ledger, view=Target(to=LinkTo.WORKERS),
    )  # fmt: skip


# --- effects --------------------------------------------------------------------------------------------------------------


def unanswered(one: LedgerNow, now: datetime) -> Trouble:
    """Nobody knows whether effects happened, and their probes could not tell."""
    many = f"{one.unanswered:,}{'+' if one.unanswered_more else ''}"
    single = many == "1"
    since = one.unanswered_since or now
    page = Target(to=LinkTo.EFFECTS, ledger=one.ledger)
    head = said(
        "Nobody knows whether the effect of ", Piece(f"{many} {'task' if single else 'tasks'}", page), " happened."
    )
    its = "its try" if single else "their tries"
    facts = said(
        f"In {one.ledger}: {its} ended in the middle of an effect, the oldest at ",
        second(since, now),
        ", and no probe could tell.",
    )
    return Trouble(
        rank=Rank.ASKED, subject=Subject.UNANSWERED, since=since, wrong=(head, facts), moves=Trend(label="to be answered", now=many),
        by_itself=said(f"Nothing: {'it is' if single else 'they are'} not run again before somebody answers."),
        safe=said("Find out on the other side, then say whether it happened."),
        told=said(head, " ", facts), ledger=one.ledger, view=page,
    )  # fmt: skip


# --- operations -------------------------------------------------------------------------------------------------------------


def halted(operation: Operation, now: datetime) -> Trouble:
    """A redrive pulled its brake: what it has not released stays dead until a person says how to go on."""
    tally, page = operation.tally, Target(to=LinkTo.OPERATION, ledger=operation.ledger, name=operation.id)
    head = said(
        "Operation ", Piece(operation.id[:8], page), f" stopped: {tally.failed:,} of {tally.released:,} failed again."
    )
    facts = said(
        f"In {operation.ledger}, since ",
        second(operation.changed_at, now),
        f": {amount(tally.left, 'task')} held back.",
    )
    return Trouble(
        rank=Rank.ASKED, subject=Subject.OPERATION, since=operation.changed_at, wrong=(head, facts),
        moves=Trend(label="failed again", now=f"{tally.failed:,}"),
        by_itself=said("Nothing: it waits until somebody lets it go on, or gives the rest back."),
        safe=said("Find out why they failed again. Giving the rest back leaves them dead, as they were."),
        told=said(head, " ", facts), ledger=operation.ledger, view=page,
    )  # fmt: skip


# --- the store ------------------------------------------------------------------------------------------------------------


def ledger_away(store: StoreNow, now: datetime, *, held: int) -> Trouble:
    """Nothing can be written down."""
    times = [at for at in (store.settled_at, store.wrote_at) if at is not None]
    since = max(times, default=now)
    head = said(f"Nothing has been settled for {span_said(now - (store.settled_at or since))}.")
    why = said(
        redact(store.trouble)
        if store.trouble
        else f"The store has taken no write for {span_said(now - since)}: it is locked, full or away."
    )
    holds = f"Workers keep the {amount(held, 'task')} that they hold" if held else "Workers wait"
    return Trouble(
        rank=Rank.STOPPED, subject=Subject.LEDGER_AWAY, since=since, wrong=(head, why),
        moves=Trend(label="last write", now=f"{span_said(now - since)} ago"),
        by_itself=said(f"{holds} and go on when the store takes writes again; nothing is lost."),
        safe=said("Nothing to press here. Look at the database: who holds a lock, is the disk full, is the server up?"),
        told=said(head, " ", why), error=store.trouble,
    )  # fmt: skip


def over(worker: WorkerSeen, now: datetime) -> Sentence:
    """A worker was lost, and what it held has come back."""
    name = Piece(worker.name, Target(to=LinkTo.WORKER, name=worker.name))
    back = f"; the {amount(worker.held, 'task')} that it held came back" if worker.held else "; it held nothing then"
    return said("Worker ", name, " was lost at ", second(worker.seen_at, now), f"{back}.")
