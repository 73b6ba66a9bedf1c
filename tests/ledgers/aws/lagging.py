"""A client of DynamoDB whose indexes are behind by a second, as the real ones may be."""

import re
from datetime import datetime, timedelta
from typing import Any

from redrive.ledgers.aws.attributes import Item
from redrive.ledgers.aws.table import INDEXES
from tests.ledgers.aws.ends import read_all

LAG = timedelta(seconds=1)
WRITES = {"put_item", "update_item", "delete_item", "transact_write_items"}
CONDITION = re.compile(r"(#\w+) = (:\w+)(?: AND (?:begins_with\((#\w+), (:\w+)\)|(#\w+) (<=|<|>=|>) (:\w+)))?")
COMPARISONS = {
    "<=": lambda one, other: one <= other,
    "<": lambda one, other: one < other,
    ">=": lambda one, other: one >= other,
    ">": lambda one, other: one > other,
}


class LaggingClient:
    """Passes calls on, and answers queries of an index as the table was a second ago, by the clock of the test."""

    def __init__(self, client: Any, clock: Any, table: str) -> None:
        self._client = client
        self._clock = clock
        self._table = table
        self._versions: list[tuple[datetime, list[Item]]] = []
        self.stale = 0
        """How many answers were not as the table is now."""

    def __getattr__(self, call: str) -> Any:
        async def asked(**request: Any) -> Any:
            if call == "query" and "IndexName" in request:
                return self._query(request)
            answer = await getattr(self._client, call)(**request)
            if call in WRITES:
                self._versions.append((self._clock.now(), await read_all(self._client, self._table)))
            return answer

        return asked

    def _query(self, request: dict[str, Any]) -> dict[str, Any]:
        seen = [items for at, items in self._versions if at <= self._clock.now() - LAG]
        told = _found(seen[-1] if seen else [], request)
        self.stale += told != _found(self._versions[-1][1] if self._versions else [], request)
        return {"Items": told}


def _found(items: list[Item], request: dict[str, Any]) -> list[Item]:
    index = INDEXES[request["IndexName"]]
    matched = CONDITION.fullmatch(request["KeyConditionExpression"])
    assert matched, request["KeyConditionExpression"]
    _, partition, _, prefix, _, comparison, bound = matched.groups()
    value = {name: next(iter(given.values())) for name, given in request["ExpressionAttributeValues"].items()}
    found = []
    for item in items:
        if item.get(index.partition, {}).get("S") != value[partition] or index.sort not in item:
            continue
        sort = item[index.sort]["S"]
        if (prefix and not sort.startswith(value[prefix])) or (
            comparison and not COMPARISONS[comparison](sort, value[bound])
        ):
            continue
        found.append({name: item[name] for name in ("pk", "sk", index.partition, index.sort)})
    found.sort(key=lambda item: item[index.sort]["S"], reverse=not request.get("ScanIndexForward", True))
    return found[: request.get("Limit")]
