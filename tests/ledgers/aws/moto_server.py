"""moto as a server of its own that keeps what it has promised: `python -m tests.ledgers.aws.moto_server PORT`.

As it comes, moto copies the whole table for each action of a transaction, and puts the copy back when the transaction is cancelled:
what others wrote meanwhile is gone. Here one request is served at a time, but those to queues, and a transaction saves only the items that it touches.

Half of its time it looked for other names of what is there under its own, for each attribute of each item: it need not.

It never answers what a busy DynamoDB answers. `PUT /faults {"conflicts": 0.1, "throttles": 0.1, "seed": 7}` makes it answer that share
of the transactions and calls with `TransactionConflict` and throttling, before they had an effect. `GET /calls` tells how often each
call was made.
"""

import copy
import gc
import json
import logging
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from moto.core import responses
from moto.core.serialize import ResponseSerializer
from moto.dynamodb import models
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table
from moto.dynamodb.parsing.ast_nodes import DepthFirstTraverser
from moto.dynamodb.parsing.expressions import UpdateExpressionParser
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

ATTRIBUTE_TYPES = {"S", "N", "B", "SS", "NS", "BS", "M", "L", "NULL", "BOOL"}
DYNAMO = "com.amazonaws.dynamodb.v20120810#"


class TablesAsTheyAre:
    """`copy` as moto's transactions shall see it: a table is not copied."""

    copy = staticmethod(copy.copy)

    @staticmethod
    def deepcopy(thing: Any, *given: Any) -> Any:
        return thing if isinstance(thing, Table) else copy.deepcopy(thing, *given)


def save_touched_items() -> None:
    """Let a transaction put back what it touched, and nothing else."""
    models.copy = TablesAsTheyAre  # type: ignore[attr-defined]
    write_all = DynamoDBBackend.transact_write_items

    def transact_write_items(self: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
        saved = []
        for action in transact_items:
            [asked] = action.values()
            table = self.tables.get(asked.get("TableName", ""))
            if table is not None:
                named = asked.get("Key") or asked.get("Item")
                partition, sort = DynamoType(named[table.hash_key_attr]), DynamoType(named[str(table.range_key_attr)])
                saved.append((table, partition, sort, copy.deepcopy(table.items.get(partition, {}).get(sort))))
        try:
            write_all(self, transact_items)
        except Exception:
            for table, partition, sort, item in saved:
                if item is None:
                    table.items.get(partition, {}).pop(sort, None)
                else:
                    table.items[partition][sort] = item
            raise

    DynamoDBBackend.transact_write_items = transact_write_items  # type: ignore[method-assign]


def answer_quickly() -> None:
    """Look for no second name of an attribute's value, and do once what is the same for every call."""
    get_value = ResponseSerializer.get_value
    processed: dict[type, Any] = {}

    def value_of(self: ResponseSerializer, value: Any, key: str, shape: Any) -> Any:
        if type(value) is dict and value.keys() <= ATTRIBUTE_TYPES:
            return value.get(key)
        return get_value(self, value, key, shape)

    def nodes_to_be_processed(self: DepthFirstTraverser) -> Any:
        if type(self) not in processed:
            processed[type(self)] = tuple(self._processing_map())
        return processed[type(self)]

    ResponseSerializer.get_value = value_of  # type: ignore[method-assign]
    DepthFirstTraverser.nodes_to_be_processed = nodes_to_be_processed
    # Whoever works with a parsed expression takes a copy.
    UpdateExpressionParser.make = staticmethod(cache(UpdateExpressionParser.make))  # type: ignore[method-assign]
    responses.method_names_from_class = cache(responses.method_names_from_class)


class OneAtATime:
    """The application of moto behind one lock, with faults on request."""

    def __init__(self, served: Callable[..., Iterable[bytes]]) -> None:
        self._served = served
        self._lock = threading.Lock()
        self._faults: dict[str, float] = {}
        self._random = random.Random()
        self._calls: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/faults":
                return self._set(environ, start_response)
            case "/calls":
                return _answer(start_response, "200 OK", dict(self._calls))
        service, _, call = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")
        self._calls[call] += 1
        if service == "AmazonSQS":  # who waits at a queue does not hold up the others
            return self._served(environ, start_response)
        with self._lock:
            if service.startswith("DynamoDB") and (fault := self._fault(call)):
                return _answer(start_response, "400 Bad Request", fault)
            return list(self._served(environ, start_response))

    def _set(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self._faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        self._random = random.Random(self._faults.pop("seed", 0))
        return _answer(start_response, "200 OK", {})

    def _fault(self, call: str) -> dict[str, Any] | None:
        drawn = self._random.random() if self._faults else 1.0
        if call == "TransactWriteItems" and drawn < self._faults.get("conflicts", 0):
            reasons = [
                {"Code": "TransactionConflict", "Message": "Transaction is ongoing for the item"},
                {"Code": "None"},
            ]
            said = "Transaction cancelled, please refer cancellation reasons for specific reasons [TransactionConflict, None]"
            return {
                "__type": f"{DYNAMO}TransactionCanceledException", "CancellationReasons": reasons, "Message": said,
            }  # fmt: skip
        if call != "CreateTable" and self._random.random() < self._faults.get("throttles", 0):
            return {"__type": f"{DYNAMO}ProvisionedThroughputExceededException", "message": "slow down"}
        return None


def _answer(start_response: Any, status: str, body: dict[str, Any]) -> Iterable[bytes]:
    text = json.dumps(body).encode()
    start_response(status, [("Content-Type", "application/x-amz-json-1.0"), ("Content-Length", str(len(text)))])
    return [text]


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    MotoRequestHandler.protocol_version = "HTTP/1.1"  # else every call is a connection of its own
    save_touched_items()
    answer_quickly()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    served = OneAtATime(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), served, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
