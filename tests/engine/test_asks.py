"""Claims whose answer is late or lost: what they took is found, run or given back, and charged to nobody."""

import asyncio
from contextlib import suppress

import pytest

from redrive.core.states import State
from redrive.engine.asks import Asks
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import LedgerAwayError
from redrive.events import (
    AttemptEnded,
)
from tests.core.test_decide import claim_of
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


class Claiming:
    """A ledger that keeps what it is asked, and answers with these, one after the other: claims, an error, or nothing at all."""

    def __init__(self, *answers):
        self.asked = []
        self.answers = list(answers)

    async def claim(self, *given, **options):
        return await self._answer(("claim", *given, options))

    async def recall(self, *given):
        return await self._answer(("recall", *given))

    async def _answer(self, asked):
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return answer


def nothing_held():
    return []


ONE, TWO = [claim_of(key="one")], [claim_of(key="two")]
PATIENCE = 0.05


async def test_what_is_sent_for_is_what_was_asked():
    """Each claim has a fence of its own; what is for the reserve says so, also where nobody is busy."""
    ledger = Claiming(ONE, [], TWO)
    asks = Asks(ledger, SECOND, nothing_held)
    assert (asks.under_way, asks.unheard, asks.for_reserve) == (False, False, False)
    asks.send(5, ["job"])
    assert asks.under_way is True
    assert await asks.answer() == ONE
    assert (asks.under_way, asks.unheard, asks.for_reserve) == (False, False, False)
    asks.send(6, ["job"], gates=False)
    assert await asks.answer() == []
    asks.send(7, ["job"], busy=[])
    assert (await asks.answer(), asks.for_reserve) == (TWO, True)
    fences = [options.pop("fence") for *_, options in ledger.asked]
    assert len(set(fences)) == 3
    how = {"kinds": ["job"], "held": nothing_held, "gates": True, "busy": None}
    assert ledger.asked == [
        ("claim", 5, SECOND, how),
        ("claim", 6, SECOND, how | {"gates": False}),
        ("claim", 7, SECOND, how | {"busy": []}),
    ]


async def test_a_lost_answer_is_asked_for_under_its_fence():
    """Until the ledger says what it took, or cannot say it: an outage is no answer, any other error is."""
    ledger = Claiming(LedgerAwayError("cut"), LedgerAwayError("still"), ONE, OSError("odd"), OSError("odder"))
    asks = Asks(ledger, SECOND, nothing_held)
    asks.send(5, ["job"])
    unheard = []
    for again in (True, True, False):
        with suppress(LedgerAwayError):
            assert await asks.answer() == ONE
        unheard.append((asks.unheard, asks.under_way))
        if again:
            asks.send_again()
    assert unheard == [(True, False), (True, False), (False, False)]
    [(*_, options), *recalls] = ledger.asked
    assert recalls == [("recall", options["fence"], SECOND)] * 2
    asks.send(5, ["job"])
    with pytest.raises(OSError, match="odd"):
        await asks.answer()
    assert asks.unheard
    asks.send_again()
    with pytest.raises(OSError, match="odder"):
        await asks.answer()
    assert not asks.unheard


@pytest.mark.parametrize(
    ("answers", "found", "asked"),
    [
        ([], [], []),
        ([ONE], ONE, ["claim"]),
        ([[]], [], ["claim"]),
        ([LedgerAwayError("cut"), ONE], ONE, ["claim", "recall"]),
        ([LedgerAwayError("cut"), LedgerAwayError("still")], [], ["claim", "recall"]),
        ([None, ONE], ONE, ["claim", "recall"]),
        ([None, None], [], ["claim", "recall"]),
    ],
    ids=["nothing", "claims", "no claims", "lost", "lost for good", "silent", "silent for good"],
)
async def test_in_the_end_everything_is_asked_for_once(answers, found, asked):
    """What is under way is waited for, and asked for again where no answer comes; then there is no time left."""
    ledger = Claiming(*answers)
    asks = Asks(ledger, SECOND, nothing_held)
    if answers:
        asks.send(5, ["job"])
    async with asyncio.timeout(60):
        assert await asks.end(PATIENCE) == found
    assert [one for one, *_ in ledger.asked] == asked
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1, "nothing is left under way"


async def test_in_the_end_what_was_not_heard_is_asked_for():
    """Also where the answer was lost before."""
    ledger = Claiming(LedgerAwayError("cut"), ONE)
    asks = Asks(ledger, SECOND, nothing_held)
    asks.send(5, ["job"])
    with pytest.raises(LedgerAwayError):
        await asks.answer()
    assert await asks.end(PATIENCE) == ONE
    assert [one for one, *_ in ledger.asked] == ["claim", "recall"]
