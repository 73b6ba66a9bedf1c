"""Claims whose answer is late or lost: what they took is found, run or given back, and charged to nobody."""

import asyncio

import pytest

from redrive.core.states import State
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import LedgerAwayError
from redrive.events import (
    AttemptEnded,
)
from tests.engine.workbench import ONCE, SECOND, Faulty, add, handlers_of, ignore, working


@pytest.mark.every_store
async def test_stop_gives_back_a_claim_under_way(real_ledger):
    """Tasks that are being claimed while the worker is stopped are not held until their lease ends."""
    faulty = Faulty(real_ledger)
    claiming, answer = asyncio.Event(), asyncio.Event()

    async def claim(limit, lease, **options):
        claims = await real_ledger.claim(limit, lease, **options)
        if claims:
            claiming.set()
            await answer.wait()
        return claims

    faulty.claim = claim
    started = []
    [id_] = await add(real_ledger, "one")
    worker = Worker(faulty, handlers_of(job=started.append), WorkerSettings(grace=SECOND))
    running = asyncio.create_task(worker.run())
    await claiming.wait()
    worker.stop()
    await asyncio.sleep(0)
    answer.set()
    await running
    assert started == []
    task = await real_ledger.get(id_)
    assert (task.state, task.failures) == (State.WAITING, 0)
    assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["released"]


@pytest.mark.every_store
async def test_stop_gives_back_a_claim_whose_answer_is_lost(real_ledger):
    """Also what a claim took whose answer never came goes back uncharged when the worker stops."""
    faulty = Faulty(real_ledger)
    claiming, answer = asyncio.Event(), asyncio.Event()

    async def claim(limit, lease, **options):
        claims = await real_ledger.claim(limit, lease, **options)
        if claims:
            claiming.set()
            await answer.wait()
            raise LedgerAwayError("the answer was lost")
        return claims

    faulty.claim = claim
    [id_] = await add(real_ledger, "one")
    worker = Worker(faulty, handlers_of(job=ignore), WorkerSettings(grace=SECOND))
    running = asyncio.create_task(worker.run())
    await claiming.wait()
    worker.stop()
    await asyncio.sleep(0)
    answer.set()
    await running
    task = await real_ledger.get(id_)
    assert (task.state, task.failures) == (State.WAITING, 0)
    assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["released"]


def losing_answers(ledger, lost=(LedgerAwayError("the answer was lost"),), *, recalls=()):
    """A ledger that takes tasks and does not say so, and then raises these when it is asked what it took."""
    faulty, lost, recalls = Faulty(ledger), list(lost), list(recalls)

    async def claim(limit, lease, **options):
        claims = await ledger.claim(limit, lease, **options)
        if claims and lost:
            raise lost.pop()
        return claims

    async def recall(fence, lease):
        if recalls:
            raise recalls.pop()
        return await ledger.recall(fence, lease)

    faulty.claim, faulty.recall = claim, recall
    return faulty


@pytest.mark.parametrize("error", [LedgerAwayError("cut"), OSError("odd")], ids=["away", "odd"])
async def test_a_claim_whose_answer_is_lost_runs_all_the_same(real_ledger, heard, error):
    """The worker asks for what it holds under its fence: nothing is charged, though the policy allows one try only."""
    ids = await add(real_ledger, "a", "b")
    faulty = losing_answers(real_ledger, [error])
    async with working(faulty, handlers_of(policy=ONCE, job=ignore), heard=heard, lease=SECOND):
        ended = await heard.amount(AttemptEnded, 2)
        await add(real_ledger, "next")
        await heard.amount(AttemptEnded, 3)
    assert [event.settlement.outcome for event in ended] == ["done", "done"]
    assert [len(await real_ledger.attempts(id_)) for id_ in ids] == [1, 1]


async def test_the_question_survives_an_outage(real_ledger, heard):
    """While the ledger is away the worker goes on asking for what it may hold, and claims nothing before it knows."""
    faulty = losing_answers(real_ledger, recalls=[LedgerAwayError("still"), LedgerAwayError("away")])
    [id_] = await add(real_ledger, "one")
    async with working(faulty, handlers_of(policy=ONCE, job=ignore), heard=heard):
        await heard.amount(AttemptEnded, 1)
    assert (await real_ledger.get(id_)).state is State.DONE


async def test_a_question_that_cannot_be_answered_stops_nothing(real_ledger, heard):
    """Where the ledger cannot say what it holds, the lease brings it back, and other work goes on."""
    faulty = losing_answers(real_ledger, recalls=[ValueError("cannot be read")])
    await add(real_ledger, "one")
    async with working(faulty, handlers_of(job=ignore), heard=heard) as worker:
        await add(real_ledger, "two")
        [ended] = await heard.amount(AttemptEnded, 1)
        assert worker.running == 0
    assert ended.settlement.claim.task.key == "two"
