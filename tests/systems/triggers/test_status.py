"""The status of an event as a function of its deliveries: every rule of its life, without a database."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.systems.triggers.status import MOVES, STATUSES, Delivery, Failure, Standing, fold, moves

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
instants = st.integers(0, 10).map(lambda minutes: NOW + timedelta(minutes=minutes))


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    status = draw(st.sampled_from(["waiting", "claimed", "done", "dead", "cancelled"]))
    ended = status in ("done", "dead", "cancelled")
    picked_up = status in ("claimed", "done", "dead") or draw(st.booleans())
    return Delivery(
        status=status,
        retry_attempts=draw(st.integers(0, 3)) if picked_up else 0,
        due_at=draw(st.none() | instants) if status == "waiting" else None,
        claimed_at=draw(instants) if picked_up else None,
        ended_at=draw(instants) if ended else None,
    )


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    status = draw(st.sampled_from(STATUSES))
    acknowledged = status in ("received", "queued") and draw(st.booleans())
    return Standing(
        status=status,
        retry_attempts=draw(st.integers(0, 3)),
        last_retry_at=draw(st.none() | instants),
        next_retry_at=draw(st.none() | instants) if status == "queued" else None,
        failed_at=draw(instants) if status == "failed" else None,
        delivered_at=draw(instants) if status == "delivered" else None,
        acknowledged_at=draw(instants) if acknowledged else None,
        last_error=draw(st.none() | st.just("before")),
    )


@given(standings(), st.lists(deliveries(), max_size=4), st.none() | st.builds(Failure, instants, st.just("now")))
def test_only_the_ways_of_its_life(before: Standing, those: list[Delivery], failure: Failure | None) -> None:
    """Whatever the deliveries are, an event moves only as it may, and what the store checks holds of every result."""
    after = fold(before, those, LATER, failure)
    way = moves(before.status, after.status, acknowledged=after.acknowledged_at is not None)
    assert set(way) <= set(MOVES)
    assert [before.status, *(new for _, new in way)] == [*(old for old, _ in way), after.status]
    assert 0 <= after.retry_attempts <= 3
    assert (after.status == "failed") == (after.failed_at is not None)
    assert (after.status == "delivered") == (after.delivered_at is not None)
    assert after.status == "queued" or after.next_retry_at is None
    assert before.status != "delivered" or after == before


@given(standings(), st.lists(deliveries(), max_size=4))
def test_folding_again_changes_nothing(before: Standing, those: list[Delivery]) -> None:
    """Deliveries that have not changed leave their event alone, so that it does not matter how often it is asked."""
    once = fold(before, those, NOW)
    assert fold(once, those, LATER) == once


@given(standings(), st.lists(deliveries(), max_size=4), st.randoms())
def test_the_order_of_deliveries_does_not_matter(before: Standing, those: list[Delivery], rng: Any) -> None:
    """Two workers may see them in any order."""
    shuffled = list(those)
    rng.shuffle(shuffled)
    assert fold(before, shuffled, NOW) == fold(before, those, NOW)


WAITING = Delivery("waiting", 0, None, None, None)
CLAIMED = Delivery("claimed", 0, None, NOW, None)
AGAIN = Delivery("waiting", 1, LATER, NOW, None)
DONE = Delivery("done", 1, None, NOW, NOW)
DEAD = Delivery("dead", 3, None, NOW, NOW)
CANCELLED = Delivery("cancelled", 2, None, NOW, NOW)


@pytest.mark.parametrize(
    ("before", "those", "status", "attempts", "next_retry_at"),
    [
        ("received", [], "received", 0, None),
        ("received", [WAITING], "received", 0, None),
        ("received", [WAITING, CLAIMED], "queued", 0, None),
        ("queued", [AGAIN, DONE], "queued", 1, LATER),
        ("queued", [WAITING, DEAD], "queued", 3, None),
        ("queued", [DONE, DEAD], "failed", 3, None),
        ("queued", [DONE, CANCELLED], "delivered", 1, None),
        ("received", [CANCELLED], "received", 0, None),
        ("queued", [CANCELLED], "failed", 0, None),
        ("failed", [WAITING, DEAD], "queued", 3, None),
        ("failed", [DONE], "failed", 1, None),
    ],
)
def test_what_deliveries_come_to(
    before: str, those: list[Delivery], status: str, attempts: int, next_retry_at: datetime | None
) -> None:
    """Queued while one is open, then failed if one failed, else delivered; the largest count, the earliest next try."""
    failed_at = NOW if before == "failed" else None
    after = fold(Standing(before, failed_at=failed_at), those, NOW)
    assert (after.status, after.retry_attempts, after.next_retry_at) == (status, attempts, next_retry_at)


def test_an_acknowledged_event_is_delivered() -> None:
    """At the moment of the acknowledgement, whatever is still under way."""
    after = fold(Standing("queued", next_retry_at=LATER, acknowledged_at=NOW), [CLAIMED, CANCELLED], LATER)
    assert (after.status, after.delivered_at, after.next_retry_at) == ("delivered", NOW, None)


def test_the_latest_failure_is_told() -> None:
    """When a delivery last failed, and of what; without a new failure both stay."""
    after = fold(Standing("queued", last_retry_at=NOW, last_error="old"), [AGAIN], LATER, Failure(LATER, "new"))
    assert (after.last_retry_at, after.last_error) == (LATER, "new")
    assert fold(after, [DONE], LATER)[2:8:5] == (LATER, "new")
