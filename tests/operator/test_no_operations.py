"""A store without operations says why, and shows none."""

import pytest

from redrive.errors import UsageError
from redrive.operator.no_operations import NoOperations
from redrive.operator.operations import NO_OPERATIONS


async def test_whoever_wants_one_hears_why_not():
    """One sentence for each thing that cannot be done; looking finds nothing, and is no error."""
    none = NoOperations()
    for refused in (
        none.start,
        none.act,
        none.change,
        none.gather,
        none.advance,
        none.steps,
        none.tasks,
        none.dead_set,
    ):
        with pytest.raises(UsageError) as told:
            await refused()
        assert str(told.value) == NO_OPERATIONS
    assert (await none.page()).items == await none.open() == await none.edits() == []
    assert await none.get("7c2f") is None
    assert await none.forget() == 0
