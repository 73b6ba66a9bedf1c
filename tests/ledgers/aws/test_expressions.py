"""Requests as values."""

import re
from typing import Any

from redrive.ledgers.aws.expressions import Update, delete, put_new, query

BARE = re.compile(r"(?<![#:\w])(?!AND\b|SET\b|REMOVE\b|ADD\b|begins_with\b|attribute_\w+\b)[A-Za-z_]\w*")
"""A word of an expression that is neither one of its own nor a stand-in."""


def expressions(request: dict[str, Any]) -> list[str]:
    return [value for name, value in request.items() if name.endswith("Expression")]


def test_no_name_stands_bare_in_an_expression() -> None:
    """Many of our names are reserved words: all go by stand-ins, and each stand-in is told."""
    update = Update(("E#1", "E")).set("status", "queued").set(("parts", "00", "due"), None).add("count", 2)
    update.require("ver", "=", 3).require(("parts", "00", "cl"), "=", "x").require_there()
    requests = [
        update.action()["Update"],
        put_new(("E#1", "E"), {"status": "received"})["Put"],
        query(("listing", "open#1"), ("listing_at", "begins_with", "a"), index="ListIndex"),
        query(("pk", "E#1"), ("sk", ">", "A")),
    ]
    for request in requests:
        for text in expressions(request):
            assert BARE.findall(text) == [], text
            used = set(re.findall(r"#n\d+", " ".join(expressions(request))))
            assert used == set(request["ExpressionAttributeNames"])
            told = set(re.findall(r":v\d+", " ".join(expressions(request))))
            assert told == set(request.get("ExpressionAttributeValues", {}))


def test_an_update_says_what_it_does() -> None:
    """Values are set, None removes, amounts are added, conditions must all hold, and a refusal brings the item."""
    request = Update(("a", "b")).set("x", 1).set("y", None).add("z", 2).require("x", "<", 5).action()["Update"]
    assert request["UpdateExpression"] == "SET #n0 = :v0 REMOVE #n1 ADD #n2 :v1"
    assert request["ConditionExpression"] == "#n0 < :v2"
    assert request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
    assert request["Key"] == {"pk": {"S": "a"}, "sk": {"S": "b"}}
    assert delete(("a", "b")) == {"Delete": {"Key": {"pk": {"S": "a"}, "sk": {"S": "b"}}}}


def test_only_the_table_is_read_strongly() -> None:
    """A strong read of an index is refused by DynamoDB."""
    assert query(("pk", "E#1"))["ConsistentRead"] is True
    assert "ConsistentRead" not in query(("listing", "users"), index="ListIndex")
