"""Answers that hold for a moment, each made once however many ask at the same time."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request

R = TypeVar("R")

KEPT_MAX = 200


class Answers:
    """The answers of a service."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, name: Any, fresh_seconds: float, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """The answer of this name, made anew if it is older than that, or failed."""
        made = self._made.get(name)
        if made is None or time.monotonic() - made[0] >= fresh_seconds or _failed(made[1]):
            while len(self._made) >= KEPT_MAX:
                self._made.pop(next(iter(self._made)))
            made = (time.monotonic(), asyncio.create_task(make()))
            self._made[name] = made
        # Shielded: whoever stops waiting must not take the answer away from the others.
        answer: R = await asyncio.shield(made[1])
        return answer


def _failed(made: asyncio.Task[Any]) -> bool:
    return made.done() and (made.cancelled() or made.exception() is not None)


def answers_of(request: Request) -> Answers:
    """The answers of the service that the request is for."""
    answers: Answers = request.app.state.answers
    return answers
