"""Asking DynamoDB, and asking again.

The rule for every call whose answer is not known: ask again with the same content. If the condition then fails, the write may have
been our own the first time; `RefusedError.uncertain` says so, and whoever asked looks for its mark in the item. What is too busy is asked
again after a wait that grows and is drawn: conflicts of transactions and throttling, also where they are a reason inside a cancelled
transaction, which no SDK tries again by itself. After `PATIENCE` the ledger is away.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from aiohttp import ClientError as HttpError
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from redrive.errors import LedgerAwayError, LedgerError
from redrive.ledgers.aws.attributes import Item, Key
from redrive.ledgers.aws.expressions import Action, key_of
from redrive.ledgers.aws.history import COUNTER_SHARDS, counter_action

T = TypeVar("T")

PATIENCE = timedelta(seconds=30)
FIRST_WAIT_SECONDS = 0.025
WAIT_SECONDS_MAX = 1.0
KEYS_MAX = 100
"""How many items one call may ask for."""
ACTIONS_MAX = 100
"""How many actions one transaction may have."""
BUSY = frozenset(
    {
        "TransactionConflict", "TransactionConflictException", "TransactionInProgressException",
        "ProvisionedThroughputExceeded", "ProvisionedThroughputExceededException", "ThrottlingError", "ThrottlingException",
        "Throttling", "RequestLimitExceeded", "RequestThrottled", "LimitExceededException",
    }
)  # fmt: skip
"""What passes by itself. Nothing was written."""
UNKNOWN = frozenset({"InternalServerError", "InternalFailure", "ServiceUnavailable", "ServiceUnavailableException"})
"""What may or may not have been written."""
REFUSED = "ConditionalCheckFailed"
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

    def __init__(self, client: Any, table: str, *, patience: timedelta = PATIENCE) -> None:
        self.table = table
        self._client = client
        self._patience = patience.total_seconds()

    # --- reading --------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Item | None:
        """One item, read strongly."""
        found = await self._ask(
            lambda: self._client.get_item(TableName=self.table, Key=key_of(key), ConsistentRead=True)
        )
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
        wait = FIRST_WAIT_SECONDS
        while left:
            asked = {self.table: {"Keys": left, "ConsistentRead": True}}
            answer = await self._ask(partial(self._client.batch_get_item, RequestItems=asked))
            items = answer.get("Responses", {}).get(self.table, [])
            found += [((item["pk"]["S"], item["sk"]["S"]), item) for item in items]
            left = answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", [])
            if left and not items:  # the table is busy: some of them come with every answer otherwise
                await asyncio.sleep(wait * random.random())
                wait = min(2 * wait, WAIT_SECONDS_MAX)
        return found

    async def pages(self, request: Mapping[str, Any]) -> AsyncIterator[list[Item]]:
        """The pages of a query, as long as there are any. A page may be empty and yet not the last."""
        start = request.get("ExclusiveStartKey")
        while True:
            more = {} if start is None else {"ExclusiveStartKey": start}
            asked = {**request, **more, "TableName": self.table}
            answer = await self._ask(partial(self._client.query, **asked))
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

    async def _write(self, actions: Sequence[Action]) -> None:
        if len(actions) == 1:
            [(kind, request)] = actions[0].items()
            await getattr(self._client, _CALLS[kind])(TableName=self.table, **request)
            return
        items = [{kind: {"TableName": self.table, **request}} for action in actions for kind, request in action.items()]
        await self._client.transact_write_items(TransactItems=items)

    # --- asking again ---------------------------------------------------------------------------------------------------

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        until, wait, uncertain = loop.time() + self._patience, FIRST_WAIT_SECONDS, False
        while True:
            try:
                return await call()
            except ClientError as error:
                said: Exception = error
                uncertain = judge(error.response, uncertain=uncertain)
            except ParamValidationError:
                raise
            except (BotoCoreError, HttpError, OSError, TimeoutError) as error:
                said, uncertain = error, True
            if loop.time() + wait > until:
                raise LedgerAwayError(f"DynamoDB does not answer: {said}") from said
            await asyncio.sleep(wait * random.random())
            wait = min(2 * wait, WAIT_SECONDS_MAX)


def judge(response: Mapping[str, Any], *, uncertain: bool) -> bool:
    """Whether a write may have happened after this answer, if it is worth asking again; raises otherwise. Pure."""
    code = response["Error"]["Code"]
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    if code in BUSY:
        return uncertain
    if code in UNKNOWN or status >= 500:
        return True
    if code == "ConditionalCheckFailedException":
        raise RefusedError([Reason(REFUSED, response.get("Item"))], uncertain=uncertain)
    if code == "TransactionCanceledException":
        reasons = [_reason(one) for one in response.get("CancellationReasons", [])]
        if any(reason.refused for reason in reasons):
            raise RefusedError(reasons, uncertain=uncertain)
        if any(reason.code in BUSY for reason in reasons):
            return uncertain
    said = response["Error"].get("Message", "")
    raise LedgerError(
        f"DynamoDB refused the call ({code}: {said}): check the table, its keys and the rights of this process"
    )


def _reason(told: Mapping[str, Any]) -> Reason:
    code = told.get("Code")
    return Reason(None if code in (None, "None") else code, told.get("Item") or None)
