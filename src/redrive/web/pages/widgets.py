"""The charts of a ledger, or of all: states, flows, success, failures per task, time to done, dead, depth and oldest due.

Pure: each takes what the API says (`/api/overview`, `/api/series`) and gives a chart. What is counted is called what its ledger calls it:
an event is received, queued, delivered or failed.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from redrive.core.durations import format_duration, rounded
from redrive.web.pages.drawing import Chart, Series, few, gauge, per_step, ring, side_by_side
from redrive.web.pages.markup import instant_of
from redrive.web.pages.timeline import span

STATES = ("waiting", "claimed", "done", "dead", "cancelled")
MARK = 0.95
"""The share of tasks that should end well."""
UNITS = ((172_800, "days", 86_400), (7_200, "hours", 3_600), (180, "minutes", 60), (0, "seconds", 1))
LOOKS = {"waiting": "waiting", "claimed": "claimed", "dead": "dead", "done": "done", "added": "parked"}


def widgets(overview: Mapping[str, Any], series: Mapping[str, Any], day: Mapping[str, Any]) -> list[Chart]:
    """All of them; what nobody counted is a chart without data, which says so."""
    return [
        _flow(overview, series), _states(overview), _success(overview), _tries(overview), _took(overview), _dead(overview, day),
        _depth(overview, series), _oldest(overview, series),
    ]  # fmt: skip


def rates(name: str, points: Sequence[Mapping[str, Any]], step_seconds: float, now: datetime) -> list[float]:
    """The amounts of each step per minute; the last step is still under way, and counts for as long as it has lasted."""
    lasted = [(now - instant_of(one["start"])).total_seconds() for one in points]
    spans = [min(step_seconds, max(step_seconds / 10, one)) for one in lasted]
    return [round(one[name] * 60 / seconds, 2) for one, seconds in zip(points, spans, strict=True)]


def percent(share: float) -> str:
    """`100%`, `99.97%`, `4.7%`: never rounded to a whole that it is not."""
    shown = share * 100
    if share in (0, 1):
        return f"{shown:.0f}%"
    digits = 2 if share > 0.999 else 1
    return f"{min(shown, 99.99):.{digits}f}%" if shown >= 0.1 else "<0.1%"


def _word(overview: Mapping[str, Any], state: str) -> str:
    words: Mapping[str, str] = overview["words"]
    return words.get(state, state)


def _over_time(
    name: str, title: str, overview: Mapping[str, Any], drawn: Mapping[str, Any], some: Sequence[Series], **more: Any
) -> Chart:
    starts = [instant_of(one["start"]) for one in drawn["points"]]
    return per_step(name, title, some, starts, instant_of(overview["generated_at"]), **more)


def _flow(overview: Mapping[str, Any], series: Mapping[str, Any]) -> Chart:
    flows = ("added", "done", "dead")
    points = series["points"]
    sums = {flow: sum(one[flow] for one in points) for flow in flows}
    title = "How much goes through?"
    if not any(sums.values()):
        return Chart(name="flow", title=title, size="full")
    now = instant_of(overview["generated_at"])
    some = [
        Series(name=_word(overview, flow), look=LOOKS[flow], values=rates(flow, points, series["step_seconds"], now))
        for flow in flows
    ]
    answer = ", ".join(f"{few(sums[flow])} {_word(overview, flow)}" for flow in flows)
    return _over_time(
        "flow", title, overview, series, some, lead=f"{answer}", answer="in this range.", unit=f"{overview['of']} a minute", lines=True, size="full"
    )  # fmt: skip


def _states(overview: Mapping[str, Any]) -> Chart:
    shown = [state for state in STATES if state in overview["words"]]
    amounts = [(state, _word(overview, state), overview["states"].get(state, 0)) for state in shown]
    title = "Where do they stand?"
    if not sum(amount for *_, amount in amounts):
        return Chart(name="states", title=title)
    said = ", ".join(f"{few(amount)} {name}" for _, name, amount in amounts)
    return Chart(
        name="states", title=title, answer=f"All {overview['of']}, by state.", ring=ring(amounts), sentence=f"{title} {said}",
        legend=[(look, f"{name} {few(amount)}") for look, name, amount in amounts],
        columns=["State", overview["of"].capitalize()], rows=[(name, few(amount)) for _, name, amount in amounts],
    )  # fmt: skip


def _success(overview: Mapping[str, Any]) -> Chart:
    rate, title = overview["success_rate"], "Do they end well?"
    if rate is None:
        return Chart(name="success", title=title)
    said = percent(rate)
    answer = f"of the {overview['of']} that ended were {_word(overview, 'done')}; the mark is at 95%."
    return Chart(
        name="success", title=title, lead=said, answer=answer, gauge=gauge(rate, MARK, said), sentence=f"{title} {said} {answer}",
        columns=["Figure", "Value"], rows=[("Success rate", said)],
    )  # fmt: skip


def _tries(overview: Mapping[str, Any]) -> Chart:
    amounts = [one["amount"] for one in overview["tries"]]
    title = "How often is it tried again?"
    if not sum(amounts):
        return Chart(name="tries", title=title)
    names = [f"{at}+" if one["tries"] == "more" else str(at) for at, one in enumerate(overview["tries"])]
    looks = ["good" if at == 0 else "waiting" if at < 3 else "dead" for at in range(len(names))]
    at_once = amounts[0] / sum(amounts)
    return side_by_side(
        "tries", title, names, Series(name=overview["of"].capitalize(), look="good", values=amounts), looks=looks,
        lead=percent(at_once), answer="ended at their first try.", unit=f"{overview['of']} by failures before the last try", column="Failures before the last try",
    )  # fmt: skip


def _took(overview: Mapping[str, Any]) -> Chart:
    took, title = overview["took"], "How long does it take?"
    amounts = took["amounts"]
    if not sum(amounts):
        return Chart(name="took", title=title)
    bounds = took["bounds_seconds"]
    names = [*(f"≤ {span(bound)}" for bound in bounds), f"> {span(bounds[-1])}"]
    known = [at for at, amount in enumerate(amounts) if amount]
    first, last = max(0, known[0] - 1), min(len(amounts) - 1, known[-1] + 1)
    said = ", ".join(f"{name} {span(took[name])}" for name in ("p50", "p95", "p99") if took.get(name) is not None)
    return side_by_side(
        "took", title, names[first : last + 1], Series(name=overview["of"].capitalize(), look="running", values=amounts[first : last + 1]),
        lead=said, answer=f"from stored to {_word(overview, 'done')}.", unit=overview["of"], column="Took",
    )  # fmt: skip


def _dead(overview: Mapping[str, Any], day: Mapping[str, Any]) -> Chart:
    points, word = day["points"], _word(overview, "dead")
    title = "What failed for good, in 24 hours?"
    if not any(one[name] for one in points for name in ("added", "done", "dead", "retried")):
        return Chart(name="dead", title=title, size="wide")  # none dead is a fact, nothing is not
    total = sum(one["dead"] for one in points)
    values = rates("dead", points, day["step_seconds"], instant_of(overview["generated_at"]))
    return _over_time(
        "dead", title, overview, day, [Series(name=f"{word} a minute", look="dead", values=values)],
        lead=f"{few(total)} {word}." if total else f"None {word}.", unit=f"{word} a minute", size="wide",
    )  # fmt: skip


def _depth(overview: Mapping[str, Any], series: Mapping[str, Any]) -> Chart:
    title, points = "How many wait?", series["depth"]
    if not any(one["waiting"] is not None for one in points):
        return Chart(name="depth", title=title, size="half")
    drawn = ("waiting", "claimed", "dead")
    last = next(one for one in reversed(points) if one["waiting"] is not None)
    some = [
        Series(name=_word(overview, state), look=LOOKS[state], values=[one[state] for one in points]) for state in drawn
    ]
    said = ", ".join(f"{few(last[state])} {_word(overview, state)}" for state in drawn)
    return _over_time(
        "depth", title, overview, series, some, lead=said, answer="when last counted.", unit=overview["of"], lines=True, size="half"
    )  # fmt: skip


def _oldest(overview: Mapping[str, Any], series: Mapping[str, Any]) -> Chart:
    title, points, now = "How late are we?", series["depth"], overview["oldest_due_seconds"]
    values = [one["oldest_due_seconds"] for one in points]
    if not any(value is not None for value in values) and not now:
        return Chart(name="oldest", title=title, size="half")
    most = max([now or 0, *(value or 0 for value in values)])
    unit, size = next((name, size) for least, name, size in UNITS if most >= least)
    drift = overview["drift"]
    spoken = _spoken(most)
    answer = f"{spoken.capitalize() if spoken.startswith('less') else f'At most {spoken}'} in this range."
    if drift:
        answer += f" Tries start {span(drift['p50'])} (p50) to {span(drift['p95'])} (p95) after they are due."
    some = [Series(name="oldest due", look="waiting", values=[None if one is None else one / size for one in values])]
    return _over_time(
        "oldest", title, overview, series, some, lead=f"The oldest due task has waited {_spoken(now)}." if now else "Nothing that is due waits.",
        answer=answer, unit=unit, lines=True, size="half",
    )  # fmt: skip


def _spoken(seconds: float) -> str:
    return format_duration(rounded(timedelta(seconds=seconds))) if seconds >= 1 else span(seconds)
