"""A message of the relay goes out as it came in: no operation edits it."""

import pytest

from redrive.errors import UsageError
from redrive.ports import Filter
from redrive.systems.relay import Relay

PATCH = [{"op": "replace", "path": "/country", "value": "DE"}]


@pytest.mark.parametrize("edit", [{"patch": PATCH}, {"payload": {"country": "DE"}}])
async def test_no_operation_edits_a_message(relay: Relay, edit: dict[str, object]) -> None:
    """Neither a dry run nor a start, and the sentence says what to do instead; without an edit it may begin."""
    operations = relay.lane.operations
    for refused in (
        operations.plan(Filter(), **edit),
        operations.start(Filter(), actor="ada", reason="wrong country", **edit),
    ):
        with pytest.raises(UsageError, match="byte for byte as it came in: publish a corrected one instead"):
            await refused
    assert (await operations.list()).items == []
    assert (await operations.plan(Filter())).dead.amount == 0
