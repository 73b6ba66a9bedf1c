"""The table and its indexes: what they must be, how tests make them, and what is wrong with one that is there.

In production the table is made by the template in `deploy/aws`, with recovery and deletion protection. Both come from `INDEXES`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

KEYS_ONLY: Mapping[str, Any] = {"ProjectionType": "KEYS_ONLY"}


class TableIndex(NamedTuple):
    """An index: its two keys, and what else it holds."""

    partition: str
    sort: str
    projection: Mapping[str, Any] = KEYS_ONLY


INDEXES: Mapping[str, TableIndex] = {
    "StatusIndex": TableIndex(
        "user_id",
        "status#timestamp",
        {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["event_type", "payload_bytes"]},
    ),
    "DueIndex": TableIndex("due_shard", "look_at"),
    "ListIndex": TableIndex("listing", "listing_at"),
    "CauseIndex": TableIndex("cause_key", "cause_at"),
    "EndpointIndex": TableIndex("endpoint_key", "endpoint_at", {"ProjectionType": "ALL"}),
}
"""The inbox of a user by status; what a sweep must look at; lists of what is open and dead; causes; endpoints."""
TTL = "expires_at"


def _schema(partition: str, sort: str) -> list[dict[str, str]]:
    return [{"AttributeName": partition, "KeyType": "HASH"}, {"AttributeName": sort, "KeyType": "RANGE"}]


def definition(name: str) -> dict[str, Any]:
    """What `CreateTable` is told."""
    keys = dict.fromkeys(["pk", "sk", *(key for one in INDEXES.values() for key in (one.partition, one.sort))])
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in keys],
        "KeySchema": _schema("pk", "sk"),
        "GlobalSecondaryIndexes": [
            {"IndexName": index, "KeySchema": _schema(one.partition, one.sort), "Projection": dict(one.projection)}
            for index, one in INDEXES.items()
        ],
    }


def problems_of(described: Mapping[str, Any]) -> list[str]:
    """What is wrong with a table, from what `DescribeTable` tells, one sentence each. Pure."""
    found = []
    if _keys(described) != ("pk", "sk"):
        found.append("its keys are not pk and sk")
    there = {one["IndexName"]: one for one in described.get("GlobalSecondaryIndexes", [])}
    for name, index in INDEXES.items():
        if name not in there:
            found.append(f"it has no index {name} on {index.partition} and {index.sort}")
        elif _keys(there[name]) != (index.partition, index.sort):
            found.append(f"its index {name} is not on {index.partition} and {index.sort}")
        elif there[name].get("IndexStatus", "ACTIVE") != "ACTIVE":
            found.append(f"its index {name} is still being built")
    return found


def _keys(described: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(key["AttributeName"] for key in sorted(described.get("KeySchema", []), key=lambda key: key["KeyType"]))


def queue_problems(attributes: Mapping[str, str], handler_seconds: float) -> list[str]:
    """What is wrong with a queue whose messages are worked on so long, from its attributes. Pure."""
    found = []
    if attributes.get("FifoQueue") == "true":
        found.append("it is a FIFO queue: use a standard one, order is kept in the table")
    hidden = int(attributes.get("VisibilityTimeout", "30"))
    if hidden < handler_seconds:
        found.append(
            f"its visibility timeout is {hidden} s, and a message may be worked on for {handler_seconds:g} s: "
            f"set it to at least {handler_seconds:g} s"
        )
    return found
