"""Pauses of kinds: what runs ends, what waits waits, adding goes on, and no claim is slower for it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from redrive import Filter, Redrive, State, Task, seconds
from redrive.core.gate_rules import read_rule
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.kinds import Kinds
from redrive.engine.pauses import Pauses
from redrive.errors import UsageError
from redrive.events import AttemptEnded, AttemptStarted
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ports import Actor
from redrive.testing import VirtualClock
from tests.engine.test_gate_looks import Ticks
from tests.engine.workbench import STEADY, Heard, add, handlers_of, ignore, working

ADA = Actor(name="ada", reason="the bank moves")


class Asked:
    """A ledger that can only be asked which kinds are paused, and counts how often it was."""

    def __init__(self, *names: str) -> None:
        self.names: Sequence[str] = names
        self.looks = 0

    async def paused_kinds(self) -> Sequence[str]:
        self.looks += 1
        return self.names


def kinds_of(ledger: Any, *kinds: str) -> tuple[Kinds, Pauses, Ticks]:
    handlers, clock = Handlers(), Ticks()
    for kind in kinds:
        handlers.add(make_handler(kind, ignore, STEADY))
    pauses = Pauses(ledger, clock=clock)
    return Kinds(ledger, handlers, pauses), pauses, clock


async def test_a_busy_worker_asks_twice_a_second() -> None:
    """However many claims there are; and who always asks ahead must ask again when half a second is over."""
    ledger = Asked()
    kinds, _, clock = kinds_of(ledger, "mail", "call")
    assert kinds.known() is None, "nothing is known yet"
    for _ in range(100):
        assert await kinds.to_claim() == ["mail", "call"]
        assert kinds.known() == ["mail", "call"]
    assert ledger.looks == 1
    ledger.names = ["kind:mail"]
    clock.at += 0.5
    assert kinds.known() is None
    assert await kinds.to_claim() == kinds.known() == ["call"]
    assert ledger.looks == 2


async def test_a_wake_up_counts_only_while_something_is_paused() -> None:
    """A resume is seen as soon as it is told; where nothing is paused, wake-ups come with every task and cost nothing."""
    ledger = Asked()
    kinds, pauses, clock = kinds_of(ledger, "mail")
    await kinds.to_claim()
    pauses.woken()
    await kinds.to_claim()
    assert ledger.looks == 1
    ledger.names = ["kind:*"]
    clock.at += 1
    assert await kinds.to_claim() == []
    ledger.names = []
    assert await kinds.to_claim() == []
    pauses.woken()
    assert await kinds.to_claim() == ["mail"]


async def test_a_resume_is_told_to_who_looks_behind_gates() -> None:
    """Looks there are rare while they give nothing: without it a resume would wait for the next of them, after the look that found it."""
    ledger, clock, told = Asked("kind:mail", "kind:call"), Ticks(), []
    pauses = Pauses(ledger, resumed=lambda: told.append(clock.at), clock=clock)  # type: ignore[arg-type]
    await pauses.look()
    ledger.names = ["kind:mail", "kind:send"]
    await pauses.look()
    assert len(told) == 1, "one was resumed, though another was paused meanwhile"
    ledger.names = ["kind:mail", "kind:send", "kind:*"]
    await pauses.look()
    assert len(told) == 1
    ledger.names = []
    await pauses.look()
    assert len(told) == 2


async def test_what_waits_waits_and_adding_goes_on(url: str, clock: VirtualClock) -> None:
    """A paused kind is left alone by handlers of every sort, others run; what was added meanwhile runs after the resume."""
    ran: list[str] = []
    app = Redrive(url, clock=clock, durable=False)

    @app.handler("mail.*", transactional=True)
    async def mail(task: Task, context: Any) -> None:
        ran.append(task.key)

    @app.handler
    def call(task: Task) -> None:
        ran.append(task.key)

    async with app:
        await app.add("call", key="call-1")
        await app.add("mail.sent", key="mail-1")
        await app.add("mail.sent", key="mail-2", gate="bank")
        await app.tasks.pause_gate("kind:mail.sent", actor="ada", reason="no")
        await app.add("mail.lost", key="mail-3")
        await app.work_off(app.tasks)
        assert sorted(ran) == ["call-1", "mail-3"]
        await app.tasks.pause_gate("kind:*", actor="ada", reason="no", span=3600)
        await app.add("call", key="call-2")
        await app.work_off(app.tasks)
        await app.tasks.resume_gate("kind:mail.sent", actor="ada", reason="yes")
        await app.work_off(app.tasks)
        assert len(ran) == 2
        clock.advance(timedelta(hours=1))
        await app.work_off(app.tasks)
        assert sorted(ran) == ["call-1", "call-2", "mail-1", "mail-2", "mail-3"]
        assert (await app.tasks.find(Filter(state=State.DONE))).items[0].failures == 0


@pytest.mark.every_store
async def test_a_worker_that_runs_heeds_pause_and_resume(real_ledger: SqlLedger, heard: Heard) -> None:
    """What runs ends; a resume wakes a worker that would look by itself only much later."""
    running, go_on = asyncio.Event(), asyncio.Event()

    async def job(task: Task) -> None:
        running.set()
        await go_on.wait()

    async with working(real_ledger, handlers_of(job=job, other=job), heard=heard, poll=seconds(100)):
        await add(real_ledger, "first")
        async with asyncio.timeout(60):
            await running.wait()
        assert await real_ledger.pause_gate("kind:job", ADA)
        await asyncio.sleep(0.6)  # half a second after a pause nobody claims its kind any more
        go_on.set()
        await heard.amount(AttemptEnded, 1)
        await add(real_ledger, "second")
        await add(real_ledger, "third", kind="other")
        await heard.amount(AttemptEnded, 2)
        assert [one.claim.task.key for one in heard.of(AttemptStarted)] == ["first", "third"]
        assert await real_ledger.resume_gate("kind:job", ADA)
        await heard.amount(AttemptEnded, 3)


async def test_lost_claims_of_a_paused_kind_are_settled(ledger: SqlLedger, clock: VirtualClock) -> None:
    """A pause keeps no claim from its end: the keeper settles it, and the task waits."""
    [id_] = await add(ledger, "lost")
    assert len(await ledger.claim(1, seconds(10), kinds=["job"])) == 1
    await ledger.pause_gate("kind:job", ADA)
    clock.advance(seconds(11))
    async with working(ledger, handlers_of(job=ignore)) as worker:
        assert worker.running == 0
        async with asyncio.timeout(60):
            while (task := await ledger.get(id_)) is not None and task.state is not State.WAITING:
                await asyncio.sleep(0.01)
    assert [one.outcome for one in await ledger.attempts(id_)] == ["lease_expired"]


@pytest.mark.parametrize("name", ["kind:mail", "kind:*"])
async def test_limits_are_not_for_kinds(ledger: SqlLedger, name: str) -> None:
    """A kind can only be paused; limits that fit all names leave pauses alone."""
    with pytest.raises(UsageError, match="can only be paused"):
        await ledger.set_rule(name, read_rule(concurrency=1), ADA)
    await ledger.pause_gate(name, ADA)
    await ledger.set_rule("*", read_rule(concurrency=1), ADA)
    assert await ledger.paused_kinds() == [name]
    found = await ledger.gate(name)
    assert found is not None
    assert (found[0].rule, found[0].ready) == (None, False)


async def test_what_is_still_paused_is_not_resumed() -> None:
    """Who looks behind gates is told of what was resumed, and not of each look while nothing changes or more is paused."""
    ledger, told = Asked("kind:a"), list[int]()
    pauses = Pauses(ledger, resumed=lambda: told.append(ledger.looks), clock=Ticks())  # type: ignore[arg-type]
    for names in (["kind:a"], ["kind:a"], ["kind:a", "kind:b"], ["kind:b"], [], []):
        ledger.names = names
        await pauses.look()
    assert told == [4, 5]
    assert pauses.without(["a"]) == ["a"]
