"""Tasks and their history as JSON values, for the command line and the web: instants in ISO 8601 UTC, spans in seconds.

Payloads and errors are shown redacted: what looks like a secret leaves neither by a terminal nor by a page, whoever wrote it.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from redrive.core.decide import Explanation
from redrive.core.failure import HIDDEN, ErrorClass, redact
from redrive.core.gate_rules import GateRule
from redrive.core.policy import Policy
from redrive.core.preview import Try
from redrive.core.stack import Raised
from redrive.core.task import Attempt, Deed, Task, TaskId
from redrive.core.task import encode_payload as encode_payload  # for systems that keep payloads themselves
from redrive.operator.audit import AuditEntry
from redrive.operator.gates import PARKED_MAX, GateSpan, GateView, ParkedTask, RuleView, rate_words
from redrive.operator.roster import WorkerSeen

T = TypeVar("T")

PAYLOAD_DEPTH_MAX = 50
SHOWN_CHARS_MAX = 1 << 20
"""So much of a payload is shown. Looking through 16 MiB for secrets takes four seconds, in which nobody else is served."""
CUT_CHARS = 256
"""So much is left out before a cut: half a secret does not look like one."""
MORE = "…"
_SAMPLE = "x7Kq2pLz"
TASK_FIELDS = (
    "id", "key", "kind", "state", "failures", "failures_max", "redrives", "due_at", "deadline_at", "lease_until", "claimed_at",
    "created_at", "updated_at", "ended_at", "last_error", "gate", "tenant",
)  # fmt: skip


def instant_json(instant: datetime | None) -> str | None:
    """`2026-01-31T09:00:00.000000Z`."""
    # A twentieth of what strftime costs, and an answer may have a thousand instants.
    return (
        None
        if instant is None
        else f"{instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    )


def fields_json(value: object, names: Iterable[str], **given: Any) -> dict[str, Any]:
    """The fields of these names: those that are given, the others as the value has them, instants as text."""
    shown = {name: given[name] if name in given else getattr(value, name) for name in names}
    return {name: instant_json(one) if isinstance(one, datetime) else one for name, one in shown.items()}


def id_json(id: TaskId) -> int | str:
    """A number where it is one, else text."""
    return id if isinstance(id, int) else str(id)


def task_json(task: Task, *, payload: bool = False) -> dict[str, Any]:
    """A task; its payload only where it is asked for."""
    error = None if task.last_error is None else redact(task.last_error)
    shown = fields_json(task, TASK_FIELDS, id=id_json(task.id), state=task.state.value, last_error=error)
    return shown | {"payload": redacted(task.payload)} if payload else shown


GATE_FIELDS = (
    "ledger", "name", "title", "does", "why", "since", "until", "waits_for", "next_probe", "paused_at", "paused_until", "paused_by", "reason",
    "held", "trips", "probes", "tenant", "version",
)  # fmt: skip


def gate_json(view: GateView) -> dict[str, Any]:
    """A gate, or a pause of kinds. What is parked is counted up to 10,000; `parked_more` says that there is more."""
    waits_for = None if view.waits_for is None else view.waits_for.value
    parked = None if view.parked is None else min(view.parked, PARKED_MAX)
    return fields_json(view, GATE_FIELDS, does=view.does.value, waits_for=waits_for, why=redact(view.why)) | {
        "kinds": list(view.kinds),
        "parked": parked,
        "parked_more": view.parked is not None and view.parked > PARKED_MAX,
        "tries": round(view.tries, 1),
        "failures": round(view.failures, 1),
        "window_seconds": view.limits.within.total_seconds(),
        "limits": limits_json(view.limits),
        "rule": None if view.rule is None else rule_json(view.rule),
    }


def limits_json(rule: GateRule) -> dict[str, Any]:
    """The limits of a gate; null is no limit."""
    breaker = None
    if rule.failures is not None:
        breaker = {
            "failures": rule.failures,
            "share": rule.share,
            "within_seconds": rule.within.total_seconds(),
            "probe_seconds": rule.probe.total_seconds(),
        }
    rate = None if rule.rate is None else rate_words(rule).replace(",", "")
    return {
        "concurrency": rule.concurrency,
        "rate": rate,
        "burst": rule.burst,
        "breaker": breaker,
        "budget": rule.budget,
    }


def rule_json(rule: RuleView) -> dict[str, Any]:
    """Limits by their pattern, with who set them and why."""
    return fields_json(rule, ("pattern", "set_by", "reason", "set_at", "version")) | {"limits": limits_json(rule.rule)}


def parked_json(parked: ParkedTask | None) -> dict[str, Any] | None:
    """What keeps a task back, in words and in facts."""
    if parked is None:
        return None
    before = parked.before
    return {
        "by": parked.gate.name,
        "does": parked.gate.does.value,
        "since": instant_json(parked.gate.since),
        "earliest": instant_json(parked.earliest),
        "next_probe": instant_json(parked.gate.next_probe),
        "before": None if before is None else min(before, PARKED_MAX),
        "before_more": before is not None and before > PARKED_MAX,
        "sentence": parked.sentence(),
        "explained": redact(parked.explained()),
    }


def span_json(span: GateSpan) -> dict[str, Any]:
    """What a gate did for a while; without an end it still does."""
    return fields_json(span, ("does", "began_at", "ended_at"), does=span.does.value)


def worker_json(worker: WorkerSeen, now: datetime) -> dict[str, Any]:
    """A worker, and whether it is still there."""
    state = "stopped" if worker.stopped_at is not None else "lost" if worker.is_lost(now) else "working"
    shown = (
        "name", "host", "pid", "version", "state", "started_at", "seen_at", "stopped_at", "slots", "held", "holds",
        "tries_a_minute", "oldest_held_seconds", "clock_drift_ms",
    )  # fmt: skip
    return fields_json(
        worker, shown, state=state, holds={name: dict(kinds) for name, kinds in worker.holds.items()},
        oldest_held_seconds=_seconds(worker.held_for), clock_drift_ms=None if worker.drift_ms is None else round(worker.drift_ms),
    )  # fmt: skip


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """One try, with the sentence that explains what was decided."""
    return {
        "number": attempt.number,
        "claim_id": str(attempt.claim_id),
        "started_at": instant_json(attempt.started_at),
        "ended_at": instant_json(attempt.ended_at),
        "duration_seconds": _seconds(attempt.duration),
        "outcome": attempt.outcome,
        "state": attempt.state.value,
        "delay_seconds": _seconds(attempt.delay),
        "worker": attempt.worker,
        "version": attempt.version,
        "error_class": attempt.error_class,
        "error": None if attempt.error is None else redact(attempt.error),
        "explanation": attempt.explanation and dict(attempt.explanation),
        "sentence": explained(attempt.explanation),
        "stack": [raised_json(one) for one in attempt.stack],
    }


def raised_json(raised: Raised) -> dict[str, Any]:
    """One exception of a chain, with where it came from."""
    return {"error": raised.error, "frames": [one._asdict() for one in raised.frames], "left_out": raised.left_out}


def audit_json(entry: AuditEntry) -> dict[str, Any]:
    """An act of the audit. `things` names what it changed where that is little; `task_id` is the one thing, if it is one."""
    fields = ("id", "ledger", "at", "act", "actor", "origin", "reason", "amount", "task_id", "folded", "number")
    return fields_json(entry, fields) | {"things": [*entry.things], "asked": dict(entry.asked)}


def deed_json(deed: Deed) -> dict[str, Any]:
    """Who did what to a task, and why."""
    return fields_json(deed, ("at", "act", "actor", "reason"))


def try_json(one: Try) -> dict[str, Any]:
    """One try to come."""
    return {"number": one.number, "at": instant_json(one.at), "delay_seconds": one.delay.total_seconds()}


def preview_json(policy: Policy, key: str, start: datetime, tries: Iterable[Try]) -> dict[str, Any]:
    """A policy, and when a task that always fails would be tried under it."""
    return {
        "policy": policy.name,
        "backoff": policy.backoff_words,
        "jitter": policy.jitter_words,
        "attempts": policy.failures_max,
        "key": key,
        "start": instant_json(start),
        "tries": [try_json(one) for one in tries],
    }


def explained(explanation: Mapping[str, Any] | None) -> str | None:
    """The sentence of an explanation as the history keeps it; None for one that this version cannot read."""
    if not explanation:
        return None
    try:
        return Explanation(
            error_class=ErrorClass(explanation["error_class"]),
            rule=explanation["rule"],
            policy=explanation["policy"],
            failures=explanation["failures"],
            failures_max=explanation["failures_max"],
            verdict=explanation["verdict"],
            backoff=explanation.get("backoff"),
            wait=_span(explanation.get("wait_seconds")),
            jitter=explanation.get("jitter"),
            draw=explanation.get("draw"),
            floor=_span(explanation.get("floor_seconds")),
            cap=_span(explanation.get("cap_seconds")),
            delay=_span(explanation.get("delay_seconds")),
            lost_alone=explanation.get("lost_alone", 0),
            gate=explanation.get("gate"),
            stretch=explanation.get("stretch", 1),
        ).sentence()
    except (KeyError, TypeError, ValueError):
        return None


def redacted(value: Any) -> Any:
    """A JSON value without what looks like a secret, by its name or by itself; of other types, their text.

    Of a large one the beginning: what follows is an ellipsis.
    """
    return _redacted(value, 0, _Shown())


class _Shown:
    """How many characters may still be shown."""

    def __init__(self) -> None:
        self.left = SHOWN_CHARS_MAX

    def text(self, text: str) -> str:
        """As much of a text as may be shown."""
        fits = len(text) <= self.left
        shown = redact(text) if fits else redact(text[: self.left])[:-CUT_CHARS] + MORE
        self.left = max(0, self.left - len(text))
        return shown

    def some(self, members: Iterable[T]) -> Iterator[T]:
        """Members for as long as there is room."""
        for member in members:
            if self.left <= 0:
                return
            self.left -= 1
            yield member


def _redacted(value: Any, depth: int, shown: _Shown) -> Any:
    if depth > PAYLOAD_DEPTH_MAX:
        return MORE
    if isinstance(value, Mapping):
        named = {
            shown.text(str(name)): _member(str(name), one, depth, shown) for name, one in shown.some(value.items())
        }
        return named if len(named) == len(value) or shown.left else named | {MORE: MORE}
    if isinstance(value, list | tuple):
        listed = [_redacted(member, depth + 1, shown) for member in shown.some(value)]
        return listed if len(listed) == len(value) else [*listed, MORE]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return instant_json(value)
    return shown.text(str(value))


def _member(name: str, value: Any, depth: int, shown: _Shown) -> Any:
    is_long = isinstance(value, str) and len(value) > shown.left
    if is_long or (isinstance(value, Mapping | list | tuple) and value):
        if redact(f"{name}={_SAMPLE}") != f"{name}={_SAMPLE}":
            return HIDDEN  # whatever is in there, its name says what it is
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        written = f"{name}={value}"
        if redact(str(value)) == str(value) and redact(written) != written:
            return HIDDEN
    return _redacted(value, depth + 1, shown)


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
