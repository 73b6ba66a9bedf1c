"""Which settlements share a transaction."""

from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

import redrive.ledgers.aws
from redrive.core.decide import Settlement
from redrive.core.states import State
from redrive.core.task import Claim, Task
from redrive.ledgers.aws.client import ACTIONS_MAX
from redrive.ledgers.aws.settle import SETTLEMENTS_MAX, _waves

NOON = datetime(2030, 1, 1, tzinfo=UTC)


def done(head: int, number: int, user: int) -> Settlement:
    task = Task(f"e{head}.{number:02}", "k", "mail", {"user_id": f"u{user}"}, State.CLAIMED, 0)
    return Settlement(Claim(task, uuid4(), NOON), "done", State.DONE, 0)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 100)), max_size=60), st.integers(1, 50))
def test_groups_fit_their_transactions(heads: list[tuple[int, int]], users: int) -> None:
    """Each settlement is in one group; a group fits a transaction; and no two groups of a wave touch the same head."""
    given_ = [done(head, number, head % users) for head, parts in heads for number in range(parts)]
    waves = _waves(given_)
    assert sorted(map(id, given_)) == sorted(
        id(one) for wave in waves for group in wave for some in group.values() for one in some
    )
    for wave in waves:
        touched = [head for group in wave for head in group]
        assert len(touched) == len(set(touched))
        for group in wave:
            some = [one for each in group.values() for one in each]
            owners = {one.claim.task.payload["user_id"] for one in some}
            assert len(some) <= SETTLEMENTS_MAX
            assert 2 * len(some) + len(group) + len(owners) <= ACTIONS_MAX


def test_groups_are_filled() -> None:
    """A thousand failures of one user's events are 31 transactions, not a thousand."""
    [wave] = _waves([done(head, 0, 0) for head in range(1000)])
    assert len(wave) == 31


def test_nothing_scans() -> None:
    """No call of this room reads a whole table."""
    sources = Path(redrive.ledgers.aws.__file__).parent.glob("*.py")
    assert [path.name for path in sources if ".scan(" in path.read_text() or '"scan"' in path.read_text()] == []
