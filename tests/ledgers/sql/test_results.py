"""A handler's return value is the result of its task: kept in the commit that says that it is done, and with the task gone."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select

from redrive import Cancelled, Redrive, State, seconds
from redrive.errors import NoResultError, PermanentError, UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.results import RESULT_BYTES_MAX
from redrive.ports import Actor, Return
from redrive.testing import drain


@dataclass
class Total:
    """A result with a type."""

    cents: int


RESULTS: dict[str, Any] = {
    "number": 7, "empty": [], "false": False, "typed": Total(700), "text": "x\0y", "none": None,
    "large": "x" * RESULT_BYTES_MAX, "object": object(),
}  # fmt: skip


@pytest.fixture
async def app(url: str) -> AsyncIterator[Redrive]:
    """An application whose handler returns what is asked of it."""
    async with Redrive(url) as made:

        @made.handler(retries=0)
        async def give(task: Any) -> Any:
            if task.key == "dead":
                raise PermanentError("no way")
            return Cancelled("not any more") if task.key == "cancelled" else RESULTS[task.key]

        @made.handler(transactional=True)
        async def give_within(_task: Any) -> Any:
            return {"a": 1}

        yield made


async def test_what_a_handler_returned_is_the_result(app: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    """Any JSON, also in its own transaction; what is too large or not JSON is not kept, and the task is done all the same."""
    for key in RESULTS:
        await app.add("give", key=key)
    await app.add("give_within", key="within")
    with caplog.at_level(logging.WARNING, "redrive"):
        await drain(app)
    found = {key: await app.result(key) for key in [*RESULTS, "within"]}
    assert found == {
        "number": 7, "empty": [], "false": False, "typed": {"cents": 700}, "text": "x\0y", "none": None, "large": None, "object": None,
        "within": {"a": 1},
    }  # fmt: skip
    assert caplog.text.count("the result of 'give' tasks is not kept: the result is") == 1


async def test_what_did_not_end_well_has_none(app: Redrive) -> None:
    """Dead, cancelled, waiting or unknown: the error says which, and with what error."""
    for key in ("dead", "cancelled"):
        await app.add("give", key=key)
    await drain(app)
    await app.add("give", key="number", delay=3600)
    for key, said, ended in (
        ("dead", "is dead: PermanentError: no way", True),
        ("cancelled", "is cancelled: not any more", True),
        ("number", "is not done yet: it is waiting", False),
    ):
        with pytest.raises(NoResultError, match=said) as refused:
            await app.result(key)
        assert refused.value.ended is ended
    with pytest.raises(UsageError, match="there is no task with key 'nobody'"):
        await app.result("nobody")


@pytest.mark.parametrize("store", ["sqlite"])
async def test_it_can_be_waited_for(app: Redrive) -> None:
    """Whoever waits gets it when the task is done."""
    await app.add("give", key="number")
    waiting = asyncio.create_task(app.result("number", wait=seconds(60)))
    await drain(app)
    assert await waiting == 7


async def test_a_result_goes_with_its_task_and_with_its_end(app: Redrive) -> None:
    """A task that is pruned leaves none behind, and one that comes back has none until it is done again."""
    await app.add("give", key="number")
    await app.add("give", key="typed")
    await drain(app)
    ledger = await app.tasks.ledger()
    task = await app.tasks.get("typed")
    assert task is not None
    assert await rows(app) == 2
    await ledger.return_([Return(id=task.id, failures=0, delay=seconds(0))], Actor(name="ada"))
    assert await rows(app) == 1
    assert await ledger.prune([State.DONE], seconds(0)) == 1
    assert await rows(app) == 0


async def rows(app: Redrive) -> int:
    """How many results are kept."""
    return await app.database.read(
        lambda connection: connection.execute(select(func.count(schema.result.c.at))).scalar_one()
    )


@pytest.mark.parametrize("store", ["sqlite"])
async def test_without_a_result_nothing_more_is_asked_of_the_database(app: Redrive) -> None:
    """A task whose handler returns nothing costs no statement."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await app.add("give", key="none")
        await drain(app)
        assert not any("redrive_result" in one for one in asked)
        await app.add("give", key="number")
        await drain(app)
        assert sum("INSERT INTO redrive_result" in one for one in asked) == 1
    finally:
        event.remove(Engine, "before_cursor_execute", note)
