"""The queue over the wire, and a worker that lives from it."""

import asyncio
import json
import secrets
from collections import Counter
from typing import Any

import pytest

from redrive.core.backoff import Fixed
from redrive.core.durations import ZERO, minutes, seconds
from redrive.core.outcome import Done
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import LedgerAwayError, LedgerError, TransientError
from redrive.ledgers.aws.arrivals import Arrivals
from redrive.ledgers.aws.clock import machine_now
from redrive.ledgers.aws.heads import Part
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.queue import Message, ReceivedMessage, SqsQueue, delay_seconds, from_body, to_body
from redrive.systems.triggers.aws.follow import EventFollower
from tests.engine.workbench import handlers_of
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.aws.homes import DELIVERIES, ItemHome, new_event

STORES = ("aws",)


async def make_queue(home: ItemHome, **attributes: str) -> SqsQueue:
    """A new queue of SQS."""
    made = await home.clients.sqs.create_queue(QueueName=f"q-{secrets.token_hex(4)}", Attributes=attributes)
    return SqsQueue(home.clients.sqs, made["QueueUrl"])


def test_messages_come_back() -> None:
    """A message is read as it was written; what is none of ours is nothing."""
    message = Message("event-1", 1_893_456_000_000_007)
    assert from_body(to_body(message)) == message
    assert len(to_body(message)) < 80
    for body in ("", "{", "[]", "7", '{"v":2,"e":"a","due":1}', '{"v":1,"e":"a"}', '{"v":1,"e":"a","due":"x"}'):
        assert from_body(body) is None


@pytest.mark.parametrize("due", ["1e999", "-Infinity", "NaN", "1.5", "true", "null", "9" * 5_000])
def test_an_instant_that_is_none(due: str) -> None:
    """Only a whole number is an instant; what is none never stops the messages beside it."""
    assert from_body(f'{{"v":1,"e":"a","due":{due}}}') is None


@pytest.mark.parametrize(
    "head_id",
    ["", "\ud800", "x" * 1025, 7, None, ["a"]],
    ids=["empty", "a surrogate", "long", "a number", "none", "a list"],
)
def test_an_id_that_is_none(head_id: object) -> None:
    """What DynamoDB would refuse to look up is no message of ours."""
    assert from_body(json.dumps({"v": 1, "e": head_id, "due": 1})) is None


def test_a_body_nested_too_deep() -> None:
    """It is none of ours, and not an error."""
    assert from_body("[" * 5_000 + "]" * 5_000) is None


async def test_a_strangers_message_costs_no_other(home: ItemHome) -> None:
    """A batch with a message that cannot be read leads to all that the others tell of; that one stays for the dead letters."""
    queue = home.ledger.queue = await make_queue(home)
    home.ledger._arrivals = Arrivals(queue.receive)
    for body in ('{"v":1,"e":"a","due":1e999}', "[" * 5_000):
        await home.clients.sqs.send_message(QueueUrl=queue.url, MessageBody=body)
    ids = await home.put(6)
    claims = []
    while found := await home.ledger.claim(10, minutes(1)):
        claims += found
    assert sorted(claim.task.id for claim in claims) == sorted(ids)
    assert await queue.depth() == 2


def test_delays_in_whole_seconds() -> None:
    """Never too short, and never longer than SQS takes."""
    spans = [ZERO, seconds(0.001), seconds(1), seconds(1.5), minutes(15), minutes(90)]
    assert [delay_seconds(span) for span in spans] == [0, 1, 1, 2, 900, 900]


async def test_four_calls(home: ItemHome) -> None:
    """Sent in tens, received, deleted, counted; deleting twice is no error, and what cannot be read has no content."""
    queue = await make_queue(home)
    client, url = home.clients.sqs, queue.url
    await queue.send([(Message(f"e{n}", n), ZERO) for n in range(12)])
    await queue.send([(Message("later", 1), minutes(60))])
    await client.send_message(QueueUrl=url, MessageBody="not ours")
    assert await queue.depth() == 14
    got = []
    while some := await queue.receive(10, ZERO):
        assert len(some) <= 10
        got += some
    assert sorted(one.content.head_id for one in got if one.content) == sorted(f"e{n}" for n in range(12))
    assert [one.content for one in got].count(None) == 1
    await queue.delete(got)
    await queue.delete(got[:1])
    assert await queue.depth() == 1
    with pytest.raises(LedgerError, match=r"SQS refused the call .*: check the queue"):
        await SqsQueue(client, url + "-gone").depth()


class PartlyFailing:
    """A client of SQS that takes some entries of a batch at once, some later, and some never."""

    def __init__(self, **codes: list[tuple[str, bool]]) -> None:
        self._codes = codes
        self.calls: list[list[str]] = []

    async def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        ids = [entry["Id"] for entry in Entries]
        self.calls.append(ids)
        answers = {id_: self._codes[f"e{id_}"].pop(0) for id_ in ids if self._codes.get(f"e{id_}")}
        failed = [{"Id": id_, "Code": code, "SenderFault": fault} for id_, (code, fault) in answers.items()]
        return {"Successful": [{"Id": id_} for id_ in ids if id_ not in answers], "Failed": failed}

    delete_message_batch = send_message_batch


BUSY_TWICE = [("InternalError", False), ("RequestThrottled", True)]


@pytest.mark.parametrize("verb", ["send", "delete"])
async def test_entries_of_a_batch_stand_for_themselves(verb: str) -> None:
    """What SQS was too busy for is asked for again, alone; what it refuses is not, and costs no other."""
    client = PartlyFailing(e1=list(BUSY_TWICE), e2=[("InvalidMessageContents", True)] * 9)
    queue = SqsQueue(client, "url")
    if verb == "send":
        with pytest.raises(LedgerError, match=r"SQS refused 1 messages \(InvalidMessageContents"):
            await queue.send([(Message(f"e{n}", n), ZERO) for n in range(4)])
    else:
        await queue.delete([ReceivedMessage(str(n), None) for n in range(4)])
    assert client.calls == [["0", "1", "2", "3"], ["1"], ["1"]]


async def test_a_queue_that_stays_busy_is_away() -> None:
    """Patience has an end, also for some entries of a batch; the other tens were sent meanwhile."""
    client = PartlyFailing(e1=[("InternalError", False)] * 1000)
    with pytest.raises(LedgerAwayError, match="SQS does not answer: InternalError"):
        await SqsQueue(client, "url", send_patience=seconds(0.1)).send([(Message(f"e{n}", n), ZERO) for n in range(15)])
    assert [str(n) for n in range(10, 15)] in client.calls
    assert ["1"] in client.calls  # alone, once more


@pytest.mark.parametrize("where", ["before", "after"])
async def test_every_call_to_the_queue_may_be_cut(home: ItemHome, where: str) -> None:
    """A call without an answer is made again: nothing is lost, and a message that came twice is two messages."""
    real = await make_queue(home, VisibilityTimeout="0")
    client = CuttingClient(home.clients.sqs, lambda number, _: where if number % 2 == 0 else None)
    queue = SqsQueue(client, real.url)
    await queue.send([(Message(f"e{n}", n), ZERO) for n in range(3)])
    assert await queue.depth() == (3 if where == "before" else 6)
    got = {}
    while len({one.content for one in got.values()}) < 3 or len(got) < await real.depth():
        got |= {one.receipt: one for one in await queue.receive(10, ZERO)}
    await queue.delete(list(got.values()))
    assert client.cuts > 3


async def test_a_worker_lives_from_the_queue(home: ItemHome) -> None:
    """The engine's own worker, DynamoDB and SQS over the wire, the real clock: all that fails once is delivered at its second try."""
    ledger = DynamoLedger(
        home.ledger.dynamo, await make_queue(home), DELIVERIES.table, follower=EventFollower(), sweep_every=ZERO
    )
    ids = []
    for number in range(5):
        now = machine_now()
        parts = {f"{n:02}": Part(f"ep-{n}", due_at=now) for n in range(2)}
        await ledger.take(new_event(f"event-{number}", parts, now), counts={"received": 1})
        ids += [f"event-{number}.{n:02}" for n in range(2)]
    tries: Counter[Any] = Counter()
    ended = asyncio.Event()

    async def deliver(task: Any) -> Done:
        tries[task.id] += 1
        if tries[task.id] == 1:
            raise TransientError("not yet")
        if sum(amount > 1 for amount in tries.values()) == len(ids):
            ended.set()
        return Done()

    policy = Policy(Fixed(seconds(1)), retries=3, name="test")
    worker = Worker(ledger, handlers_of(policy=policy, trigger_deliveries=deliver), WorkerSettings(grace=seconds(5)))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        await ended.wait()
        worker.stop()
        await running
    assert {id_: tries[id_] for id_ in ids} == dict.fromkeys(ids, 2)
    assert await ledger.counts() == dict.fromkeys(State, 0) | {State.DONE: len(ids)}
    counters = await ledger.counters("ada")
    assert {name: amount for name, amount in counters.items() if amount} == {"delivered": 5, "d_done": 10}
    for id_ in ids:
        assert [one.outcome for one in await ledger.attempts(id_)] == ["failed", "done"]
    async with asyncio.timeout(60):
        while (
            await ledger.queue.depth()
        ):  # on a busy machine one may have been handed out twice: it leads to nothing, and goes
            assert await ledger.claim(10, seconds(30)) == []
