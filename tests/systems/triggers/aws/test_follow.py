"""Events as heads: the fold of their deliveries, written as facts."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from redrive import State
from redrive.items import FailedPart, Head, Part
from redrive.systems.triggers.aws.follow import EventFollower, delivery_of, read_standing, standing_facts
from redrive.systems.triggers.status import STATUSES, Failure, Standing, fold

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
instants = st.none() | st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
standings = st.builds(
    Standing, st.sampled_from(STATUSES), st.integers(0, 3), instants, instants, instants, instants, instants,
    st.none() | st.text(),
)  # fmt: skip
parts = st.builds(
    Part, target=st.just("ep"), state=st.sampled_from(State), retries=st.integers(0, 3), due_at=instants,
    claimed_at=instants, updated_at=instants, kept=st.none(),
)  # fmt: skip


def written(standing: Standing) -> dict[str, object]:
    return {name: value for name, value in standing_facts(standing, "e1", NOON).items() if value is not None}


@given(standings)
def test_standings_come_back(standing: Standing) -> None:
    """Where an event stands is read as it was written, to the microsecond."""
    assert read_standing(written(standing)) == standing


@given(standings, st.lists(parts, max_size=4), st.none() | st.text(min_size=1))
def test_the_head_follows_the_fold(before: Standing, some: list[Part], error: str | None) -> None:
    """The same rule as on SQL decides; the counters follow the status, and so does the key of the inbox."""
    named = {f"{place:02}": part for place, part in enumerate(some)}
    head = Head("e1", "ada", NOON, named, written(before))
    later = NOON + timedelta(seconds=9)
    failures = [] if error is None else [FailedPart("00", error, NOON)]
    followed = EventFollower().follow(head, named, later, failures)
    failure = None if error is None else Failure(later, error)
    parked = any(part.parked for part in some)
    after = fold(before, [delivery_of(part) for part in some], later, failure, parked=parked)
    facts = {name: value for name, value in followed.facts.items() if value is not None}
    assert read_standing(facts) == after
    assert facts["status#timestamp"] == f"{after.status}#2030-01-01T12:00:00.000000Z#e1"
    assert sum(followed.counts.values()) == 0
    assert followed.counts == ({} if before.status == after.status else {before.status: -1, after.status: 1})
