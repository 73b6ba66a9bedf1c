"""Marks of effects on any table: entered under the fence, closed with the settlement, and no cost where there are none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from redrive import Redrive, Task, seconds
from redrive.core.backoff import Fixed
from redrive.core.decide import decide
from redrive.core.effect import Effect, after_try
from redrive.core.effect_mark import EffectAnswer, MarkState
from redrive.core.jitter import none
from redrive.core.outcome import Done, Failed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.errors import UsageError
from redrive.ports import Actor
from redrive.testing import drain
from tests.ledgers.homes import BACKOFF, LEASE, POLICY, Home

ADA = Actor(name="ada", reason="the books say so")
EFFECT = Effect(print, policy=Policy(Fixed(BACKOFF), attempts=3, jitter=none))
tables = pytest.mark.homes(lambda table: table.name not in ("command", "commandbus_command", "retry_queue"))
"""Tables in which rows wait; queues hand tasks out by themselves."""


@tables
async def test_a_mark_is_kept_beside_any_table(home: Home) -> None:
    """A try that ends inside waits with its mark, the late one does not get in, and a done one closes it."""
    marks = home.ledger.effects
    assert marks is not None
    marks.in_use = True
    await home.put()
    [claim] = await home.ledger.claim(1, LEASE)
    mark = await marks.enter(claim)
    assert mark is not None
    lost = decide(claim, Failed(TimeoutError("no answer")), POLICY)
    assert await home.ledger.settle([after_try(lost, mark, EFFECT, definite=False)], worker="w") == []
    found = (await marks.of([claim.task.id]))[claim.task.id]
    assert (found.state, found.error, found.then is not None) == (MarkState.UNKNOWN, "TimeoutError: no answer", True)
    assert await marks.enter(claim) is None
    assert [text for text, _ in await marks.asked(MarkState.UNKNOWN)] == [str(claim.task.id)]
    home.clock.advance(BACKOFF)
    [again] = await home.ledger.claim(1, LEASE)
    entered = await marks.enter(again)
    assert entered is not None
    assert entered.first_at == mark.first_at
    done = after_try(decide(again, Done(), POLICY), entered, EFFECT, definite=False)
    assert await home.ledger.settle([done], worker="w") == []
    found = (await marks.of([claim.task.id]))[claim.task.id]
    assert (found.state, found.answer) == (MarkState.ANSWERED, EffectAnswer.HAPPENED)


async def test_where_a_queue_hands_tasks_out_effects_are_refused(url: str) -> None:
    """At registration, with one sentence."""
    async with Redrive(url) as app:

        class Queued:
            name, effects = "queued", None

        lane = app.tasks.with_own_handlers()
        lane.name = "queued"
        lane._ledger = Queued()  # type: ignore[assignment]
        with pytest.raises(
            UsageError, match="tasks of 'queued' are handed out by a queue, which cannot wait for the probe"
        ):
            lane.handler("pay", effect=Effect(print))


@contextmanager
def statements() -> Iterator[list[str]]:
    """What is asked of the database meanwhile."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("store", ["sqlite"])
async def test_without_effects_nothing_more_is_asked_of_the_database(url: str) -> None:
    """Neither adding, claiming, running nor settling looks at marks, stops or progress."""
    async with Redrive(url, durable=False) as app:

        @app.handler(retries=1, wait=seconds(0))
        async def mail(task: Task, context: Any) -> None:
            if context.attempt == 1 and task.key == "b":
                raise ConnectionError("no")

        with statements() as asked:
            for key in ("a", "b"):
                await app.add("mail", key=key)
            await drain(app)
        assert asked
        assert not [one for one in asked if any(name in one for name in ("_effect", "_stop", "_progress"))]
        assert (await app.tasks.counts())[State.DONE] == 2


async def test_a_run_can_be_told_to_end_and_tells_how_far_it_is(home: Home) -> None:
    """On any table, and where a queue of PGMQ hands the rows out; once it has ended, nobody is told any more."""
    await home.put()
    [claim] = await home.ledger.claim(1, LEASE)
    assert await home.ledger.progress.write(claim, 0.5, "half", "1")
    told = await home.ledger.progress.read(claim.task.id)
    assert told is not None
    assert (told.share, told.words, told.checkpoint) == (0.5, "half", 1)
    if home.table.words.cancelled is None:
        with pytest.raises(UsageError, match="no word for cancelled"):
            await home.ledger.ask_to_stop([claim.task.id], ADA)
        return
    assert await home.ledger.ask_to_stop([claim.task.id], ADA) == [claim.task.id]
    [stop] = await home.ledger.stops_asked()
    assert (stop.task_id, stop.claim_id, stop.actor) == (claim.task.id, claim.claim_id, "ada")
    await home.settle(claim, Done())
    assert await home.ledger.stops_asked() == []
    assert await home.ledger.ask_to_stop([claim.task.id], ADA) == []
