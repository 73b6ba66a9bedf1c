"""Effects of which nobody knows whether they happened, as people see and answer them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redrive.core.effect import effect_key
from redrive.core.effect_mark import EffectAnswer, EffectMark, MarkState
from redrive.core.failure import redact
from redrive.core.progress import Progress
from redrive.core.states import State
from redrive.core.task import Task, TaskId, check_text
from redrive.errors import UsageError
from redrive.operator.acts import Acted
from redrive.operator.json_views import instant_json, redacted, task_json
from redrive.operator.names import Names, read_names
from redrive.operator.ports import OperatorLedger
from redrive.ports import Actor, Filter, Page

ANSWERS = {
    "happened": EffectAnswer.HAPPENED,
    "not-happened": EffectAnswer.NOT_HAPPENED,
    "close": EffectAnswer.CLOSED,
}
"""What people write for an answer."""
PAGE_MAX = 500
CURSOR_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEffect:
    """A task of which nobody knows whether its effect happened, and all that is known."""

    ledger: str
    task: Task
    mark: EffectMark

    @property
    def needs_person(self) -> bool:
        """Whether the probe could not tell; else it is still asked."""
        return self.task.state is State.DEAD

    def says(self) -> str:
        """The same in a sentence."""
        if self.needs_person:
            return redact(self.mark.why or "nobody could find out whether it happened")
        tries = f"asked {self.mark.probes} times so far" if self.mark.probes else "not asked yet"
        return f"its probe is asked before any new try; {tries}{f': {redact(self.mark.why)}' if self.mark.why else ''}"


def read_answer(text: str) -> EffectAnswer:
    """The answer that a person wrote."""
    if text not in ANSWERS:
        raise UsageError(f"an answer is {', '.join(ANSWERS)}, not {text!r:.80}")
    return ANSWERS[text]


async def unknown_effects(
    ledger: OperatorLedger, *, needs_person: bool = True, cursor: str | None = None, limit: int = 100
) -> Page[UnknownEffect]:
    """A page of those that need a person, or of those whose probe is still asked."""
    if cursor is not None:
        check_text("cursor", cursor, CURSOR_CHARS_MAX)
    if ledger.effects is None:
        return Page(items=[])
    state = MarkState.PERSON if needs_person else MarkState.UNKNOWN
    found = await ledger.effects.asked(state, cursor=cursor, limit=min(limit, PAGE_MAX))
    marks = {ledger.read_id(text): mark for text, mark in found}
    tasks = (await ledger.find(Filter(ids=list(marks)), limit=len(marks))).items if marks else []
    items = [UnknownEffect(ledger=ledger.name, task=task, mark=marks[task.id]) for task in tasks]
    return Page(items=items, cursor=found[-1][0] if len(found) == min(limit, PAGE_MAX) else None)


async def answer_effects(ledger: OperatorLedger, which: Names, answer: EffectAnswer, actor: Actor) -> Acted:
    """Say of tasks, by ids or keys, whether their effects happened."""
    check_actor(actor)
    if answer is EffectAnswer.CLOSED and ledger.table.words.cancelled is None:
        raise UsageError(f"{ledger.name!r} has no word for cancelled: answer happened or not-happened")
    ids, refused = await read_names(ledger, which)
    changed = await ledger.answer(ids, answer, actor)
    left = dict.fromkeys(set(ids) - set(changed), "no person is asked whether its effect happened")
    return Acted(changed=tuple(changed), refused={**refused, **left}, matched=len(changed))


async def cancel_running(ledger: OperatorLedger, which: Names, actor: Actor) -> Acted:
    """Have tasks that run, by ids or keys, cancelled by whoever holds them; those that are asked are `changed`."""
    check_actor(actor)
    ids, refused = await read_names(ledger, which)
    asked = await ledger.ask_to_stop(ids, actor)
    left: Sequence[TaskId] = [id_ for id_ in ids if id_ not in set(asked)]
    return Acted(
        changed=tuple(asked), refused={**refused, **dict.fromkeys(left, "it does not run now")}, matched=len(asked)
    )


def check_actor(actor: Actor) -> None:
    """Who and why are kept with everything."""
    if not actor.name.strip() or not actor.reason.strip():
        raise UsageError("say who and why: both are kept with each task")


def effect_json(ledger: str, task: Task, mark: EffectMark) -> dict[str, Any]:
    """What is known of the effect of a task."""
    return {
        "state": mark.state.value,
        "key": effect_key(ledger, task),
        "first_at": instant_json(mark.first_at),
        "entered_at": instant_json(mark.entered_at),
        "probes": mark.probes,
        "error": None if mark.error is None else redact(mark.error),
        "why": None if mark.why is None else redact(mark.why),
        "answer": mark.answer,
        "answered_by": mark.answered_by,
    }


def progress_json(progress: Progress | None) -> dict[str, Any] | None:
    """How far the tries of a task have come, and its checkpoint without what looks like a secret."""
    if progress is None:
        return None
    return {
        "at": instant_json(progress.at),
        "share": progress.share,
        "words": None if progress.words is None else redact(progress.words),
        "checkpoint": redacted(progress.checkpoint),
    }


def unknown_json(one: UnknownEffect) -> dict[str, Any]:
    """The same with its task."""
    return {
        "ledger": one.ledger,
        "task": task_json(one.task),
        "effect": effect_json(one.ledger, one.task, one.mark),
        "needs_person": one.needs_person,
        "says": one.says(),
    }
