"""Requests to change or read items, built as values. Pure.

Every name goes through `ExpressionAttributeNames`: DynamoDB reserves some six hundred words, `status`, `timestamp` and `state` among
them, and a name like `status#timestamp` cannot be written bare at all.
"""

from collections.abc import Mapping
from typing import Any, Self

from redrive.ledgers.aws.attributes import Item, Key, encode, to_item

Action = dict[str, dict[str, Any]]
"""One action of a transaction, as in `{"Put": {"Item": …}}`; the table is added by whoever sends it."""
Path = str | tuple[str, ...]
"""An attribute, or the way to a value inside its map."""


def key_of(key: Key) -> Item:
    """The key of an item, as requests want it."""
    return {"pk": {"S": key[0]}, "sk": {"S": key[1]}}


class Expressions:
    """The names and values that the expressions of one request share."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: Item = {}

    def name(self, path: Path) -> str:
        """A path, each step of it by its stand-in."""
        steps = (path,) if isinstance(path, str) else path
        return ".".join(self._names.setdefault(step, f"#n{len(self._names)}") for step in steps)

    def value(self, value: Any) -> str:
        """A value by its stand-in."""
        stand_in = f":v{len(self._values)}"
        self._values[stand_in] = encode(value)
        return stand_in

    def shared(self) -> dict[str, Any]:
        """What a request says about its stand-ins."""
        names = {stand_in: step for step, stand_in in self._names.items()}
        named = {"ExpressionAttributeNames": names} if names else {}
        return named | ({"ExpressionAttributeValues": self._values} if self._values else {})


class Conditional:
    """Something that is done to one item, only where all conditions hold. A refusal brings the item as it is."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._with = Expressions()
        self._conditions: list[str] = []

    def require(self, path: Path, comparison: str, value: Any) -> Self:
        """Only where this holds."""
        self._conditions.append(f"{self._with.name(path)} {comparison} {self._with.value(value)}")
        return self

    def require_there(self) -> Self:
        """Only where the item is there: an update would make it otherwise."""
        self._conditions.append(f"attribute_exists({self._with.name('pk')})")
        return self

    def require_absent(self, path: Path) -> Self:
        """Only where the item has no such value."""
        self._conditions.append(f"attribute_not_exists({self._with.name(path)})")
        return self

    def _request(self, what: Mapping[str, Any]) -> dict[str, Any]:
        request = {"Key": key_of(self._key), **what}
        if self._conditions:
            request["ConditionExpression"] = " AND ".join(self._conditions)
            request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return request | self._with.shared()


class Delete(Conditional):
    """The end of an item."""

    def action(self) -> Action:
        """The request."""
        return {"Delete": self._request({})}


class Update(Conditional):
    """A change of one item."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self._set: list[str] = []
        self._remove: list[str] = []
        self._add: list[str] = []

    def set(self, path: Path, value: Any) -> Self:
        """Write a value; None removes it."""
        name = self._with.name(path)
        if value is None:
            self._remove.append(name)
        else:
            self._set.append(f"{name} = {self._with.value(value)}")
        return self

    def add(self, name: str, amount: float) -> Self:
        """Add to a number, which counts from zero where it is not there."""
        self._add.append(f"{self._with.name(name)} {self._with.value(amount)}")
        return self

    def action(self) -> Action:
        """The request."""
        clauses = {"SET": self._set, "REMOVE": self._remove, "ADD": self._add}
        text = " ".join(f"{word} {', '.join(parts)}" for word, parts in clauses.items() if parts)
        return {"Update": self._request({"UpdateExpression": text})}


def put(key: Key, values: Mapping[str, Any]) -> Action:
    """Write an item, whatever was there."""
    return {"Put": {"Item": key_of(key) | to_item(values)}}


def put_new(key: Key, values: Mapping[str, Any]) -> Action:
    """Write an item only where there is none. A refusal brings the one that is there."""
    [(kind, request)] = put(key, values).items()
    condition = {
        "ConditionExpression": "attribute_not_exists(#n0)",
        "ExpressionAttributeNames": {"#n0": "pk"},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    return {kind: request | condition}


def put_over(key: Key, values: Mapping[str, Any], name: str, seen: str | int) -> Action:
    """Write an item in the place of one that still has this value. A refusal brings the one that is there."""
    expressions = Expressions()
    condition = f"{expressions.name(name)} = {expressions.value(seen)}"
    [(kind, request)] = put(key, values).items()
    refusal = {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {kind: request | refusal | expressions.shared()}


def delete(key: Key) -> Action:
    """Delete an item, if it is there."""
    return Delete(key).action()


def query(
    partition: tuple[str, str],
    sort: tuple[str, str, str | tuple[str, str]] | None = None,
    *,
    index: str | None = None,
    backwards: bool = False,
    limit: int | None = None,
    start: Item | None = None,
) -> dict[str, Any]:
    """Look for items of one partition, (name, value), and a condition on the sort key, (name, comparison, value).

    `between` takes the first and the last value. Read strongly from the table; an index is always a little behind.
    """
    expressions = Expressions()
    text = f"{expressions.name(partition[0])} = {expressions.value(partition[1])}"
    if sort is not None:
        text += f" AND {_sorted(expressions, *sort)}"
    request: dict[str, Any] = {
        "KeyConditionExpression": text,
        "ScanIndexForward": not backwards,
        **expressions.shared(),
    }
    request |= {"ConsistentRead": True} if index is None else {"IndexName": index}
    request |= {} if limit is None else {"Limit": limit}
    return request | ({} if start is None else {"ExclusiveStartKey": start})


def _sorted(expressions: Expressions, name: str, comparison: str, value: str | tuple[str, str]) -> str:
    asked = expressions.name(name)
    match comparison, value:
        case "between", (first, last):
            return f"{asked} BETWEEN {expressions.value(first)} AND {expressions.value(last)}"
        case "begins_with", _:
            return f"begins_with({asked}, {expressions.value(value)})"
        case _:
            return f"{asked} {comparison} {expressions.value(value)}"
