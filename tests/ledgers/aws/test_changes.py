"""From a head and what shall happen to the write that makes it so."""

from datetime import UTC, datetime
from uuid import uuid4

from redrive.core.durations import seconds
from redrive.core.states import State
from redrive.ledgers.aws.attributes import decode
from redrive.ledgers.aws.changes import claimed, revise, taken_over
from redrive.ledgers.aws.follow import Change, Follower
from redrive.ledgers.aws.heads import Head, Part

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEASE, SLACK = seconds(30), seconds(120)


def conditions(change: Change) -> set[tuple[str, object]]:
    """The conditions of the head's own write, names and values put in."""
    request = change.actions[0]["Update"]
    found = set()
    for one in request["ConditionExpression"].split(" AND "):
        path, comparison, value = one.split(" ")
        name = ".".join(request["ExpressionAttributeNames"][step] for step in path.split("."))
        found.add((f"{name} {comparison}", decode(request["ExpressionAttributeValues"][value])))
    return found


def test_every_write_of_parts_is_conditional() -> None:
    """On the version that was seen; on the fence of a part that is held; on a lease that is taken over; on the budget."""
    fence = uuid4()
    held = Part("ep", State.CLAIMED, fence=fence, lease_until=NOON, claims=1)
    head = Head("e", "ada", NOON, {"00": Part("ep", due_at=NOON), "01": held}, {}, version=7)
    claim = revise(head, claimed(head, ["00"], uuid4(), NOON, LEASE), Follower(), NOON, SLACK)
    assert conditions(claim) == {("ver =", 7)}
    assert claim.after.version == 8
    taken = revise(head, taken_over(head, ["01"], NOON, LEASE, uuid4()), Follower(), NOON, SLACK)
    assert conditions(taken) == {("ver =", 7), ("parts.01.cl =", str(fence)), ("parts.01.lu =", 1_893_499_200_000_000)}
    failed = held._replace(state=State.WAITING, fence=None, lease_until=None, due_at=NOON, retries=1)
    spent = revise(head, {"01": failed}, Follower(), NOON, SLACK)
    assert conditions(spent) == {("ver =", 7), ("parts.01.cl =", str(fence)), ("parts.01.n <", 3)}


def test_indexes_are_left_when_nothing_is_open() -> None:
    """A head whose last part has ended is neither due nor listed, and its end is counted."""
    part = Part("ep", State.CLAIMED, fence=uuid4(), lease_until=NOON)
    head = Head("e", "ada", NOON, {"00": part}, {}, look_at=NOON)
    change = revise(
        head, {"00": part._replace(state=State.DONE, fence=None, lease_until=None)}, Follower(), NOON, SLACK
    )
    request = change.actions[0]["Update"]
    removed = request["UpdateExpression"].partition("REMOVE ")[2].split(", ")
    assert {request["ExpressionAttributeNames"][name] for name in removed} == {
        "due_shard",
        "look_at",
        "listing",
        "listing_at",
    }
    assert change.counts == {"d_done": 1, "d_open": -1}


def test_a_claim_leaves_an_earlier_look_alone() -> None:
    """Two index writes are saved with each claim; the sweep may look once for nothing."""
    head = Head("e", "ada", NOON, {"00": Part("ep", due_at=NOON)}, {}, look_at=NOON + seconds(5))
    parts = claimed(head, ["00"], uuid4(), NOON, LEASE)
    assert revise(head, parts, Follower(), NOON, SLACK, keep_look=True).after.look_at == NOON + seconds(5)
    assert revise(head, parts, Follower(), NOON, SLACK).after.look_at == NOON + LEASE + SLACK
