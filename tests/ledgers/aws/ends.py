"""What must hold when everything has come to rest, whatever happened on the way."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from redrive.core.states import State
from redrive.ledgers.aws.attributes import Item, from_item
from redrive.ledgers.aws.heads import Head, head_from
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.systems.triggers.aws.follow import delivery_of, read_standing
from redrive.systems.triggers.status import fold
from tests.ledgers.aws.homes import USER


class TheEnd(NamedTuple):
    """All that is in a table."""

    heads: list[Head]
    attempts: list[dict[str, Any]]
    items: list[Item]

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(one["outcome"] for one in self.attempts)


async def read_all(client: Any, table: str) -> list[Item]:
    """Every item: what a test may do, and nobody else."""
    items: list[Item] = []
    start: dict[str, Any] = {}
    while True:
        page = await client.scan(TableName=table, ConsistentRead=True, **start)
        items += page["Items"]
        if not page.get("LastEvaluatedKey"):
            return items
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


async def check_the_end(
    client: Any, ledger: DynamoLedger, posts: Iterable[tuple[str, str]], deliveries: int, now: datetime
) -> TheEnd:
    """Everything has ended; each claim has one attempt, and each post, (task, claim), has one too; nobody was charged more often than the
    budget allows; each event is what its deliveries come to; counters are a count of everything; no index holds a left-over."""
    items = await read_all(client, ledger.dynamo.table)
    heads = [head_from(item) for item in items if item["sk"]["S"] == "E"]
    attempts = [from_item(item) for item in items if item["sk"]["S"].startswith("A#")]
    parts = [part for head in heads for part in head.parts.values()]
    assert len(parts) == deliveries
    assert {part.state for part in parts} <= {State.DONE, State.DEAD}
    made = Counter((_task(one), one["claim_id"]) for one in attempts)
    assert set(made.values()) == {1}
    run = Counter(posts)
    assert set(run.values()) <= {1}, "one claim was posted twice"
    assert set(run) <= set(made), "a post that no attempt explains"
    assert len(attempts) == sum(part.claims for part in parts)
    free = Counter(
        _task(one) for one in attempts if '"suspect"' in one.get("explanation", "") or one["outcome"] == "released"
    )
    charged = Counter(task for task, _ in made) - free
    assert max(charged.values()) <= 4
    for head in heads:
        assert head.look_at is None
        stands = read_standing(head.facts)
        assert fold(stands, [delivery_of(part) for part in head.parts.values()], now) == stands
    counters = {name: amount for name, amount in (await ledger.counters(USER)).items() if amount}
    counted = Counter(read_standing(head.facts).status for head in heads)
    counted.update("d_done" if part.state is State.DONE else "d_dead" for part in parts)
    assert counters == dict(counted)
    dead = [item for item in items if item["sk"]["S"].startswith("F#") and "listing_at" in item]
    assert len(dead) == sum(part.state is State.DEAD for part in parts)
    return TheEnd(heads, attempts, items)


def _task(attempt: dict[str, Any]) -> str:
    return f"{attempt['pk'].removeprefix('E#')}.{attempt['sk'].split('#')[1]}"
