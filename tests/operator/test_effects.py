"""A person answers whether it happened, and nothing runs before."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive import Context, Redrive, State, Task, minutes
from redrive.core.effect_mark import EffectAnswer, MarkState
from redrive.effects import CannotTell, Effect
from redrive.errors import UsageError
from redrive.operator.carrier import Carrier
from redrive.operator.effects import unknown_json
from redrive.ports import Filter
from redrive.testing import VirtualClock, drain


@pytest.fixture
def paid() -> list[str]:
    return []


@pytest.fixture
async def app(url: str, clock: VirtualClock, paid: list[str]) -> AsyncIterator[Redrive]:
    """An application whose payments are all in question: the first try of each ends without an answer."""
    tried: set[str] = set()

    async def was_paid(_task: Task) -> CannotTell:
        return CannotTell("the bank is closed")

    async with Redrive(url, clock=clock, durable=False) as made:

        @made.handler("pay", attempts=3, effect=Effect(was_paid))
        async def pay(task: Task, context: Context) -> None:
            async with context.effect():
                if task.key not in tried:
                    tried.add(task.key)
                    raise TimeoutError("no answer")
                paid.append(task.key)

        for key in ("a", "b", "c"):
            await made.add("pay", key=key)
        await drain(made, clock=clock)
        yield made


async def state_of(app: Redrive, key: str) -> State:
    task = await app.tasks.get(key)
    assert task is not None
    return task.state


async def test_a_person_answers(app: Redrive, clock: VirtualClock, paid: list[str]) -> None:
    """Happened is done, not happened is retried, closed is cancelled; each with who and why, and once."""
    page = await app.tasks.unknown_effects()
    assert sorted(one.task.key for one in page.items) == ["a", "b", "c"]
    assert all(one.needs_person and "the bank is closed" in one.says() for one in page.items)
    shown = unknown_json(page.items[0])
    assert (shown["effect"]["error"], shown["effect"]["state"]) == ("TimeoutError: no answer", "person")
    for key, answer, state in (
        ("a", "happened", State.DONE),
        ("b", "not-happened", State.WAITING),
        ("c", EffectAnswer.CLOSED, State.CANCELLED),
    ):
        acted = await app.tasks.answer(key, answer, actor="ada", reason="the books say so")
        assert len(acted.changed) == 1
        assert await state_of(app, key) is state
        again = await app.tasks.answer(key, answer, actor="ada", reason="again")
        assert (again.changed, len(again.refused)) == ((), 1)
    await drain(app, clock=clock)
    assert (paid, await state_of(app, "b")) == (["b"], State.DONE)
    assert (await app.tasks.unknown_effects()).items == []
    task = await app.tasks.get("b")
    assert task is not None
    assert [(one.act, one.actor, one.reason) for one in await app.tasks.deeds(task.id)] == [
        ("redrive", "ada", "it did not happen: the books say so")
    ]


async def test_no_redrive_runs_it_before(app: Redrive, clock: VirtualClock, paid: list[str]) -> None:
    """Single, in bulk or by an operation: it is counted as refused or skipped, and stays dead."""
    acted = await app.tasks.redrive(Filter(kind="pay"), actor="ada", reason="all of them")
    assert (acted.changed, acted.matched, len(acted.refused)) == ((), 3, 3)
    started = await app.tasks.operations.start(Filter(kind="pay"), actor="ada", reason="step by step")
    carrier = Carrier(app.store.operations, lambda: app.lanes, "test")
    for _ in range(10):
        clock.advance(minutes(1))
        await carrier.round()
    operation = await app.store.operations.get(started.id)
    assert operation is not None
    assert (operation.tally.released, operation.tally.skipped) == (0, 3)
    await drain(app, clock=clock)
    assert paid == []
    assert {await state_of(app, key) for key in "abc"} == {State.DEAD}


async def test_whoever_ends_a_task_closes_its_question(app: Redrive) -> None:
    """Resolved as done it happened, resolved as cancelled nobody asks any more."""
    for key, end, answer in (("a", State.DONE, EffectAnswer.HAPPENED), ("b", State.CANCELLED, EffectAnswer.CLOSED)):
        task = await app.tasks.get(key)
        assert task is not None
        await app.tasks.resolve(key, end, actor="ada", reason="dealt with")
        mark = await app.tasks.effect(task.id)
        assert mark is not None
        assert (mark.state, mark.answer, mark.answered_by) == (MarkState.ANSWERED, answer, "ada")


@pytest.mark.parametrize("store", ["sqlite"])
async def test_what_cannot_be_answered_is_said(app: Redrive) -> None:
    """An unknown word, nobody, and no reason."""
    with pytest.raises(UsageError, match="an answer is happened, not-happened, close"):
        await app.tasks.answer("a", "perhaps", actor="ada", reason="x")
    for who in ({"actor": " ", "reason": "x"}, {"actor": "ada", "reason": ""}):
        with pytest.raises(UsageError, match="say who and why"):
            await app.tasks.answer("a", "happened", **who)


async def test_pages_go_on_where_they_ended(app: Redrive) -> None:
    """Two at a time, each once."""
    met: list[Any] = []
    cursor: str | None = None
    while True:
        page = await app.tasks.unknown_effects(cursor=cursor, limit=2)
        met += [one.task.key for one in page.items]
        if page.cursor is None:
            break
        cursor = str(page.cursor)
    assert sorted(met) == ["a", "b", "c"]
    assert (await app.tasks.unknown_effects(needs_person=False)).items == []
    with pytest.raises(UsageError, match="cursor holds a character that no database stores"):
        await app.tasks.unknown_effects(cursor="a\0b")
