"""Heads and their parts."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.durations import ZERO, seconds
from redrive.core.states import State
from redrive.ledgers.aws.attributes import to_item
from redrive.ledgers.aws.expressions import key_of
from redrive.ledgers.aws.heads import (
    Head,
    Part,
    UnreadableHeadError,
    due_parts,
    from_map,
    head_from,
    head_key,
    head_values,
    look_after,
    look_swept,
    lost_parts,
    split_id,
    task_id,
    to_map,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
instants = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
parts = st.builds(
    Part,
    target=st.text(min_size=1),
    state=st.sampled_from(State),
    retries=st.integers(0, 3),
    retries_max=st.integers(0, 3),
    due_at=st.none() | instants,
    fence=st.none() | st.uuids(),
    claimed_at=st.none() | instants,
    lease_until=st.none() | instants,
    claims=st.integers(0, 1000),
    redrives=st.integers(0, 5),
    updated_at=st.none() | instants,
    lost=st.booleans(),
    lost_alone=st.integers(0, 3),
    failed=st.booleans(),
    deed=st.none() | st.text(min_size=1),
    unreadable=st.none(),
    kept=st.none(),
)


@given(parts)
def test_parts_come_back(part: Part) -> None:
    """A part is read as it was written."""
    assert from_map({name: value for name, value in to_map(part).items() if value is not None}) == part


@given(st.dictionaries(st.sampled_from(["00", "01", "99"]), parts), st.none() | instants)
def test_heads_come_back(some: dict[str, Part], look_at: datetime | None) -> None:
    """A head is read as it was written, facts of its owner included."""
    head = Head("event-1", "ada", NOON, dict(sorted(some.items())), {"status": "queued"}, 7, look_at)
    assert head_from(key_of(head_key(head.id)) | to_item(head_values(head))) == head


def test_a_full_head_is_small() -> None:
    """A part that has been through everything is below 200 bytes, so a head of a hundred is below 20 KB, of the 400 KB of an item."""
    part = Part(
        "ep-01hzxk3w9q2v5b8n7m4c6d1f0g", State.CLAIMED, 2, 3, None, uuid4(), NOON, NOON, 4, 1, NOON, failed=True
    )
    head = Head("01hzxk3w9q2v5b8n7m4c6d1f0g", "ada", NOON, {f"{n:02}": part for n in range(100)}, {})
    written = sum(len(name) + len(str(value)) for name, value in to_map(part).items() if value is not None)
    assert written < 200
    assert len(str(to_item(head_values(head)))) < 60_000  # with the types of the wire, which are not billed


def test_ids() -> None:
    """The id of a task says where it is kept; what is no id is nobody's."""
    assert task_id("event-1", "07") == "event-1.07"
    assert split_id("event-1.07") == ("event-1", "07")
    assert split_id("a.b.07") == ("a.b", "07")
    assert [split_id(id_) for id_ in ("nobody", ".07", "event-1.", "event-1.x", 7, UUID(int=1))] == [None] * 6


def waiting(due: datetime) -> Part:
    return Part("ep", due_at=due)


def held(until: datetime) -> Part:
    return Part("ep", State.CLAIMED, fence=uuid4(), lease_until=until)


def test_when_to_look() -> None:
    """At the first due time or end of a lease, and some slack; never where nothing is open."""
    slack = seconds(120)
    some = [waiting(NOON + seconds(60)), held(NOON + seconds(30)), Part("ep", State.DONE, updated_at=NOON)]
    assert look_after(some, slack) == NOON + seconds(150)
    assert look_after(some, slack, NOON, keep=True) == NOON
    assert look_after(some, slack, NOON + seconds(999), keep=True) == NOON + seconds(150)
    assert look_after(some[2:], slack, NOON, keep=True) is None


def test_what_was_swept_is_looked_at_again_later() -> None:
    """What is overdue has got another message, and time, the more the longer it is; what is not keeps its own time."""
    slack, again = seconds(120), seconds(300)
    overdue = waiting(NOON - seconds(150))
    assert look_swept([overdue], NOON, slack, again) == NOON + again
    longer = [(seconds(400), seconds(400)), (timedelta(hours=9), timedelta(minutes=15))]
    assert [look_swept([waiting(NOON - late)], NOON, slack, again) for late, _ in longer] == [
        NOON + put for _, put in longer
    ]
    assert look_swept([overdue, held(NOON - seconds(30))], NOON, slack, again) == NOON + seconds(90)


def test_what_is_due_and_what_is_lost() -> None:
    """What waits is due from its instant on, oldest first; a holder is lost after its lease and the grace."""
    some = {"00": waiting(NOON), "01": waiting(NOON - seconds(1)), "02": waiting(NOON + seconds(1)), "03": held(NOON)}
    head = Head("e", "ada", NOON, some, {})
    assert due_parts(head, NOON) == ["01", "00"]
    assert lost_parts(head, NOON, ZERO) == ["03"]
    assert lost_parts(head, NOON + timedelta(seconds=4), seconds(5)) == []
    assert lost_parts(head, NOON + timedelta(seconds=5), seconds(5)) == ["03"]


@given(parts, st.sampled_from(["ep", "n", "mx", "due", "cl", "ca", "lu", "rd", "up", "la"]))
def test_a_cell_that_cannot_be_read_is_kept(part: Part, name: str) -> None:
    """It makes its part unreadable and no other, is named, and is still there when the part is written again."""
    spoilt = {**to_map(part), name: ["nobody", "knows"]}
    spoilt = {key: value for key, value in spoilt.items() if value is not None}
    read = from_map(spoilt)
    assert read.unreadable is not None
    assert read.unreadable.startswith(repr(name))
    assert (read.state, read.claims) == (part.state, part.claims)
    assert to_map(read)[name] == ["nobody", "knows"]
    corrected = from_map({key: value for key, value in to_map(part).items() if value is not None})
    assert corrected == part


def test_what_nobody_knows_is_unreadable_as_a_whole() -> None:
    """A head without a version, of an unknown state, or with an attribute of a type that is not ours; its parts are counted."""
    item = key_of(head_key("e1")) | to_item(head_values(Head("e1", "ada", NOON, {"00": Part("ep", due_at=NOON)}, {})))
    spoilt: list[dict[str, Any]] = [
        {**item, "ver": {"S": "seven"}},
        {**item, "ver": {"N": "-1"}},
        {**item, "timestamp": {"S": "yesterday"}},
        {**item, "facts": {"B": b"x"}},
        {**item, "parts": {"M": {"00": {"M": {**item["parts"]["M"]["00"]["M"], "st": {"S": "?"}}}}}},
        {name: value for name, value in item.items() if name != "user_id"},
    ]
    for bad in spoilt:
        with pytest.raises(UnreadableHeadError, match=r"event e1 cannot be read: .* Correct the item") as said:
            head_from(bad)
        assert (said.value.id, said.value.numbers) == ("e1", ["00"])
