"""`redrive effects` and `redrive tasks cancel --running`: looking and answering."""

import asyncio
from collections.abc import Callable

import pytest

from redrive import Context, Redrive, Task, seconds
from redrive.effects import CannotTell, Effect
from redrive.testing import VirtualClock, drain

from .said import Said

Run = Callable[..., Said]
WHY = ("--reason", "the books say so")


@pytest.fixture
def asked(url: str) -> None:
    """Two payments that a person must answer."""

    async def was_paid(_task: Task) -> CannotTell:
        return CannotTell("the bank is closed")

    async def make() -> None:
        clock = VirtualClock()
        async with Redrive(url, clock=clock, durable=False) as app:

            @app.handler("pay", effect=Effect(was_paid))
            async def pay(_task: Task, context: Context) -> None:
                async with context.effect():
                    raise TimeoutError("no answer")

            for key in ("a", "b"):
                await app.add("pay", key=key)
            await drain(app, clock=clock)

    asyncio.run(make())


@pytest.mark.usefixtures("asked")
def test_list_and_answer(stored: Run) -> None:
    """With all that is known; an answer ends it, a second finds nothing, and a wrong word is said."""
    listed = stored("effects", "list", "--json").json["effects"]
    assert [(one["task"]["key"], one["effect"]["error"]) for one in listed] == [
        ("a", "TimeoutError: no answer"), ("b", "TimeoutError: no answer"),
    ]  # fmt: skip
    shown = stored("effects", "list").out
    assert "the try: TimeoutError: no answer" in shown
    assert "the bank is closed" in shown
    assert stored("tasks", "redrive", "a", *WHY).code == 1
    answered = stored("effects", "answer", "a", "--answer", "happened", *WHY, "--json")
    assert (answered.code, len(answered.json["changed"])) == (0, 1)
    again = stored("effects", "answer", "a", "--answer", "happened", *WHY)
    assert (again.code, "no person is asked" in again.err + again.out) == (1, True)
    assert "an answer is happened" in stored("effects", "answer", "b", "--answer", "perhaps", *WHY).err
    assert "say who and why" in stored("effects", "answer", "b", "--answer", "close").err
    assert [one["task"]["key"] for one in stored("effects", "list", "--json").json["effects"]] == ["b"]
    assert stored("effects", "list", "--probing", "--json").json["effects"] == []


def test_cancel_running(stored: Run, url: str) -> None:
    """What runs is told to end, what does not is left alone, and filters are refused."""

    async def make() -> None:
        async with Redrive(url, durable=False) as app:
            await app.add("mail", key="a")
            await app.add("mail", key="b", delay=3600)
            await (await app.tasks.ledger()).claim(1, seconds(30))

    asyncio.run(make())
    told = stored("tasks", "cancel", "a", "b", "--running", "--reason", "wrong", "--json")
    assert (told.code, [one["id"] for one in told.json["asked"]]) == (0, [1])
    assert told.json["refused"] == {"2": "it does not run now"}
    assert "takes tasks by id or key" in stored("tasks", "cancel", "--kind", "mail", "--running", *WHY).err
