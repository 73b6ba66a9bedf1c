"""Operations on the tasks of one lane, for Python, the command line, the API and pages alike: plan, start, look, steer."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from redrive.core.edit import Edit, difference
from redrive.core.operation import Fate, OperationAct, OperationState, read_ramp
from redrive.core.operation_ahead import LATELY, ends_a_second
from redrive.core.preview import Try
from redrive.core.states import State
from redrive.core.table import LedgerTable
from redrive.core.task import Task, TaskId
from redrive.errors import EditError, UsageError
from redrive.events import Event, OperationChanged
from redrive.operator.acts import Which
from redrive.operator.failed_again import FailedAgain
from redrive.operator.names import read_names
from redrive.operator.operations import (
    IDS_MAX,
    SAMPLE,
    EditedTask,
    NewOperation,
    Operation,
    Plan,
    Sampled,
    SetTask,
    StepTally,
    check_asked,
)
from redrive.operator.ports import Operations, OperatorLedger, TaskPages
from redrive.ports import Actor, Filter, Page

APPROVALS = "REDRIVE_APPROVALS"
NO_EDIT = (
    "{ledger!r} has no column for the payload: what its tasks carry is the row itself, and that is not ours to edit"
)
_NOT_GIVEN: Any = object()


class OperatedLane(Protocol):
    """What operations ask of a lane."""

    name: str
    table: LedgerTable

    @property
    def refused_edit(self) -> str | None: ...

    async def ledger(self) -> OperatorLedger: ...

    async def pages(self, *, limited: bool = True) -> TaskPages: ...

    def tell(self, events: list[Event]) -> None: ...

    def to_come(self, task: Task) -> list[Try] | None: ...


def approvals() -> int:
    """From how many tasks on another person must approve, as the environment says it; 0 is never."""
    given = os.environ.get(APPROVALS, "").strip() or "0"
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise UsageError(f"{APPROVALS} is a number of tasks, not {given!r:.80}; 0 turns approvals off")
    return int(given)


class LaneOperations:
    """The operations of one lane.

        plan = await app.tasks.operations.plan(Filter(cause="9f86d081"))
        operation = await app.tasks.operations.start(Filter(cause="9f86d081"), actor="ada", reason="bank is back")

    Any worker or service carries it on; none need be the one that started it.
    """

    def __init__(self, lane: OperatedLane, kept: Operations) -> None:
        self._lane = lane
        self._kept = kept

    async def plan(
        self,
        which: Which,
        *,
        steps: Sequence[int] | str | None = None,
        rate: str | int | None = None,
        halt: float | str | None = None,
        all_now: bool = False,
        patch: Sequence[Mapping[str, Any]] | None = None,
        payload: Any = _NOT_GIVEN,
        at_most: int | None = None,
        approval_over: int | None = None,
        limited: bool = False,
    ) -> Plan:
        """A dry run: how many, of which kinds, how old, what they died of, and the tries that follow if each fails.

        An edit is tried on some of them, and shown as a difference. Nothing is changed. The parameters are those of `start`;
        `limited` is for people who wait.
        """
        ramp, edit = read_ramp(steps, rate, halt, all_now=all_now), self._edit(patch, payload)
        ledger, pages = await self._lane.ledger(), await self._lane.pages(limited=limited)
        until = await pages.present()
        asked = await self._first(pages, replace(await self._asked(ledger, which), until=until), at_most)
        dead = await self._kept.dead_set(ledger, asked, limited=limited)
        sample = (await pages.page(asked, limit=SAMPLE)).items if dead.amount else []
        over = approvals() if approval_over is None else approval_over
        return Plan(
            ledger=self._lane.name,
            until=until,
            ramp=ramp,
            dead=dead,
            tries=self._tries(sample),
            sampled=[] if edit is None else [_sampled(edit, task) for task in sample],
            needs_approval=bool(over) and dead.amount > over,
        )

    async def start(
        self,
        which: Which,
        *,
        actor: str,
        reason: str,
        steps: Sequence[int] | str | None = None,
        rate: str | int | None = None,
        halt: float | str | None = None,
        all_now: bool = False,
        patch: Sequence[Mapping[str, Any]] | None = None,
        payload: Any = _NOT_GIVEN,
        at_most: int | None = None,
        approval_over: int | None = None,
    ) -> Operation:
        """Start bringing dead tasks back: `which` is an id, a key, several of either, or a `Filter`.

        The set is frozen at this instant: what dies later is not taken, and what somebody else changes meanwhile is skipped. `steps` are
        how many are released one after the other, each when the one before has ended (1, 5, 25, 100), and the rest follows at
        the `rate` ("20/s"). If more than `halt` ("10%") of what was released fails again, it stops by itself. `all_now` is
        everything at once, without a brake. `at_most` takes no more than the first so many: one is tried, and the others stay dead. `patch` (JSON Patch) or `payload` changes what the tasks carry; the old payload is
        kept. On more than `approval_over` tasks (by default what `REDRIVE_APPROVALS` says) it waits for another person.
        """
        _check_actor(actor, reason)
        ramp, edit = read_ramp(steps, rate, halt, all_now=all_now), self._edit(patch, payload)
        ledger = await self._lane.ledger()
        asked = await self._asked(ledger, which)
        if at_most is not None:
            asked = await self._first(await self._lane.pages(limited=False), asked, at_most)
        over = approvals() if approval_over is None else approval_over
        new = NewOperation(
            ledger=self._lane.name, asked=asked, ramp=ramp, actor=actor, reason=reason, edit=edit, approval_over=over or None
        )  # fmt: skip
        operation = await self._kept.start(new)
        self._tell(operation)
        return operation

    async def _asked(self, ledger: OperatorLedger, which: Which) -> Filter:
        if not isinstance(which, Filter):
            ids, refused = await read_names(ledger, which)
            if refused:
                raise UsageError("; ".join([*refused.values()][:5]))
            which = Filter(ids=ids)
        return check_asked(which)

    async def _first(self, pages: TaskPages, asked: Filter, at_most: int | None) -> Filter:
        """The filter with the ids of the first that match, where no more are wanted."""
        if at_most is None:
            return asked
        if not 1 <= at_most <= IDS_MAX:
            raise UsageError(
                f"at_most must be from 1 to {IDS_MAX:,}, not {at_most:,}: leave it out to take all that match"
            )
        if asked.ids is not None:
            return replace(asked, ids=asked.ids[:at_most])
        return replace(asked, ids=(await pages.ids(asked, limit=at_most)).items)

    def _edit(self, patch: Sequence[Mapping[str, Any]] | None, payload: Any) -> Edit | None:
        if patch is None and payload is _NOT_GIVEN:
            return None
        if patch is not None and payload is not _NOT_GIVEN:
            raise UsageError("give either a patch or a payload")
        if self._lane.refused_edit is not None:
            raise UsageError(self._lane.refused_edit)
        if self._lane.table.payload is None:
            raise UsageError(NO_EDIT.format(ledger=self._lane.name))
        return Edit(patch) if patch is not None else Edit(payload=payload)

    def _tries(self, sample: Sequence[Task]) -> dict[str, Sequence[Try]]:
        tries: dict[str, Sequence[Try]] = {}
        for task in sample:
            if task.kind not in tries:
                back = task._replace(state=State.WAITING, failures=0, due_at=None, ended_at=None)
                known = self._lane.to_come(back)
                if known:
                    tries[task.kind] = known
        return tries

    # --- looking --------------------------------------------------------------------------------------------------------

    async def get(self, id: str) -> Operation:
        """One operation of this lane; `UsageError` where there is none with this id."""
        operation = await self._kept.get(id)
        if operation is None or operation.ledger != self._lane.name:
            raise UsageError(f"there is no operation {id!r:.80} in {self._lane.name!r}")
        return operation

    async def list(
        self, *, state: OperationState | str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[Operation]:
        """A page of operations, the newest first; pass `page.cursor` for the next one."""
        asked = None if state is None else OperationState(state)
        return await self._kept.page(ledger=self._lane.name, state=asked, cursor=cursor, limit=limit)

    async def steps(self, id: str) -> Sequence[StepTally]:
        """What became of the tasks of each step."""
        return await self._kept.steps(id)

    async def pace(self, id: str) -> float | None:
        """How many of its tasks have ended in a second lately; None where too few have to tell."""
        now = await (await self._lane.pages()).present()
        return ends_a_second((await self._kept.moved_since(id, now - LATELY)).ended, now)

    async def failed_again(self, id: str, *, limit: int = 100) -> Sequence[FailedAgain]:
        """The last that failed again, each with whether that was of the same cause as before."""
        return await self._kept.failed_again(id, limit=limit)

    async def tasks(
        self, id: str, *, fate: Fate | str | None = None, cursor: int | None = None, limit: int = 50
    ) -> Page[SetTask]:
        """A page of its set: all, or those that were skipped, that failed again, that an edit does not fit, …"""
        return await self._kept.tasks(id, fate=None if fate is None else Fate(fate), cursor=cursor, limit=limit)

    async def skipped(self, operation: Operation) -> Mapping[str, int]:
        """Why tasks of its set were skipped, and how many for each reason: changed by others, or an effect that nobody has answered for."""
        return await self._kept.skipped(operation.id) if operation.tally.skipped else {}

    async def edits(self, id: TaskId) -> Sequence[EditedTask]:
        """What operations changed in the payload of one task, the newest first: what it was, what it is, by whom and why."""
        return await self._kept.edits(ledger=self._lane.name, task_id=str(id))

    async def edits_of(self, id: str, *, limit: int = 50) -> Sequence[EditedTask]:
        """What one operation changed in payloads, the newest first."""
        return await self._kept.edits(operation=id, limit=limit)

    # --- steering -------------------------------------------------------------------------------------------------------

    async def pause(self, id: str, *, actor: str, reason: str) -> Operation:
        """Release nothing more until somebody resumes it. What is out runs on."""
        return await self._act(OperationAct.PAUSE, id, actor, reason)

    async def resume(self, id: str, *, actor: str, reason: str) -> Operation:
        """Let a paused or halted operation go on. What failed until now does not brake it again."""
        return await self._act(OperationAct.RESUME, id, actor, reason)

    async def halt(self, id: str, *, actor: str, reason: str) -> Operation:
        """Pull the brake."""
        return await self._act(OperationAct.HALT, id, actor, reason)

    async def give_back(self, id: str, *, actor: str, reason: str) -> Operation:
        """End it: what was not released stays dead as it was."""
        return await self._act(OperationAct.GIVE_BACK, id, actor, reason)

    async def approve(self, id: str, *, actor: str, reason: str) -> Operation:
        """Let it begin; must be somebody other than whoever started it."""
        return await self._act(OperationAct.APPROVE, id, actor, reason)

    async def change(
        self, id: str, *, actor: str, reason: str, rate: str | int | None = None, halt: float | str | None = None
    ) -> Operation:
        """Change the rate, or from which share on it stops; what is not given stays."""
        _check_actor(actor, reason)
        if rate is None and halt is None:
            raise UsageError("say what is to be changed: rate, halt, or both")
        await self.get(id)
        return await self._kept.change(id, Actor(name=actor, reason=reason), rate=rate, halt=halt)

    async def _act(self, act: OperationAct, id: str, actor: str, reason: str) -> Operation:
        _check_actor(actor, reason)
        await self.get(id)
        operation = await self._kept.act(id, act, Actor(name=actor, reason=reason))
        self._tell(operation)
        return operation

    def _tell(self, operation: Operation) -> None:
        told = OperationChanged(operation.ledger, operation.id, operation.state, operation.why, operation.changed_by)
        self._lane.tell([told])


def _check_actor(actor: str, reason: str) -> None:
    if not actor.strip():
        raise UsageError("an operation is recorded with who did it: give the actor a name")
    if not reason.strip():
        raise UsageError("say why: the reason is kept with the operation and with each of its tasks")


def _sampled(edit: Edit, task: Task) -> Sampled:
    try:
        return Sampled(task_id=task.id, changes=difference(task.payload, edit.apply(task.payload)))
    except EditError as error:
        return Sampled(task_id=task.id, why=str(error))
