"""Operations as JSON values, for the command line and the web; payloads are shown redacted, as everywhere."""

from datetime import datetime
from typing import Any

from redrive.core.edit import PayloadChange
from redrive.core.failure import redact
from redrive.core.operation import Fate, Ramp, braking
from redrive.core.operation_ahead import Ahead, time_left
from redrive.operator.failed_again import FailedAgain
from redrive.operator.json_views import fields_json, id_json, redacted, try_json
from redrive.operator.operations import EditedTask, Operation, Plan, SetTask, StepTally, asked_words, ramp_words

OPERATION_FIELDS = (
    "id", "ledger", "state", "reason", "started_by", "started_at", "until", "frozen_at", "approval_over", "approved_by", "approved_at",
    "why", "changed_by", "changed_at", "ended_at",
)  # fmt: skip
TALLY_FIELDS = ("total", "released", "out", "left", "done", "failed", "ended", "skipped", "unfit")


def operation_json(operation: Operation, now: datetime, pace: float | None = None) -> dict[str, Any]:
    """One operation: how far it has come, what it does now, and what it will do next; `pace` is how many of its tasks end in a second."""
    tally, course = operation.tally, operation.course
    released, failed = braking(course, tally)
    return fields_json(operation, OPERATION_FIELDS, state=operation.state.value) | {
        "asked": dict(operation.asked),
        "asked_words": asked_words(operation.asked),
        "edits": operation.edit is not None,
        "ramp": ramp_json(course.ramp),
        "step": min(course.step + 1, course.steps),
        "steps": course.steps,
        "tasks": {name: getattr(tally, name) for name in TALLY_FIELDS},
        "brake": {"released": released, "failed": failed, "share": failed / released if released else 0.0},
        "halted_itself": operation.halted_itself,
        "says": operation.says(now),
        "next": [ahead_json(one) for one in operation.ahead(now, pace)],
        "left_seconds": None if (left := time_left(course, tally, pace)) is None else round(left.total_seconds(), 1),
    }


def ahead_json(line: Ahead) -> dict[str, Any]:
    """One line of what comes, and about when it is through."""
    return fields_json(line, ("does", "means", "by", "at_the_earliest"))


def failed_again_json(one: FailedAgain) -> dict[str, Any]:
    """One task that failed again; `same` is whether that was of the same cause as before."""
    return fields_json(one, ("task_id", "step", "ended_at", "error", "at", "same"))


def ramp_json(ramp: Ramp) -> dict[str, Any]:
    """Steps, rate and brake."""
    return {
        "steps": list(ramp.steps),
        "rate": ramp.rate,
        "rate_seconds": ramp.per.total_seconds(),
        "halt": ramp.halt,
        "words": ramp_words(ramp),
    }


def step_json(step: StepTally) -> dict[str, Any]:
    """One step: how many met which fate."""
    fates = {fate.value: step.fates.get(fate, 0) for fate in Fate if fate is not Fate.FROZEN}
    return fields_json(step, ("number", "began_at", "ended_at")) | {"released_in_all": step.released, "fates": fates}


def set_task_json(task: SetTask) -> dict[str, Any]:
    """One task of the set."""
    names = ("position", "task_id", "fate", "step", "released_at", "ended_at", "why")
    return fields_json(task, names, fate=task.fate.value, why=None if task.why is None else redact(task.why))


def edit_json(edited: EditedTask) -> dict[str, Any]:
    """A payload that was changed: as it was, as it is since, and the difference."""
    names = ("task_id", "at", "operation", "actor", "reason", "before", "after")
    shown = fields_json(edited, names, before=redacted(edited.before), after=redacted(edited.after))
    return shown | {"changes": [change_json(one) for one in edited.changes]}


def change_json(change: PayloadChange) -> dict[str, Any]:
    """One difference. A value is hidden where its name says that it is a secret."""
    name = change.path.rpartition("/")[2]
    before, after = redacted({name: change.before})[name], redacted({name: change.after})[name]
    return {"op": change.op, "path": change.path, "before": before, "after": after}


def plan_json(plan: Plan) -> dict[str, Any]:
    """A dry run."""
    dead = plan.dead
    return fields_json(plan, ("ledger", "until", "needs_approval")) | {
        "ramp": ramp_json(plan.ramp),
        "matched": dead.amount,
        **fields_json(dead, ("oldest", "newest")),
        "kinds": [{"kind": kind, "amount": amount} for kind, amount in dead.kinds],
        "causes": [{"cause": cause, "text": redact(text), "amount": amount} for cause, text, amount in dead.causes],
        "tries": {kind: [try_json(one) for one in tries] for kind, tries in plan.tries.items()},
        "sampled": [
            {
                "task_id": id_json(one.task_id),
                "changes": [change_json(change) for change in one.changes],
                "why": one.why,
            }
            for one in plan.sampled
        ],
    }
