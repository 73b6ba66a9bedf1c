"""One table of DynamoDB: reading items, and writing all of some actions or none.

If a condition fails in a call that was asked again, the write may have been our own the first time; `RefusedError.uncertain` says so,
and whoever asked looks for its mark in the item.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from botocore.exceptions import ClientError

from redrive.errors import LedgerError
from redrive.ledgers.aws.asking import BUSY, PATIENCE, BusyError, ask_again, judge_code, refused_call
from redrive.ledgers.aws.attributes import Item, Key
from redrive.ledgers.aws.clock import AnswerClock
from redrive.ledgers.aws.expressions import Action, key_of
from redrive.ledgers.aws.history import COUNTER_SHARDS, counter_action

T = TypeVar("T")

KEYS_MAX = 100
"""How many items one call may ask for."""
ACTIONS_MAX = 100
"""How many actions one transaction may have."""
REFUSED = "ConditionalCheckFailed"
REMEDY = "check the table, its keys and the rights of this process"
_CALLS = {"Update": "update_item", "Put": "put_item", "Delete": "delete_item"}


class Reason(NamedTuple):
    """Why an action was not written: its code, None if it was not its fault, and the item as it is."""

    code: str | None
    item: Item | None

    @property
    def refused(self) -> bool:
        """Whether its condition did not hold."""
        return self.code == REFUSED


class RefusedError(LedgerError):
    """A condition did not hold, and nothing was written; or all of it was, by ourselves, if `uncertain`."""

    def __init__(self, reasons: Sequence[Reason], *, uncertain: bool) -> None:
        self.reasons = reasons
        self.uncertain = uncertain
        super().__init__(f"refused: {[reason.code for reason in reasons]}")


class Dynamo:
    """One table, through a client of aiobotocore that tries nothing again by itself."""

    def __init__(
        self, client: Any, table: str, *, patience: timedelta = PATIENCE, clock: AnswerClock | None = None
    ) -> None:
        self.table = table
        self.clock = clock or AnswerClock()
        self._client = client
        self._patience = patience.total_seconds()

    # --- reading --------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Item | None:
        """One item, read strongly."""
        asked = {"TableName": self.table, "Key": key_of(key), "ConsistentRead": True}
        found = await self._ask(partial(self._send, "get_item", asked))
        item: Item | None = found.get("Item")
        return item

    async def get_many(self, keys: Iterable[Key]) -> dict[Key, Item]:
        """Those of the items that are there, read strongly."""
        wanted = list(dict.fromkeys(keys))
        some = [wanted[start : start + KEYS_MAX] for start in range(0, len(wanted), KEYS_MAX)]
        return {key: item for found in await asyncio.gather(*map(self._get_some, some)) for key, item in found}

    async def _get_some(self, keys: Sequence[Key]) -> list[tuple[Key, Item]]:
        found: list[tuple[Key, Item]] = []
        left: list[Item] = [key_of(key) for key in keys]

        async def ask() -> None:
            nonlocal left
            while left:
                asked = {self.table: {"Keys": left, "ConsistentRead": True}}
                answer = await self._send("batch_get_item", {"RequestItems": asked})
                items = answer.get("Responses", {}).get(self.table, [])
                found.extend(((item["pk"]["S"], item["sk"]["S"]), item) for item in items)
                left = answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", [])
                if left and not items:  # some of them come with every answer otherwise
                    raise BusyError(f"{len(left)} items were not read: the table is busy")

        await self._ask(ask)
        return found

    async def pages(self, request: Mapping[str, Any]) -> AsyncIterator[list[Item]]:
        """The pages of a query, as long as there are any. A page may be empty and yet not the last."""
        start = request.get("ExclusiveStartKey")
        while True:
            more = {} if start is None else {"ExclusiveStartKey": start}
            asked = {**request, **more, "TableName": self.table}
            answer = await self._ask(partial(self._send, "query", asked))
            yield answer.get("Items", [])
            start = answer.get("LastEvaluatedKey")
            if not start:
                return

    async def query(self, request: Mapping[str, Any], *, items_max: int | None = None) -> list[Item]:
        """What a query finds, up to this many."""
        found: list[Item] = []
        async for page in self.pages(request):
            found += page
            if items_max is not None and len(found) >= items_max:
                return found[:items_max]
        return found

    async def count(self, request: Mapping[str, Any], *, counted_max: int | None = None) -> int:
        """How many items a query finds, counted up to this many."""
        found, start = 0, None
        while counted_max is None or found < counted_max:
            asked = {**request, "TableName": self.table, "Select": "COUNT"}
            asked |= {} if start is None else {"ExclusiveStartKey": start}
            asked |= {} if counted_max is None else {"Limit": counted_max - found}
            answer = await self._ask(partial(self._send, "query", asked))
            found += int(answer.get("Count", 0))
            start = answer.get("LastEvaluatedKey")
            if not start:
                break
        return found

    # --- writing --------------------------------------------------------------------------------------------------------

    async def write(self, actions: Sequence[Action], counts: Mapping[str, Mapping[str, int]] | None = None) -> None:
        """Write all of the actions or none, and count by owner. Raises `RefusedError` with a reason for each action.

        Each try counts in another shard: two transactions that met there hardly meet again.
        """
        counted = {user: amounts for user, amounts in (counts or {}).items() if any(amounts.values())}

        async def send() -> None:
            shard = random.randrange(COUNTER_SHARDS)
            extra = [counter_action(user, shard, amounts) for user, amounts in sorted(counted.items())]
            await self._write([*actions, *extra])

        await self._ask(send)

    async def update(self, action: Action) -> Item:
        """Make one update; the item as it is then. Where an answer is lost it is made twice: only for what may be."""
        asked = {"TableName": self.table, **action["Update"], "ReturnValues": "ALL_NEW"}
        answer = await self._ask(partial(self._send, "update_item", asked))
        after: Item = answer["Attributes"]
        return after

    async def _write(self, actions: Sequence[Action]) -> None:
        if len(actions) == 1:
            [(kind, request)] = actions[0].items()
            await self._send(_CALLS[kind], {"TableName": self.table, **request})
            return
        items = [{kind: {"TableName": self.table, **request}} for action in actions for kind, request in action.items()]
        await self._send("transact_write_items", {"TransactItems": items})

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await ask_again(call, judge, "DynamoDB", self._patience)

    async def _send(self, call: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """One call, whose answer also tells the time."""
        asked_at = time.monotonic()
        try:
            answer: dict[str, Any] = await getattr(self._client, call)(**request)
        except ClientError as error:
            self.clock.note(error.response, asked_at)
            raise
        self.clock.note(answer, asked_at)
        return answer


def judge(response: Mapping[str, Any], *, uncertain: bool) -> bool:
    """Whether a write may have happened after this answer, if it is worth asking again; raises otherwise. Pure."""
    judged = judge_code(response, uncertain=uncertain)
    if judged is not None:
        return judged
    code = response["Error"]["Code"]
    if code == "ConditionalCheckFailedException":
        raise RefusedError([Reason(REFUSED, response.get("Item"))], uncertain=uncertain)
    if code == "TransactionCanceledException":
        reasons = [_reason(one) for one in response.get("CancellationReasons", [])]
        if any(reason.refused for reason in reasons):
            raise RefusedError(reasons, uncertain=uncertain)
        if any(reason.code in BUSY for reason in reasons):
            return uncertain
    raise refused_call("DynamoDB", response, REMEDY)


def _reason(told: Mapping[str, Any]) -> Reason:
    code = told.get("Code")
    return Reason(None if code in (None, "None") else code, told.get("Item") or None)
