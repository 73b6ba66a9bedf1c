"""Messages that an event source hands over: worked off with all that belongs to it, and those that must come again are known."""

import asyncio
from typing import Any

from redrive.core.backoff import Fixed
from redrive.core.durations import ZERO, minutes, seconds
from redrive.core.policy import Policy
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import LedgerAwayError, TransientError
from redrive.ledgers.aws.handed import hand_over
from redrive.ledgers.aws.queue import Message, to_body
from tests.ledgers.aws.homes import ItemHome
from tests.ledgers.homes import LEASE

STORES = ("aws",)


def body(id: Any, due: int = 0) -> tuple[str, str]:
    """A message about the event of a task, under its own id."""
    head = str(id).partition(".")[0]
    return f"m-{head}", to_body(Message(head, due))


def worker(ledger: Any, handle: Any, **given: Any) -> Worker:
    handlers = Handlers()
    handlers.add(make_handler(ledger.name, handle, Policy(Fixed(seconds(60)), retries=3)))
    return Worker(ledger, handlers, WorkerSettings(lease=LEASE, **given))


async def test_what_is_handed_over_is_worked_off(home: ItemHome) -> None:
    """Each message's event is delivered, a message that comes twice changes nothing, and the worker stops by itself."""
    ids = await home.put(6)
    asked = home.ledger.queue.receive
    home.ledger.queue.receive = None  # type: ignore[assignment]  # nobody asks the queue itself
    handed, queue = hand_over(
        home.ledger, [body(ids[0]), ("again", body(ids[0])[1]), body(ids[3])], is_closing=lambda: False
    )
    done: list[Any] = []

    async def deliver(task: Any) -> None:
        done.append(task.id)

    await worker(handed, deliver).run(until_idle=True)
    home.ledger.queue.receive = asked  # type: ignore[method-assign]
    assert sorted(map(str, done)) == sorted(map(str, ids))
    assert queue.unheeded == []
    assert (await home.standing(ids[5]))["status"] == "delivered"


async def test_a_failed_delivery_is_no_failed_message(home: ItemHome) -> None:
    """Its retry stands in the event, with a message of its own."""
    [id_] = await home.put()
    await home.ledger.queue.delete(await home.ledger.queue.receive(9, ZERO))
    handed, queue = hand_over(home.ledger, [body(id_)], is_closing=lambda: False)

    async def deliver(task: Any) -> None:
        raise TransientError("no")

    await worker(handed, deliver).run(until_idle=True)
    assert queue.unheeded == []
    assert await home.ledger.queue.depth() == 1
    assert (await home.standing(id_))["retry_attempts"] == 1


async def test_what_cannot_be_read_or_claimed_comes_again(home: ItemHome, monkeypatch: Any) -> None:
    """And the others of the batch are worked off all the same."""
    ids = await home.put(6)
    take = type(home.ledger)._take
    refused = str(ids[0]).partition(".")[0]

    async def sometimes(self: Any, head: Any, *given: Any) -> Any:
        if head.id == refused:
            raise LedgerAwayError("the table is busy")
        return await take(self, head, *given)

    monkeypatch.setattr(type(home.ledger), "_take", sometimes)
    handed, queue = hand_over(home.ledger, [("torn", "{"), body(ids[0]), body(ids[3])], is_closing=lambda: False)

    async def deliver(task: Any) -> None:
        pass

    await worker(handed, deliver).run(until_idle=True)
    assert queue.unheeded == ["torn", body(ids[0])[0]]
    assert (await home.standing(ids[0]))["status"] == "received"
    assert (await home.standing(ids[3]))["status"] == "delivered"


async def test_nothing_is_begun_when_it_is_too_late(home: ItemHome) -> None:
    """Every message comes again, and no event has changed."""
    [id_] = await home.put()
    handed, queue = hand_over(home.ledger, [body(id_)], is_closing=lambda: True)

    async def deliver(task: Any) -> None:
        raise AssertionError

    await worker(handed, deliver).run(until_idle=True)
    assert queue.unheeded == [body(id_)[0]]
    assert (await home.standing(id_))["status"] == "received"


async def test_what_does_not_end_in_time_is_given_back(home: ItemHome) -> None:
    """A worker that is told to stop gives back what runs, uncharged, with a message for whoever is next."""
    [id_] = await home.put()
    await home.ledger.queue.delete(await home.ledger.queue.receive(9, ZERO))
    handed, queue = hand_over(home.ledger, [body(id_)], is_closing=lambda: False)
    started = asyncio.Event()

    async def deliver(task: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    working = worker(handed, deliver, grace=ZERO)
    running = asyncio.create_task(working.run(until_idle=True))
    await started.wait()
    working.stop()
    await running
    assert queue.unheeded == []
    assert await home.ledger.queue.depth() == 1
    [claim] = await home.ledger.claim(9, LEASE)
    assert (claim.task.id, claim.task.failures) == (id_, 0)


async def test_only_a_sweep_sweeps(home: ItemHome) -> None:
    """It sends another message for what is long due, and settles what nobody holds any more."""
    [late] = await home.put()
    await home.ledger.claim(9, LEASE)
    [lost] = await home.put()
    await home.ledger.queue.delete(await home.ledger.queue.receive(9, ZERO))
    home.clock.advance(minutes(5))

    async def deliver(task: Any) -> None:
        raise AssertionError

    for sweeps, messages, status in ((False, 0, "claimed"), (True, 2, "waiting")):
        handed, _ = hand_over(home.ledger, [], is_closing=lambda: False, sweeps=sweeps)
        await worker(handed, deliver).run(until_idle=True)
        assert await home.ledger.queue.depth() == messages, sweeps
        assert (await home.row(late))["status"] == status
    assert (await home.row(lost))["status"] == "waiting"
