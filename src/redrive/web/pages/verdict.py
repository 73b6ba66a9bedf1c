"""How things are, as a page shows it: where each thing that a sentence names is, how each trouble looks, and the charts below.

Pure: a `Verdict` comes in, and what the template draws goes out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from redrive.http.panel import query_of
from redrive.operator.kinds import KindSums
from redrive.operator.verdict.values import Figure, KindHealth, LinkTo, Rank, Subject, Target, Tone, Trouble, Verdict
from redrive.operator.verdict.words import share_words, took_words
from redrive.web.pages.drawing import SPARK_HEIGHT, Chart, Series, SmallPicture, few, per_step, spark, trend
from redrive.web.pages.frame import cause_path, kind_path
from redrive.web.pages.markup import instant_of
from redrive.web.pages.widgets import rates

MINUTES = 60
MINUTE = timedelta(minutes=1)
FINE_SHOWN = 4
"""Kinds that are fine are shown below those in trouble, so many of them; the others are a link."""
KINDS_SHOWN_MIN = 7
KINDS_SHOWN_MAX = 200
FAILING_SHOWN_MAX = 3
AHEAD_STEP, AHEAD_STEPS = timedelta(seconds=10), 18
"""How far what is about to run is drawn."""
DUE_SHOWN_MAX = 2000
BEHIND_MIN = 10
"""Fewer tasks that wait are nobody's concern."""
MARKS = {
    Rank.STOPPED: ("bad", "stop"),
    Rank.DYING: ("bad", "stop"),
    Rank.ASKED: ("bad", "stop"),
    Rank.HELD: ("warn", "heal"),
    Rank.HEALS: ("warn", "heal"),
    Rank.DEAD: ("plain", "cross"),
    Rank.READY: ("info", "back"),
}
"""The colour and the icon of a trouble; its word comes with it."""
SPARKS = {
    Rank.STOPPED: "bad",
    Rank.DYING: "bad",
    Rank.ASKED: "bad",
    Rank.HELD: "parked",
    Rank.HEALS: "good",
    Rank.DEAD: "plain",
    Rank.READY: "plain",
}
NO_HANDLER = "No handler"
DOTS = {"Dead": "dead", "Waiting": "waiting", "Parked": "parked", "Running": "running", "Done": "done"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleRow:
    """One trouble, ready to be drawn."""

    trouble: Trouble
    mood: str
    icon: str
    spark: SmallPicture | None
    view: str | None
    view_words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """One kind, ready to be drawn."""

    kind: KindHealth
    mood: str
    icon: str
    trend: SmallPicture
    share: str
    p50: str
    p95: str
    oldest: str
    fine: bool


def place_of(target: Target | None) -> str | None:
    """The address of what a sentence names; None for what has no page."""
    if target is None:
        return None
    ledger, name = target.ledger or "", target.name or ""
    match target.to:
        case LinkTo.KIND:
            return kind_path(ledger, name)
        case LinkTo.CAUSE:
            return cause_path(ledger, name)
        case LinkTo.GATE:
            return query_of("/gates", {"ledger": ledger, "prefix": name})
        case LinkTo.WORKER:
            return f"/workers#worker-{quote(name)}"
        case LinkTo.WORKERS:
            return "/workers"
        case LinkTo.EFFECTS:
            return query_of("/effects", {"ledger": ledger})
        case LinkTo.OPERATION:
            return f"/operations/{quote(name, safe='')}"
        case LinkTo.TASKS if target.state == "parked":
            return query_of("/gates", {"ledger": ledger, "prefix": target.gate}) if target.gate else "/workers"
        case LinkTo.TASKS:
            asked = {"ledger": ledger, "state": target.state, "kind": target.kind, "cause": target.cause}
            return query_of("/tasks", asked)


def trouble_row(one: Trouble) -> TroubleRow:
    """How a trouble is drawn."""
    mood, icon = MARKS[one.rank]
    points = one.moves.points
    words = {
        LinkTo.CAUSE: "View cause",
        LinkTo.GATE: "View gate",
        LinkTo.WORKER: "View worker",
        LinkTo.WORKERS: "View workers",
        LinkTo.EFFECTS: "View effects",
        LinkTo.OPERATION: "View operation",
    }
    return TroubleRow(
        trouble=one, mood=mood, icon=icon, view=place_of(one.view), view_words="View" if one.view is None else words.get(one.view.to, "View tasks"),
        spark=spark(points, "warn" if one.subject is Subject.RETRIED else SPARKS[one.rank], f"{one.moves.label}, the last hour: now {one.moves.now}", height=SPARK_HEIGHT) if points else None,
    )  # fmt: skip


def kind_rows(
    verdict: Verdict,
    *,
    every: bool,
    sums: Mapping[tuple[str, str], KindSums] | None = None,
    without_handler: Collection[tuple[str, str]] = (),
) -> tuple[list[KindRow], int]:
    """The kinds to show, and how many more there are; those in trouble are never left out. `sums` are those of a longer time.

    A kind that nobody handles here is not called fine.
    """
    troubled = sum(one.rank is not None for one in verdict.kinds)
    shown = len(verdict.kinds) if every else max(troubled + FINE_SHOWN, KINDS_SHOWN_MIN)
    if len(verdict.kinds) - shown == 1:
        shown += 1  # a line that says "one more" is as long as the one more
    kinds = [
        replace(one, health=NO_HANDLER) if one.rank is None and (one.ledger, one.kind) in without_handler else one
        for one in verdict.kinds[: min(shown, KINDS_SHOWN_MAX)]
    ]
    rows = [kind_row(one if sums is None else _summed(one, sums), verdict.at) for one in kinds]
    return rows, len(verdict.kinds) - len(rows)


def _summed(one: KindHealth, sums: Mapping[tuple[str, str], KindSums]) -> KindHealth:
    found = sums.get((one.ledger, one.kind))
    if found is None:
        return replace(one, tries=0, failures=0, p50=None, p95=None)
    return replace(one, tries=found.tries, failures=found.failures, p50=found.p50, p95=found.p95)


def kind_row(one: KindHealth, now: datetime) -> KindRow:
    """How a kind is drawn."""
    if one.rank is not None:
        mood, icon = MARKS[one.rank]
    else:
        mood, icon = ("plain", "paused") if one.health != "Fine" else ("good", "ok")
    tries, failed = minutes_of(one, now)
    said = f"{one.kind}: {few(sum(tries))} tries in the last hour, {few(sum(failed))} failed"
    return KindRow(
        kind=one, mood=mood, icon=icon, trend=trend(tries, failed, said), fine=one.rank is None,
        share=share_words(one.failures, one.tries) if one.tries else "–", p50=_took(one.p50), p95=_took(one.p95), oldest=_took(one.oldest_due),
    )  # fmt: skip


def minutes_of(one: KindHealth, now: datetime) -> tuple[list[int], list[int]]:
    """Tries and failures of each minute of the last hour, the running one last."""
    first = now.replace(second=0, microsecond=0) - MINUTE * (MINUTES - 1)
    tries, failed = [0] * MINUTES, [0] * MINUTES
    for point in one.trend:
        at = (point.start - first) // MINUTE
        if 0 <= at < MINUTES:
            tries[at] += point.tries
            failed[at] += point.failures
    return tries, failed


def charts_of(verdict: Verdict, series: Mapping[str, Any], due: Sequence[datetime] = ()) -> list[Chart]:
    """The charts that have something to say, at most three. `due` is when tasks that wait are tried next."""
    drawn = [_failing(verdict), _keeping_up(verdict, series), _about_to_run(verdict, due)]
    return [one for one in drawn if one is not None]


def _failing(verdict: Verdict) -> Chart | None:
    """Which kinds fail, minute by minute; nothing where hardly anything does."""
    amounts = [(one, minutes_of(one, verdict.at)[1]) for one in verdict.kinds]
    failing = sorted(((one, failed) for one, failed in amounts if sum(failed)), key=lambda pair: -sum(pair[1]))
    if not any(one.rank is not None for one, _ in failing):
        return None  # a failure now and then, done at the next try: the table of kinds has it
    now_failing = [one.kind for one, _ in failing if one.rank is Rank.DYING]
    over = [one.kind for one, failed in failing[:FAILING_SHOWN_MAX] if one.rank is Rank.READY and not sum(failed[-5:])]
    held = [one.kind for one, _ in failing if one.rank is Rank.HELD]
    lead = (
        f"{', '.join(now_failing[:3])}."
        if now_failing
        else f"{', '.join(held[:3])}: held back."
        if held
        else "Nothing now."
    )
    answer = f"The earlier failures of {', '.join(over)} are over." if over else ""
    starts = [verdict.at.replace(second=0, microsecond=0) - MINUTE * back for back in range(MINUTES - 1, -1, -1)]
    some = [
        Series(name=one.kind, look=look, values=failed)
        for look, (one, failed) in zip(_looks(failing), failing[:FAILING_SHOWN_MAX], strict=False)
    ]
    events = [(one.since, "since") for one in verdict.troubles if one.rank is Rank.DYING][:1]
    return per_step(
        "failing", "What is failing, and since when?", some, starts, verdict.at, lead=lead, answer=answer, unit="failed tries a minute", events=events
    )  # fmt: skip


def _looks(failing: Sequence[tuple[KindHealth, Sequence[int]]]) -> list[str]:
    """What fails now is red; what is over is grey."""
    looks, others = list[str](), ["parked", "warn"]
    for one, failed in failing[:FAILING_SHOWN_MAX]:
        if one.rank is Rank.DYING and "bad" not in looks:
            looks.append("bad")
        elif not sum(failed[-5:]) and "soft2" not in looks:
            looks.append("soft2")
        else:
            looks.append(others.pop(0) if others else "running")
    return looks


def _keeping_up(verdict: Verdict, series: Mapping[str, Any]) -> Chart | None:
    title, points = "Are we keeping up?", series["points"]
    starts = [instant_of(one["start"]) for one in points]
    depths = [one["waiting"] for one in series["depth"]]
    known = [value for value in depths if value is not None]
    before = next((value for value in depths if value is not None), 0)
    waiting = verdict.waiting
    if known and waiting > BEHIND_MIN and waiting > 2 * before:
        grew = few(max(1, round((waiting - before) / MINUTES)))
        return per_step(
            "keeping-up", title, [Series(name="waiting", look="waiting", values=[*depths[:-1], waiting])], starts, verdict.at,
            lead=f"No: {few(waiting)} wait,", answer=f"and about {grew} more each minute.", unit="tasks", lines=True,
        )  # fmt: skip
    if not any(one["added"] or one["done"] for one in points):
        return None
    step = series["step_seconds"]
    flows = [
        Series(name=name, look=look, values=rates(name, points, step, verdict.at))
        for name, look in (("done", "good"), ("added", "press"))
    ]
    most = max(known, default=waiting)
    return per_step(
        "keeping-up", title, flows, starts, verdict.at, lead="Yes.", answer=f"At most {few(most)} tasks waited at once." if most else "Nothing had to wait.",
        unit="tasks a minute", lines=True,
    )  # fmt: skip


def _about_to_run(verdict: Verdict, due: Sequence[datetime]) -> Chart | None:
    """What is planned for the next minutes, and what comes on top of it if a gate that holds lets through."""
    planned, returning = [0] * AHEAD_STEPS, [0.0] * AHEAD_STEPS
    for at in due:
        place = (at - verdict.at) // AHEAD_STEP
        if 0 <= place < AHEAD_STEPS:
            planned[place] += 1
    gate = max(verdict.returns, key=lambda one: one.parked, default=None)
    for second, amount in enumerate(() if gate is None else gate.amounts):
        assert gate is not None
        place = max(timedelta(0), gate.at - verdict.at + timedelta(seconds=second)) // AHEAD_STEP
        if place < AHEAD_STEPS:
            returning[place] += amount
    if verdict.is_well or not (sum(planned) or gate):
        return None
    series, answer = [Series(name="planned", look="warn", values=planned)] if sum(planned) else [], ""
    if gate is not None:
        series.append(Series(name=f"if {gate.gate} answers", look="parked", values=[round(one) for one in returning]))
        spread = (
            f" within {took_words(timedelta(seconds=len(gate.amounts)))}" if sum(gate.amounts) >= gate.parked else ""
        )
        answer = f"If {gate.gate} answers at its next probe, {gate.parked:,} more{spread}."
    starts = [verdict.at + AHEAD_STEP * at for at in range(AHEAD_STEPS)]
    lead = f"{sum(planned):,}{'+' if len(due) >= DUE_SHOWN_MAX else ''} tries in the next {took_words(AHEAD_STEP * AHEAD_STEPS)}."
    return per_step(
        "about-to-run", "What is about to run?", series, starts, verdict.at, lead=lead if sum(planned) else "Nothing is planned by itself.", answer=answer,
        unit=f"tries in {AHEAD_STEP.seconds} s", ahead=True,
    )  # fmt: skip


def figure_look(figure: Figure) -> str:
    """The class of a figure of the strip."""
    return "" if figure.tone is Tone.PLAIN else figure.tone.value


def dot_of(figure: Figure) -> str | None:
    """The dot of the state that a figure counts."""
    return DOTS.get(figure.name)


def _took(span: timedelta | None) -> str:
    return "–" if span is None else took_words(span)
