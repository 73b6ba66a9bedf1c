"""Answers that hold for a moment."""

import asyncio

import pytest

from redrive.web.answers import Answers


async def test_an_answer_is_made_once_however_many_ask() -> None:
    """Also by those who come later, as long as it is fresh; each name has an answer of its own."""
    answers, made = Answers(), list[str]()

    async def make(name: str) -> str:
        made.append(name)
        await asyncio.sleep(0)
        return name

    asked = [answers.get("a", 60, lambda: make("a")) for _ in range(5)]
    assert await asyncio.gather(*asked, answers.get("b", 60, lambda: make("b"))) == ["a"] * 5 + ["b"]
    assert await answers.get("a", 60, lambda: make("again")) == "a"
    assert await answers.get("a", 0, lambda: make("anew")) == "anew"
    assert made == ["a", "b", "anew"]


async def test_a_failure_is_not_kept() -> None:
    """Whoever asks next has it made again."""
    answers = Answers()

    async def fail() -> str:
        raise ValueError("away")

    async def make() -> str:
        return "well"

    with pytest.raises(ValueError, match="away"):
        await answers.get("a", 60, fail)
    assert await answers.get("a", 60, make) == "well"


async def test_whoever_stops_waiting_takes_it_from_nobody() -> None:
    """A caller who is cancelled leaves the answer to the others."""
    answers, gate = Answers(), asyncio.Event()

    async def make() -> str:
        await gate.wait()
        return "well"

    impatient = asyncio.create_task(answers.get("a", 60, make))
    patient = asyncio.create_task(answers.get("a", 60, make))
    await asyncio.sleep(0)
    impatient.cancel()
    gate.set()
    assert await patient == "well"
    with pytest.raises(asyncio.CancelledError):
        await impatient
