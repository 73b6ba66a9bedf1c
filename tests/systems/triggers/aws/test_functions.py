"""Triggers as functions, on what the template makes: an event comes in by the API, is delivered, retried, found again, and seen.

Each function has a container of its own, its own settings from the template, and its role: every call that it makes must be allowed
by it. What Lambda does around them is played here: messages are received and handed over, and those that did not fail are deleted.
"""

import asyncio
import io
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import structlog
from aiobotocore.client import AioBaseClient

from redrive import functions
from redrive.errors import SettingsError
from redrive.functions import Container
from tests.ledgers.aws.servers import AWS

from .insights import rows_of, run
from .stack import GIVEN, REGION, Stack, allowed, deeds
from .test_insights import queries

FUNCTIONS = {"api": "ApiFunction", "deliver": "DeliverFunction", "sweep": "SweepFunction"}
ROLES = {"api": "ApiRole", "deliver": "DeliverRole", "sweep": "SweepRole"}


class Context:
    """What Lambda tells of an invocation."""

    def __init__(self, seconds: float = 60) -> None:
        self._millis = int(1000 * seconds)

    def get_remaining_time_in_millis(self) -> int:
        return self._millis


class Receiver:
    """An endpoint on loopback in a thread: the functions have the loop of this one."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Deployed:
    """The functions, each in its container, and the queue between them."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack = stack
        self.calls: dict[str, list[tuple[str, str, Any]]] = defaultdict(list)
        self._kept: dict[str, list[Container]] = {name: [] for name in FUNCTIONS}
        self._monkeypatch = monkeypatch
        self._sqs = stack.client("sqs")
        self._running = ""
        self.out, self.err = io.StringIO(), io.StringIO()
        # A thread of its own has an event loop of its own: that of the tests is left alone.
        self._thread = ThreadPoolExecutor(1)
        made = AioBaseClient._make_api_call

        async def recorded(client: Any, call: str, request: Any) -> Any:
            self.calls[self._running].append((client.meta.service_model.service_name, call, request))
            return await made(client, call, request)

        monkeypatch.setattr(AioBaseClient, "_make_api_call", recorded)

    def call(self, name: str, event: Any, context: Context | None = None) -> Any:
        """Invoke a function as Lambda does."""
        for key, value in {
            **AWS, **self.stack.variables(FUNCTIONS[name]), "AWS_REGION": REGION, "AWS_ENDPOINT_URL": self.stack.url,
            "DELIVERY_ALLOW_NETWORKS": "127.0.0.0/8", "RETRY_DELAYS": "0,0,0",
        }.items():  # fmt: skip
            self._monkeypatch.setenv(key, value)
        self._monkeypatch.setattr(functions, "_kept", self._kept[name])
        self._running = name
        # A logger writes where standard error was when it was made.
        with redirect_stdout(self.out), redirect_stderr(self.err):
            return self._thread.submit(getattr(functions, name), event, context or Context()).result()

    def left_open(self) -> dict[str, set[Any]]:
        """What goes on in each container."""
        return {
            name: {task for one in kept for task in asyncio.all_tasks(one.loop)} for name, kept in self._kept.items()
        }

    def request(self, method: str, path: str, key: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """A request through the HTTP API: its status and its body."""
        path, _, query = path.partition("?")
        event = {
            "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": query,
            "headers": {"x-api-key": key, "content-type": "application/json", "host": "api.test", **headers},
            "requestContext": {"http": {"method": method, "path": path, "sourceIp": "203.0.113.7", "protocol": "HTTP/1.1"}},
            "isBase64Encoded": False,
        }  # fmt: skip
        if body is not None:
            event["body"] = json.dumps(body)
        answer = self.call("api", event)
        return answer["statusCode"], json.loads(answer["body"]) if answer["body"] else None

    def messages(self) -> list[dict[str, Any]]:
        """What is in the queue now, as an event source receives it."""
        got = self._sqs.receive_message(
            QueueUrl=self.stack.outputs["QueueUrl"], MaxNumberOfMessages=10, WaitTimeSeconds=0
        )
        return [
            {"messageId": one["MessageId"], "body": one["Body"], "receiptHandle": one["ReceiptHandle"]}
            for one in got.get("Messages", [])
        ]

    def deliver(self, records: list[dict[str, Any]], context: Context | None = None) -> list[str]:
        """Hand records over; those that did not fail are deleted. The ids of those that did."""
        answer = self.call("deliver", {"Records": records}, context)
        failed = [one["itemIdentifier"] for one in answer["batchItemFailures"]]
        for one in records:
            if one["messageId"] not in failed:
                self._sqs.delete_message(QueueUrl=self.stack.outputs["QueueUrl"], ReceiptHandle=one["receiptHandle"])
        return failed

    def work_off(self) -> None:
        """Deliver until the queue is empty."""
        for _ in range(20):
            records = self.messages()
            if not records:
                return
            assert self.deliver(records) == []
        raise AssertionError("the queue does not become empty")

    def close(self) -> None:
        for kept in self._kept.values():
            for container in kept:
                self._thread.submit(container.close).result()
        self._thread.shutdown()


@pytest.fixture(scope="module")
def deployed(stack: Stack) -> Iterator[Deployed]:
    """The functions of the stack. What they log is given back by `structlog` afterwards."""
    before = structlog.get_config()
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Deployed(stack, monkeypatch)
        yield made
        made.close()
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def key(deployed: Deployed, receiver: Receiver) -> str:
    """A key of a user with one endpoint."""
    scopes = ["events:write", "events:read", "endpoints"]
    status, made = deployed.request("POST", "/v1/keys", GIVEN["AdminKey"], {"user": "ada", "scopes": scopes})
    assert status == 201, made
    status, endpoint = deployed.request(
        "POST", "/v1/endpoints", made["key"], {"url": receiver.url, "event_types": ["order.*"]}
    )
    assert status == 201, endpoint
    return str(made["key"])


@pytest.fixture
def post(deployed: Deployed, key: str) -> Callable[..., str]:
    def posted(event_type: str = "order.made", **payload: Any) -> str:
        status, made = deployed.request("POST", "/v1/events", key, {"event_type": event_type, "payload": payload})
        assert status == 201, made
        return str(made["event_id"])

    return posted


def status_of(deployed: Deployed, key: str, id: str) -> tuple[str, int]:
    status, told = deployed.request("GET", f"/v1/events/{id}/status", key)
    assert status == 200, told
    return told["status"], told["retry_attempts"]


def test_an_event_is_delivered(deployed: Deployed, key: str, post: Any, receiver: Receiver) -> None:
    """Posted to the API, named by a message, delivered by the function, and seen as delivered."""
    id_ = post(n=1)
    assert status_of(deployed, key, id_) == ("received", 0)
    deployed.work_off()
    assert status_of(deployed, key, id_) == ("delivered", 0)
    assert [body["data"] for body in receiver.bodies].count({"n": 1}) == 1


def test_nothing_is_left_to_the_next_invocation(deployed: Deployed, key: str, post: Any) -> None:
    """A container stands still between two invocations: what one of them has begun, points of charts too, it has ended."""
    post(n=2)
    deployed.work_off()
    assert deployed.left_open() == {name: set() for name in FUNCTIONS}


def test_a_failing_endpoint_is_tried_again(deployed: Deployed, key: str, post: Any, receiver: Receiver) -> None:
    """Each failure is a retry in the event, not a failed message; after the fourth the event has failed, and is in the inbox."""
    receiver.answers = [500, 200]
    once = post(n=2)
    deployed.work_off()
    assert status_of(deployed, key, once) == ("delivered", 1)
    receiver.answers = [500] * 4
    always = post(n=3)
    deployed.work_off()
    assert status_of(deployed, key, always) == ("failed", 3)
    status, page = deployed.request("GET", "/v1/inbox?status=failed", key)
    assert (status, [one["event_id"] for one in page["events"]]) == (200, [always])
    assert deployed.request("POST", f"/v1/events/{always}/retry", key)[0] == 200
    deployed.work_off()
    assert status_of(deployed, key, always)[0] == "delivered"


def test_only_what_failed_comes_again(deployed: Deployed, key: str, post: Any) -> None:
    """A message that cannot be read stays with the queue, and the others of its batch are worked off."""
    id_ = post(n=4)
    records = deployed.messages()
    torn = {"messageId": "torn", "body": "{", "receiptHandle": "none"}
    assert deployed.deliver([torn, *records]) == ["torn"]
    assert status_of(deployed, key, id_) == ("delivered", 0)


def test_nothing_is_begun_with_little_time_left(deployed: Deployed, key: str, post: Any) -> None:
    """All messages come again, and the event is as it was."""
    id_ = post(n=5)
    records = deployed.messages()
    assert deployed.deliver(records, Context(19)) == [one["messageId"] for one in records]
    assert status_of(deployed, key, id_) == ("received", 0)
    assert deployed.deliver(records) == []
    assert status_of(deployed, key, id_) == ("delivered", 0)


def test_a_lost_message_is_found(deployed: Deployed, key: str, post: Any) -> None:
    """The sweep sends another one for what is long due."""
    id_ = post(n=6)
    lost = deployed.messages()
    assert lost, "received by somebody who died, and never shown again"
    for one in lost:
        deployed._sqs.delete_message(QueueUrl=deployed.stack.outputs["QueueUrl"], ReceiptHandle=one["receiptHandle"])
    deployed.stack.client("dynamodb").update_item(
        TableName=deployed.stack.outputs["TableName"],
        Key={"pk": {"S": f"E#{id_}"}, "sk": {"S": "E"}},
        UpdateExpression="SET #l = :l, parts.#n.#d = :d",
        ExpressionAttributeNames={"#l": "look_at", "#n": "00", "#d": "due"},
        ExpressionAttributeValues={":l": {"S": f"{1:020}"}, ":d": {"N": "1"}},
    )
    deployed.call("sweep", {})
    deployed.work_off()
    assert status_of(deployed, key, id_) == ("delivered", 0)


def test_metrics_and_log_lines_are_written(deployed: Deployed, key: str, post: Any, receiver: Receiver) -> None:
    """Each function writes what it counted when it ends, and lines that the queries of the docs find."""
    receiver.answers = [500]
    before = len(deployed.out.getvalue()), len(deployed.err.getvalue())
    id_ = post(n=7)
    deployed.work_off()
    assert status_of(deployed, key, id_) == ("delivered", 1)
    deployed.call("sweep", {})
    out, err = deployed.out.getvalue()[before[0] :], deployed.err.getvalue()[before[1] :]
    lines = [json.loads(line) for line in out.splitlines()]
    counted: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        assert line["service"] == "triggers"
        for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]:
            counted[metric["Name"]] += line[metric["Name"]]
    assert counted["EventsCreated"] == [1.0]
    assert counted["EventsDelivered"] == [1.0]
    assert counted["RetryAttempts"] == [1.0]
    assert counted["EventStatusQueries"] == [1.0]
    assert len(counted["TimeToDelivery"]) == 1
    assert {"EventsReceived", "EventsQueued"} <= counted.keys()
    rows = rows_of(err.splitlines(), ingested_at="2030-01-01T00:00:00+00:00")
    found = run(queries()["Retries that were scheduled, latest first"], rows)
    assert [row["event_id"] for row in found] == [id_]
    [life] = [queries()["The life of one event"].replace("EVENT", id_)]
    assert [row["shown"]["new_status"] for row in run(life, rows) if row["event"] == "status_transition"] == [
        "received", "queued", "delivered",
    ]  # fmt: skip


def test_it_answers_as_a_service_does(deployed: Deployed, key: str) -> None:
    """Health, pages and the operator API come through the same function; a stranger is refused in the same form."""
    for path in ("/health", "/ready", "/api/triggers/endpoints"):
        status, told = deployed.request("GET", path, GIVEN["AdminKey"])
        assert status == 200, (path, told)
    status, told = deployed.request("GET", "/v1/inbox", "rdk_nobody")
    assert (status, told["error"]["code"]) == (401, "UNAUTHORIZED")


def test_a_sweep_with_nothing_to_do_is_cheap(deployed: Deployed, key: str) -> None:
    """It asks each shard once, looks at turns and counts, and reads no event."""
    deployed.work_off()
    deployed.call("sweep", {})
    before = len(deployed.calls["sweep"])
    deployed.call("sweep", {})
    made = Counter(call for _, call, _ in deployed.calls["sweep"][before:])
    assert made.total() < 100, made


def test_every_call_is_allowed_by_its_role(deployed: Deployed, key: str, post: Any, receiver: Receiver) -> None:
    """All that the functions ask AWS for, here and in other tests, is what their roles allow. Nobody scans, and no right is idle."""
    large = post(text="x" * 9000)
    deployed.work_off()
    assert status_of(deployed, key, large) == ("delivered", 0)
    assert receiver.bodies[-1]["data"] == {"text": "x" * 9000}
    deployed.call("sweep", {})
    assert deployed.request("DELETE", f"/v1/events/{post(n=9)}", key)[0] == 204
    deployed.work_off()
    for name, role in ROLES.items():
        statements = deployed.stack.statements(role)
        made = {deed for call in deployed.calls[name] for deed in deeds(*call)}
        assert made, name
        refused = sorted({(deed.action, *sorted(deed.partitions)) for deed in made if not allowed(statements, deed)})
        assert refused == [], name
        assert not any(deed.action == "dynamodb:Scan" for deed in made)
    asked = {deed.action for calls in deployed.calls.values() for call in calls for deed in deeds(*call)}
    given = {
        action
        for role in ROLES.values()
        for one in deployed.stack.statements(role)
        if one["Effect"] == "Allow" and one["Sid"] != "Logs"
        for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
    }
    # Lambda itself receives and deletes messages with the role of the function.
    assert given - asked == {"sqs:ReceiveMessage", "sqs:DeleteMessage"}


def test_what_cannot_be_opened_is_tried_again(deployed: Deployed, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without its settings, or whose table is gone, says so at every invocation, and serves when they are there."""
    kept, deployed._kept["sweep"] = deployed._kept["sweep"], []
    variables = deployed.stack.variables
    for wrong, said in (
        (
            {
                "EVENTS_TABLE_NAME": "",
                "DELIVERY_QUEUE_URL": "",
                "DELIVERY_DLQ_URL": "",
                "DASHBOARD_NAME": "",
                "PAYLOAD_BUCKET": "",
            },
            "EVENTS_TABLE_NAME is missing",
        ),
        ({"EVENTS_TABLE_NAME": "nothing-here"}, "EVENTS_TABLE_NAME: table 'nothing-here' cannot be used"),
    ):
        with monkeypatch.context() as once:
            once.setattr(Stack, "variables", lambda _, name, wrong=wrong: variables(name) | wrong)
            for _ in range(2):
                with pytest.raises(SettingsError, match=said):
                    deployed.call("sweep", {})
    deployed.call("sweep", {})
    assert len(deployed._kept["sweep"]) == 1
    deployed._kept["sweep"] += kept
