"""moto as a server of its own that keeps what it has promised: `python -m tests.ledgers.aws.moto_server PORT`.

As it comes, moto copies the whole table for each action of a transaction, and puts the copy back when the transaction is cancelled:
what others wrote meanwhile is gone. Here one request is served at a time, but those to queues, and a transaction saves only the items that it touches.

Half of its time it looked for other names of what is there under its own, for each attribute of each item: it need not. Nor need a
call to DynamoDB go through Flask, which asks each time what service that is, or by a connection and a thread of its own, as werkzeug's
server has it. Nor need a query try all types for each comparison of two texts. Calls to other services go the way that moto made for them.

It never answers what a busy DynamoDB answers. `PUT /faults {"conflicts": 0.1, "throttles": 0.1, "seed": 7}` makes it answer that share
of the transactions and calls with `TransactionConflict` and throttling, before they had an effect. `GET /calls` tells how often each
call was made.
"""

import copy
import gc
import io
import json
import random
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from http.client import responses as reasons
from typing import Any
from urllib.parse import unquote

from moto.core import responses
from moto.core.request import Request, environ_key_for_header
from moto.core.serialize import BaseJSONSerializer, ResponseSerializer
from moto.dynamodb import models
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table
from moto.dynamodb.parsing.ast_nodes import DepthFirstTraverser
from moto.dynamodb.parsing.expressions import UpdateExpressionParser
from moto.dynamodb.responses import DynamoHandler
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.datastructures import ImmutableMultiDict

CALLS_OF_ITEMS = {
    "BatchGetItem", "BatchWriteItem", "DeleteItem", "GetItem", "PutItem", "Query", "Scan", "TransactGetItems", "TransactWriteItems",
    "UpdateItem",
}  # fmt: skip
DYNAMO = "com.amazonaws.dynamodb.v20120810#"
DYNAMO_TARGET = "DynamoDB_20120810"


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
    serialize_structure = BaseJSONSerializer._serialize_type_structure
    processed: dict[type, Any] = {}

    def structure(self: BaseJSONSerializer, serialized: Any, value: Any, shape: Any, key: str) -> None:
        if key and shape.name == "AttributeValue" and type(value) is dict:
            serialized[key] = _as_is(value)
        else:
            serialize_structure(self, serialized, value, shape, key)

    def value_of(self: ResponseSerializer, value: Any, key: str, shape: Any) -> Any:
        if type(value) is dict and self.operation_name in CALLS_OF_ITEMS:
            return value.get(key)
        return get_value(self, value, key, shape)

    def nodes_to_be_processed(self: DepthFirstTraverser) -> Any:
        if type(self) not in processed:
            processed[type(self)] = tuple(self._processing_map())
        return processed[type(self)]

    BaseJSONSerializer._serialize_type_structure = structure  # type: ignore[method-assign]
    ResponseSerializer.get_value = value_of  # type: ignore[method-assign]
    DepthFirstTraverser.nodes_to_be_processed = nodes_to_be_processed
    # Whoever works with a parsed expression takes a copy.
    UpdateExpressionParser.make = staticmethod(cache(UpdateExpressionParser.make))  # type: ignore[method-assign]
    responses.method_names_from_class = cache(responses.method_names_from_class)


def _as_is(attribute: dict[str, Any]) -> dict[str, Any]:
    """A value with its type as it stands in JSON; the ones that are no JSON are not ours, and moto would write them otherwise."""
    [(kind, value)] = attribute.items()
    match kind:
        case "M":
            return {"M": {name: _as_is(inner) for name, inner in value.items()}}
        case "L":
            return {"L": [_as_is(inner) for inner in value]}
        case "S" | "N":
            return {kind: str(value)}
        case "BOOL" | "NULL" | "SS" | "NS":
            return attribute
    raise TypeError(f"an attribute of type {kind} is not ours")


def find_quickly() -> None:
    """Compare texts as texts. Each query sorts the whole table and compares each item, and for each comparison each type was tried."""
    cast_value: Any = DynamoType.cast_value
    equals, all_items = DynamoType.__eq__, Table.all_items

    def cast(self: DynamoType) -> Any:
        return self.value if self.type == "S" else cast_value.fget(self)

    def equal(self: DynamoType, other: DynamoType) -> bool:
        return self.value == other.value if self.type == other.type == "S" else equals(self, other)

    def sorted_items(self: Table) -> list[Any]:
        if {one["AttributeType"] for one in self.attr} != {"S"} or not self.range_key_attr:
            return all_items(self)
        items = [item for partition in self.items.values() for item in partition.values()]
        return sorted(items, key=lambda item: (item.hash_key.value, item.range_key.value))

    DynamoType.cast_value = property(cast)  # type: ignore[assignment,method-assign]
    DynamoType.__eq__ = equal  # type: ignore[assignment,method-assign]
    DynamoType.__ne__ = lambda self, other: not equal(self, other)  # type: ignore[assignment,method-assign]
    Table.all_items = sorted_items  # type: ignore[method-assign]


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
            if service == DYNAMO_TARGET:
                return _ask_dynamo(environ, start_response)
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


class Call(Request):
    """A request with JSON in it: nobody need look for a form."""

    form = files = ImmutableMultiDict()  # type: ignore[assignment]


def _ask_dynamo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """A call to DynamoDB, without asking whose it is."""
    request = Call(environ)
    status, headers, body = DynamoHandler.dispatch(request, request.raw_url, request.headers)
    text = body.encode() if isinstance(body, str) else body
    start_response(f"{status} {reasons[int(status)]}", [(name, str(value)) for name, value in headers.items()])
    return [text]


class Connection(socketserver.StreamRequestHandler):
    """HTTP/1.1 to a WSGI application, for clients that mean well: one thread for all requests of a connection."""

    disable_nagle_algorithm = True
    server: "Server"

    def handle(self) -> None:
        """Answer until the client goes."""
        try:
            while line := self.rfile.readline():
                method, target, _ = line.decode("latin-1").split()
                self._answer(method, target)
        except ConnectionError:
            return

    def _answer(self, method: str, target: str) -> None:
        path, _, query = target.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": unquote(path, "latin-1"), "QUERY_STRING": query,
            "RAW_URI": target, "SERVER_NAME": "127.0.0.1", "SERVER_PORT": str(self.server.server_address[1]),
            "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "127.0.0.1", "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
            "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
        }  # fmt: skip
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            environ[environ_key_for_header(name)] = value.strip()
        assert "HTTP_TRANSFER_ENCODING" not in environ, environ
        if environ.get("HTTP_EXPECT"):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        environ["wsgi.input"] = io.BytesIO(self.rfile.read(int(environ.get("CONTENT_LENGTH") or 0)))
        said: list[str] = []

        def start_response(status: str, headers: list[tuple[str, str]], _: Any = None) -> None:
            said[:] = [f"HTTP/1.1 {status}", *(f"{n}: {v}" for n, v in headers if n.lower() != "content-length")]

        body = b"".join(self.server.served(environ, start_response))
        head = "\r\n".join([*said, f"Content-Length: {len(body)}", "\r\n"]).encode("latin-1")
        self.wfile.write(head if method == "HEAD" else head + body)


class Server(socketserver.ThreadingTCPServer):
    """Who listens."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, served: Callable[..., Iterable[bytes]]) -> None:
        self.served = served
        super().__init__(("127.0.0.1", port), Connection)


def main() -> None:
    save_touched_items()
    answer_quickly()
    find_quickly()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    with Server(int(sys.argv[1]), OneAtATime(DomainDispatcherApplication(create_backend_app))) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
