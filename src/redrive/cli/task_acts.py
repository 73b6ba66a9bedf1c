"""What `redrive tasks redrive`, `cancel` and `resolve` do: count first, ask, then change what was counted and nothing else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from redrive.cli.opened import Ledgers, on_ledgers, os_user
from redrive.cli.output import PROBLEM, err, print_json, say
from redrive.cli.where import Where
from redrive.core.states import Act, State
from redrive.core.table import TASKS
from redrive.core.task import TaskId
from redrive.errors import UsageError
from redrive.lane import Lane
from redrive.operator.acts import PAST, Acted
from redrive.operator.json_views import id_json, instant_json
from redrive.operator.names import find_meant, read_names
from redrive.ports import Filter

REFUSED_SHOWN_MAX = 20


async def by_lane(lanes: list[Lane], names: list[str]) -> dict[Lane, list[str]]:
    """In which lane each of these tasks is, by id or key; what is nowhere is left to the first. Two tasks are never guessed at."""
    meant = {lane: await find_meant(await lane.ledger(), names) for lane in lanes}
    by_lane: dict[Lane, list[str]] = {}
    for name in names:
        holders = [lane for lane in lanes if meant[lane][name]]
        if len(holders) > 1:
            there = " and of ".join(lane.name for lane in holders)
            raise UsageError(f"{name!r:.80} is a task of {there}: choose one with --lane")
        by_lane.setdefault((holders or lanes)[0], []).append(name)
    return by_lane


@dataclass(frozen=True, slots=True)
class AskedAct:
    """An act as it was asked for: counted first, confirmed, then done on what was counted and nothing else."""

    act: Act
    asked: Filter
    names: list[str] | None
    every: bool
    at_most: int | None
    dry_run: bool
    reason: str
    by: str | None
    yes: bool
    end: State = State.DONE
    """How resolved tasks end."""

    def __post_init__(self) -> None:
        if self.asked == Filter(until=self.asked.until) and not (self.names or self.every):
            raise UsageError("say which tasks: ids, --kind, --key, --error, --cause, --older-than, or --all")
        if not (self.dry_run or self.reason.strip()):
            raise UsageError("say why: --reason is kept with each task")

    @property
    def actor(self) -> str:
        """Who does it."""
        return self.by if self.by is not None else os_user()

    def run(self, where: Where) -> None:
        """Do it, and say what it came to."""
        done = on_ledgers(self._work, where)
        if where.json:
            self._print_json(done)
        else:
            self._say(done)
        if not (done.matched if self.dry_run else done.changed):
            raise typer.Exit(PROBLEM)

    async def _work(self, ledgers: Ledgers) -> "_Done":
        done = _Done(unseen=dict(ledgers.unseen))
        asked = dict.fromkeys(ledgers.lanes, self.asked)
        if self.names:
            asked = {}
            for lane, names in (await by_lane(ledgers.lanes, self.names)).items():
                ids, unknown = await read_names(await lane.ledger(), names)
                if unknown:  # a mistake in one name stops it all: nobody wants half of what was meant
                    raise UsageError("; ".join(unknown.values()))
                asked[lane] = replace(self.asked, ids=ids)
        seen = await self._count(asked, done)
        if self.dry_run or not done.matched:
            return done
        if done.matched > 1 and not self.yes and not _confirmed(self.act, seen):
            return done
        with _progress(self.act, done.matched) as advance:
            for lane, before in seen.items():
                if before.matched:
                    how: dict[str, Any] = {"until": before.until, "at_most": before.matched, "progress": advance}
                    done.by_ledger[lane.name] = await self._change(lane, asked[lane], **how)
        return done

    async def _count(self, asked: dict[Lane, Filter], done: "_Done") -> dict[Lane, Acted]:
        """What would be changed in each ledger, all as of one instant."""
        seen: dict[Lane, Acted] = {}
        until = None
        for lane, which in asked.items():
            left = None if self.at_most is None else self.at_most - done.matched
            try:
                counted = await self._change(lane, which, dry_run=True, at_most=left, until=until)
            except UsageError as error:  # this ledger knows no such act or filter; the others may
                if len(asked) == 1:
                    raise
                done.unseen[lane.name] = str(error)
                continue
            until = until or counted.until
            seen[lane] = done.by_ledger[lane.name] = counted
        return seen

    async def _change(self, lane: Lane, which: Filter, **how: Any) -> Acted:
        how |= {"actor": self.actor, "reason": self.reason.strip()}
        if self.act is Act.RESOLVE:
            return await lane.resolve(which, self.end, **how)
        return await (lane.redrive if self.act is Act.REDRIVE else lane.cancel)(which, **how)

    def _print_json(self, done: "_Done") -> None:
        print_json(
            {
                "act": self.act.value,
                "matched": done.matched,
                "changed": [{"ledger": ledger, "id": id_json(id_)} for ledger, id_ in done.changed],
                "refused": [
                    {"ledger": ledger, "id": id_json(id_), "reason": reason} for ledger, id_, reason in done.refused
                ],
                "until": instant_json(done.until),
                "dry_run": self.dry_run,
                "unseen": done.unseen,
            }
        )

    def _say(self, done: "_Done") -> None:
        for _, id_, reason in done.refused[:REFUSED_SHOWN_MAX]:
            say(f"task {escape(str(id_))} was left alone: {escape(reason)}")
        for name, reason in done.unseen.items():
            say(f"[yellow]left alone: {escape(name)}[/]: {escape(reason)}")
        if self.dry_run:
            say(f"would {self.act} {done.matched} task{'' if done.matched == 1 else 's'}{done.where}")
        elif done.matched:
            say(f"{self.act}: {len(done.changed)} of {done.matched} changed, by {escape(self.actor)}")
        elif not done.refused:
            before = "waiting" if self.act is Act.CANCEL else "dead"
            say(f"no task matches: only {before} tasks can be {PAST[self.act]}")


def cancel_running(names: list[str], reason: str, by: str | None, where: Where) -> None:
    """Ask running tasks to end as cancelled, and say which were asked."""
    actor = by if by is not None else os_user()

    async def tell(ledgers: Ledgers) -> _Done:
        done = _Done(unseen=dict(ledgers.unseen))
        for one, given in (await by_lane(ledgers.lanes, names)).items():
            done.by_ledger[one.name] = await one.cancel_running(given, actor=actor, reason=reason.strip())
        return done

    done = on_ledgers(tell, where)
    if where.json:
        asked = [{"ledger": ledger, "id": id_json(id_)} for ledger, id_ in done.changed]
        print_json(
            {"act": "cancel running", "asked": asked, "refused": {str(id_): why for _, id_, why in done.refused}}
        )
    else:
        for _, id_, why in done.refused[:REFUSED_SHOWN_MAX]:
            say(f"task {escape(str(id_))} was left alone: {escape(why)}")
        amount = len(done.changed)
        say(
            f"{amount} task{'' if amount == 1 else 's'} told to end, by {escape(actor)}: `redrive tasks show` says how each ended"
        )
    if not done.changed:
        raise typer.Exit(PROBLEM)


@dataclass(slots=True)
class _Done:
    """What an act came to, or would come to, in each ledger; and which ledgers it could not be asked of."""

    by_ledger: dict[str, Acted] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)

    @property
    def matched(self) -> int:
        """In all."""
        return sum(acted.matched for acted in self.by_ledger.values())

    @property
    def changed(self) -> list[tuple[str, TaskId]]:
        """The tasks that changed."""
        return [(ledger, id_) for ledger, acted in self.by_ledger.items() for id_ in acted.changed]

    @property
    def refused(self) -> list[tuple[str, TaskId, str]]:
        """The tasks that were left alone, and why."""
        return [(name, id_, why) for name, acted in self.by_ledger.items() for id_, why in acted.refused.items()]

    @property
    def until(self) -> datetime | None:
        """The instant that it was frozen at."""
        return next((acted.until for acted in self.by_ledger.values() if acted.until is not None), None)

    @property
    def where(self) -> str:
        """How many in which ledger, where that is not just redrive's own."""
        return _where({name: acted.matched for name, acted in self.by_ledger.items()})


def _where(amounts: dict[str, int]) -> str:
    told = {name: amount for name, amount in amounts.items() if amount}
    return (
        ""
        if set(told) <= {TASKS.name}
        else f" ({', '.join(f'{amount} of {escape(name)}' for name, amount in told.items())})"
    )


def _confirmed(act: Act, seen: dict[Lane, Acted]) -> bool:
    amounts = {lane.name: acted.matched for lane, acted in seen.items()}
    return typer.confirm(f"{act} {sum(amounts.values())} tasks{_where(amounts)}?", err=True)


@contextmanager
def _progress(act: Act, amount: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while many tasks are changed."""
    columns = TextColumn(act.value), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err(), transient=True, disable=amount < 2) as bar:
        row = bar.add_task("", total=amount)
        yield lambda done: bar.advance(row, done)
