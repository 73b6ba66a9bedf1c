"""The table and the queue, looked at before they are used."""

import copy
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.ledgers.aws.table import INDEXES, check, definition, problems_of, queue_problems
from tests.ledgers.aws.homes import ItemHome
from tests.ledgers.aws.test_queue import make_queue

STORES = ("aws",)


def test_a_table_as_we_make_it_fits() -> None:
    """What tests create has nothing to be mended."""
    assert problems_of(definition("t")) == []


@pytest.mark.parametrize("index", INDEXES)
def test_each_index_is_missed(index: str) -> None:
    """A table without one of its indexes, or with it on other keys, or half built, is told so by name."""
    described: dict[str, Any] = definition("t")
    without = described | {
        "GlobalSecondaryIndexes": [one for one in described["GlobalSecondaryIndexes"] if one["IndexName"] != index]
    }
    [problem] = problems_of(without)
    assert f"no index {index}" in problem
    for change, said in (({"KeySchema": []}, "is not on"), ({"IndexStatus": "CREATING"}, "still being built")):
        other = copy.deepcopy(described)
        next(one for one in other["GlobalSecondaryIndexes"] if one["IndexName"] == index).update(change)
        assert [said in problem for problem in problems_of(other)] == [True]
    assert problems_of({**described, "KeySchema": []}) == ["its keys are not pk and sk"]


def test_a_queue_that_does_not_fit() -> None:
    """Messages must stay hidden for as long as they are worked on, and order is not the queue's business."""
    assert queue_problems({"VisibilityTimeout": "360"}, 60) == []
    [short] = queue_problems({"VisibilityTimeout": "30"}, 60)
    assert "30 s" in short
    assert "at least 60 s" in short
    assert len(queue_problems({"FifoQueue": "true", "VisibilityTimeout": "360"}, 60)) == 1


async def test_the_look_at_start(home: ItemHome) -> None:
    """What fits passes; what is missing or does not fit names its setting and the remedy."""
    table = home.ledger.dynamo.table
    dynamo, client = home.clients
    url = (await make_queue(home, VisibilityTimeout="60")).url
    await check(dynamo, client, table, url, handler_seconds=60)
    for wrong, said in (
        ((table + "x", url, 60), "EVENTS_TABLE_NAME.*ResourceNotFound"),
        ((table, url + "x", 60), "DELIVERY_QUEUE_URL.*cannot be used"),
        ((table, url, 61), "DELIVERY_QUEUE_URL.*set it to at least 61 s"),
    ):
        with pytest.raises(SettingsError, match=said):
            await check(dynamo, client, *wrong[:2], handler_seconds=wrong[2])
