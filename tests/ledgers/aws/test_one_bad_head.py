"""One bad head: what cannot be read costs no other its claim, its rescue, its settlement or its place; it is told, and set aside."""

import logging
from datetime import timedelta
from typing import Any

import pytest

from redrive.core.durations import minutes, seconds
from redrive.core.outcome import Done, Failed
from redrive.core.states import State
from redrive.core.task import Claim, TaskId
from redrive.errors import LedgerError, PermanentError
from redrive.ledgers.aws.expressions import key_of
from redrive.ledgers.aws.heads import UnreadableHeadError, head_key, split_id
from redrive.ports import Filter
from tests.ledgers.aws.clock_sqs import RECEIPTS_MAX, VISIBILITY, ClockSqs
from tests.ledgers.aws.homes import ItemHome
from tests.ledgers.homes import ADA, LEASE, PERMANENT, settlement

STORES = ("aws",)
EVENTS = 4
BAD = "event-00002"


async def write(home: ItemHome, id_: str, path: str, value: dict[str, Any] | None) -> None:
    """Write an attribute of a head behind the ledger's back, or remove it."""
    steps = path.split(".")
    place = ".".join(f"#s{number}" for number in range(len(steps)))
    await home.clients.dynamodb.update_item(
        TableName=home.ledger.dynamo.table, Key=key_of(head_key(id_)),
        UpdateExpression=f"REMOVE {place}" if value is None else f"SET {place} = :v",
        ExpressionAttributeNames={f"#s{n}": step for n, step in enumerate(steps)},
        **({} if value is None else {"ExpressionAttributeValues": {":v": value}}),
    )  # fmt: skip


SPOILT = {
    "a version": ("ver", {"S": "seven"}),
    "a state": ("parts.00.st", {"S": "?"}),
    "a fact": ("delivered_at", {"S": "never"}),
    "a date": ("timestamp", {"S": "yesterday"}),
}


async def put_events(home: ItemHome) -> tuple[ClockSqs, list[TaskId]]:
    """Four events with three deliveries each, and a queue with dead letters."""
    sqs = ClockSqs(home.clock)
    home.ledger.queue = sqs.queue()
    return sqs, await home.put(3 * EVENTS)


def of_bad(claims: list[Claim]) -> list[Claim]:
    return [claim for claim in claims if str(claim.task.id).startswith(BAD)]


@pytest.mark.parametrize("what", SPOILT)
async def test_a_bad_head_is_set_aside(home: ItemHome, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """The others are claimed and settled; its message ends among the dead letters; it is told once, and delivered when corrected."""
    sqs, ids = await put_events(home)
    name, value = SPOILT[what]
    before = (await home.clients.dynamodb.get_item(TableName=home.ledger.dynamo.table, Key=key_of(head_key(BAD))))[
        "Item"
    ]
    await write(home, BAD, name, value)
    with caplog.at_level(logging.ERROR, "redrive"):
        claims = await home.ledger.claim(50, LEASE)
        assert len(claims) == 3 * (EVENTS - 1)
        assert of_bad(claims) == []
        assert await home.ledger.settle([settlement(claim) for claim in claims], worker="w1") == []
        for _ in range(RECEIPTS_MAX + 1):
            home.clock.advance(VISIBILITY)
            assert await home.ledger.claim(50, LEASE) == []
    assert [BAD in body for body in sqs.dead] == [True]
    assert [BAD in line for line in caplog.messages] == [True]
    assert "Correct the item" in caplog.messages[0]
    correct: Any = before
    for step in name.split("."):
        correct = correct.get("M", correct).get(step)
    await write(home, BAD, name, correct)
    home.clock.advance(minutes(5))
    assert await home.ledger.reclaim(9, LEASE) == []
    claims = await home.ledger.claim(50, LEASE)
    assert sorted(str(claim.task.id) for claim in claims) == [str(id_) for id_ in ids if str(id_).startswith(BAD)]


async def test_a_sweep_passes_a_bad_head(home: ItemHome) -> None:
    """What was lost beside it comes back, in its own shard too, and the next sweep does not look at it again for an hour."""
    await put_events(home)
    claims = await home.ledger.claim(50, LEASE)
    assert len(claims) == 3 * EVENTS
    await write(home, BAD, *SPOILT["a version"])
    home.clock.advance(LEASE + seconds(10))
    found = await home.ledger.reclaim(50, LEASE)
    assert len(found) == 3 * (EVENTS - 1)
    assert all(claim.abandoned is not None for claim in found)
    item = (await home.clients.dynamodb.get_item(TableName=home.ledger.dynamo.table, Key=key_of(head_key(BAD))))["Item"]
    looked_at = item["look_at"]["S"]
    home.clock.advance(timedelta(minutes=30))
    await home.ledger.reclaim(50, LEASE)
    item = (await home.clients.dynamodb.get_item(TableName=home.ledger.dynamo.table, Key=key_of(head_key(BAD))))["Item"]
    assert item["look_at"]["S"] == looked_at


async def test_a_settlement_of_a_bad_head_costs_no_other(home: ItemHome) -> None:
    """Of a group in which one cannot be written all others are; whoever repeats it learns that, and writes it when it is corrected."""
    await put_events(home)
    claims = await home.ledger.claim(50, LEASE)
    await write(home, BAD, *SPOILT["a fact"])
    other = await home.another()
    settlements = [settlement(claim) for claim in claims]
    with pytest.raises(UnreadableHeadError, match=BAD):
        await other.settle(settlements, worker="w1")
    assert (await home.ledger.counts())[State.DONE] == 3 * (EVENTS - 1)
    await write(home, BAD, "delivered_at", None)
    lost = [one.claim for one in await other.settle(settlements, worker="w1")]
    assert lost == [claim for claim in claims if claim not in of_bad(claims)]
    assert await other.settled_by(lost, "w1") == lost
    assert (await home.ledger.counts())[State.DONE] == 3 * EVENTS


async def test_an_act_on_many_passes_a_bad_head(home: ItemHome) -> None:
    """Those that can be read are redriven."""
    await put_events(home)
    claims = await home.ledger.claim(50, LEASE)
    assert await home.ledger.settle([settlement(claim, PERMANENT) for claim in claims], worker="w1") == []
    await write(home, BAD, *SPOILT["a state"])
    ids = [claim.task.id for claim in claims]
    assert len(await home.ledger.redrive(ids, ADA)) == 3 * (EVENTS - 1)


@pytest.mark.parametrize("what", ["a version", "a state"])
async def test_a_page_shows_a_bad_head(home: ItemHome, what: str) -> None:
    """Its tasks are listed with what is wrong; the others as ever."""
    _, ids = await put_events(home)
    await write(home, BAD, *SPOILT[what])
    page = await home.ledger.find(Filter(state=State.WAITING))
    assert [task.id for task in page.items] == ids
    shown = await home.ledger.get(f"{BAD}.00")
    assert shown is not None
    assert str(shown.payload).startswith("cannot be read: ")
    assert "Correct the item" in str(shown.last_error)
    assert await home.ledger.next_due() is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [("ep", {"N": "7"}), ("n", {"S": "many"}), ("due", {"S": "soon"}), ("mx", {"N": "-1"}), ("up", {"N": "9" * 30})],
)
async def test_a_bad_part_is_claimed_beside_the_others(home: ItemHome, name: str, value: dict[str, Any]) -> None:
    """It says what cannot be read and is not run, but dead, with that as its error; corrected and redriven it is done."""
    ids = await home.put(3)
    head_id, number = split_id(ids[1]) or ("", "")
    await write(home, head_id, f"parts.{number}.{name}", value)
    claims = await home.ledger.claim(9, LEASE)
    assert sorted(claim.task.id for claim in claims) == ids
    [bad] = [claim for claim in claims if claim.unreadable is not None]
    assert bad.task.id == ids[1]
    assert f"delivery {ids[1]} cannot be read: {name!r}" in str(bad.unreadable)
    outcomes = {
        claim.task.id: Failed(PermanentError(claim.unreadable)) if claim.unreadable else Done() for claim in claims
    }
    settled = [settlement(claim, outcomes[claim.task.id]) for claim in claims]
    assert await home.ledger.settle(settled, worker="w1") == []
    dead = (await home.ledger.find(Filter(state=State.DEAD))).items
    assert [task.id for task in dead] == [ids[1]]
    assert "Correct its item, then redrive the task" in str(dead[0].last_error)
    good = {"ep": {"S": "ep-01"}, "n": {"N": "0"}, "due": {"N": "0"}, "mx": {"N": "3"}, "up": {"N": "0"}}
    await write(home, head_id, f"parts.{number}.{name}", good[name])
    assert await home.ledger.redrive(ids, ADA) == [ids[1]]
    [again] = await (await home.another()).claim(9, LEASE)
    assert again.unreadable is None
    assert await home.settle(again, Done()) == []
    assert (await home.standing(ids[1]))["status"] == "delivered"


@pytest.mark.parametrize("name", ["cl", "lu", "ca"])
async def test_a_bad_part_that_is_held_is_taken_over(home: ItemHome, name: str) -> None:
    """Whatever of its claim cannot be read, it is found as lost, and ends in one attempt."""
    ids = await home.put(2)
    claims = await home.ledger.claim(2, LEASE)
    head_id, number = split_id(ids[0]) or ("", "")
    await write(home, head_id, f"parts.{number}.{name}", {"S": "?"})
    home.clock.advance(LEASE + seconds(10))
    other = await home.another()
    found = await home.reclaim(9, LEASE, ledger=other)  # type: ignore[arg-type]
    assert sorted(claim.task.id for claim in found) == ids
    assert await other.settle([settlement(claim, PERMANENT) for claim in found], worker="w2") == []
    assert [len(await home.ledger.attempts(id_)) for id_ in ids] == [1, 1]
    assert len(claims) == 2


async def test_a_message_that_cannot_be_read_is_left_to_the_dead_letters(
    home: ItemHome, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs no other, is told once, and is put away by the queue itself."""
    sqs, ids = await put_events(home)
    await sqs.send_message_batch(QueueUrl="", Entries=[{"Id": "0", "MessageBody": "not ours", "DelaySeconds": 0}])
    with caplog.at_level(logging.ERROR, "redrive"):
        assert len(await home.ledger.claim(50, LEASE)) == len(ids)
        for _ in range(RECEIPTS_MAX + 1):
            home.clock.advance(VISIBILITY)
            await home.ledger.claim(50, LEASE)
    assert sqs.dead == ["not ours"]
    assert len([line for line in caplog.messages if "dead-letter queue" in line]) == 1


async def test_what_a_claim_took_is_answered(home: ItemHome) -> None:
    """Though its messages can neither be deleted nor sent: they come again, and find nothing to do."""
    sqs, ids = await put_events(home)

    async def refused(**_: Any) -> Any:
        raise LedgerError("no")

    sqs.delete_message_batch = sqs.send_message_batch = refused  # type: ignore[method-assign]
    claims = await home.ledger.claim(50, LEASE)
    assert len(claims) == len(ids)
    assert await home.ledger.settle([settlement(claim) for claim in claims], worker="w1") == []
    home.clock.advance(VISIBILITY)
    assert await home.ledger.claim(50, LEASE) == []
