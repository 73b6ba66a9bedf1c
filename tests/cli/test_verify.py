"""`redrive verify`: real workers, killed and stopped, on a database of the user's."""

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from sqlalchemy import func, select

from redrive import Redrive
from redrive.cli.verifying import KIND, RunMark, judge
from redrive.core.states import State
from redrive.core.task import Attempt, Task
from redrive.ledgers.sql import schema
from redrive.ports import Filter

APPLICATION = """
from redrive import Redrive
app = Redrive({url!r})
"""
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.long_on("sqlite")
def test_promises_hold_on_a_database_of_a_user_and_nothing_is_left(tmp_path, monkeypatch, redrive, url):
    """A kill and a stall later every promise holds, and no task, attempt or deed of it is left; foreign tasks are as they were."""
    shop = f"shop_{uuid4().hex}"  # a module that was imported stays
    (tmp_path / f"{shop}.py").write_text(APPLICATION.format(url=url))
    asyncio.run(_add(url))
    monkeypatch.chdir(tmp_path)
    refused = redrive("verify", "--app", f"{shop}:app", "--kills", "1", "--stalls", "1")
    assert refused.code == 2
    assert "1 tasks wait or run in this database" in refused.err
    said = redrive("verify", "--app", f"{shop}:app", "--kills", "1", "--stalls", "1", "--beside-others", "--seed", "7")
    assert said.code == 0, said.out + said.err
    assert "nothing acknowledged is lost" in said.out
    assert "seed 7" in said.err
    assert asyncio.run(_left(url)) == ([("mail", "waiting")], 0)


async def _left(url):
    async with Redrive(url) as app:
        tasks = (await app.tasks.find(Filter())).items
        count = select(func.count()).select_from(schema.attempt)
        attempts = await app.database.read(lambda connection: connection.execute(count).scalar_one())
        return [(task.kind, task.state) for task in tasks], attempts


async def _add(url):
    async with Redrive(url) as app:
        await app.add("mail", key="foreign")


def _task(state=State.DONE):
    return Task(id=1, key="k", kind=KIND, payload=None, state=state, failures=0, created_at=NOW)


def _attempt(outcome):
    return Attempt(
        claim_id=uuid4(), number=1, started_at=NOW, ended_at=NOW, outcome=outcome, state=State.DONE, worker="w"
    )  # fmt: skip


BEGUN, ENDED = RunMark(1, "k", ended=False), RunMark(1, "k", ended=True)
SAME = _attempt("done")


@pytest.mark.parametrize(
    ("task", "attempts", "lines", "broken"),
    [
        (_task(), [_attempt("done")], [BEGUN, ENDED], set()),
        (_task(), [_attempt("lease_expired"), _attempt("done")], [BEGUN, BEGUN, ENDED, ENDED], set()),
        (None, [], [], {"nothing acknowledged is lost"}),
        (_task(State.WAITING), [_attempt("lease_expired")], [BEGUN], {"nothing acknowledged is lost"}),
        (_task(), [_attempt("done"), _attempt("done")], [BEGUN, ENDED] * 2, {"no late settlement is accepted"}),
        (_task(), [_attempt("done")], [BEGUN], {"a task is done only if its handler was"}),
        (_task(), [_attempt("done")], [BEGUN, BEGUN, ENDED], {"each claim ends in one attempt"}),
        (_task(), [_attempt("lease_expired"), SAME, SAME], [BEGUN, ENDED] * 2, {"no late settlement is accepted", "each claim ends in one attempt"}),
    ],
    ids=["fine", "late", "lost", "waiting", "twice", "made up", "unaccounted", "one claim twice"],
)  # fmt: skip
def test_a_broken_promise_is_named(task, attempts, lines, broken):
    """Each promise can fail, and only it does."""
    verdicts = judge({"k": task}, {"k": attempts}, lines, kills=1, stalls=1)
    assert {one.promise for one in verdicts if not one.holds} == broken
