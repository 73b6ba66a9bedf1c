"""A small interpreter of the part of CloudWatch's Logs Insights that our docs use: fields, filter, stats, sort, limit.

Whatever it does not know is an error, so that no query in the docs is believed unread.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any

Row = dict[str, Any]


def rows_of(lines: list[str], *, ingested_at: str) -> list[Row]:
    """Lines of a log as Insights sees them: our fields, those that begin with @ with one more, and its own."""
    rows = []
    for line in lines:
        told = json.loads(line)
        fields = {
            f"@{name}" if name.startswith("@") else name: value for name, value in told.items() if value is not None
        }
        rows.append({**fields, "@message": line, "@timestamp": ingested_at})
    return rows


def asked_fields(query: str) -> set[str]:
    """Every field of a line that a query names: not those that it makes itself."""
    made = set(re.findall(r"\bas (\w+)", query))
    bare = re.sub(r'"[^"]*"|/[^/]*/', "", query)
    words = set(re.findall(r"@*[a-z_]+\w*", bare))
    known = {
        "fields", "filter", "stats", "sort", "limit", "by", "as", "and", "like", "asc", "desc", "count", "avg", "max",
        "ispresent", "bin", "m",
    }  # fmt: skip
    return words - made - known


def run(query: str, rows: list[Row]) -> list[Row]:
    """What a query answers."""
    for command in re.split(r"\s*\n?\|\s*", query.strip()):
        word, _, rest = command.partition(" ")
        rows = _COMMANDS[word](rest.strip(), rows)
    return rows


def _fields(asked: str, rows: list[Row]) -> list[Row]:
    names = [name.strip() for name in asked.split(",")]
    # Later commands may still use all fields; what is shown is what was asked for.
    return [{**row, "shown": {name: row.get(name) for name in names}} for row in rows]


def _filter(asked: str, rows: list[Row]) -> list[Row]:
    conditions = [_condition(one.strip()) for one in asked.split(" and ")]
    return [row for row in rows if all(holds(row) for holds in conditions)]


def _condition(text: str) -> Callable[[Row], bool]:
    if found := re.fullmatch(r"ispresent\((\S+)\)", text):
        return lambda row: found[1] in row
    if found := re.fullmatch(r"(\S+) like /(.+)/", text):
        return lambda row: re.search(found[2], str(row.get(found[1], ""))) is not None
    if found := re.fullmatch(r'(\S+) = "(.*)"', text):
        return lambda row: row.get(found[1]) == found[2]
    if found := re.fullmatch(r"(\S+) >= (\d+)", text):
        return lambda row: found[1] in row and row[found[1]] >= int(found[2])
    raise AssertionError(f"a condition that nobody here knows: {text}")


def _stats(asked: str, rows: list[Row]) -> list[Row]:
    sums, _, by = asked.partition(" by ")
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[_group(row, by.strip())].append(row)
    return [
        {by.strip(): key, **{name: figure(some) for name, figure in map(_figure, sums.split(", "))}}
        for key, some in groups.items()
    ]


def _group(row: Row, by: str) -> Any:
    if found := re.fullmatch(r"bin\((\d+)m\)", by):
        at = datetime.fromisoformat(row["@timestamp"])
        return at.replace(minute=at.minute - at.minute % int(found[1]), second=0, microsecond=0)
    return row.get(by)


def _figure(text: str) -> tuple[str, Callable[[list[Row]], Any]]:
    found = re.fullmatch(r"(count|avg|max)\((\S+)\) as (\w+)", text.strip())
    assert found is not None, f"a figure that nobody here knows: {text}"
    kind, field, name = found.groups()
    if kind == "count":
        assert field == "*"
        return name, len
    if kind == "max":
        return name, lambda some: max(row[field] for row in some)
    return name, lambda some: sum(row[field] for row in some) / len(some)


def _sort(asked: str, rows: list[Row]) -> list[Row]:
    name, way = asked.split()
    assert way in ("asc", "desc")
    return sorted(rows, key=lambda row: row[name], reverse=way == "desc")


def _limit(asked: str, rows: list[Row]) -> list[Row]:
    return rows[: int(asked)]


_COMMANDS = {"fields": _fields, "filter": _filter, "stats": _stats, "sort": _sort, "limit": _limit}
