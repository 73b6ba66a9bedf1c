"""The table and the queue, looked at before they are used."""

import copy
from typing import Any

import pytest

from redrive.ledgers.aws.table import INDEXES, definition, problems_of, queue_problems


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
